"""A forecast of fields by convolutional LSTMs: an encoder of the fields before, and a forecaster of those to come."""

from __future__ import annotations

from collections.abc import Sequence

from dsinga import nn
from dsinga.base.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.nn.writing.symbol import Symbol


@typed("models.")
def convlstm(
    shape: Sequence[int],
    steps: int,
    out_channels: int = 1,
    out_steps: int = 1,
    *,
    filters: Sequence[int] = (32, 32),
    kernel: int = 3,
) -> nn.Model:
    """Return an encoder and forecaster of ConvLSTMs from fields (B, C, H, W) to fields (B, out, H, W).

    After Shi et al., Convolutional LSTM Network: A Machine Learning Approach for Precipitation Nowcasting (2015). The
    channels of a record are those of ``steps`` steps, of each variable all steps one after the other, as windows of
    fields have them. The encoder's layers read the steps; the hidden state of the last layer after the last step is
    the input of each of the forecaster's ``out_steps`` steps, whose states begin with zeros (in the paper they begin
    with the encoder's, and there is no input). A 1 x 1 convolution of each step gives its ``out_channels``; of the
    result's out = out_channels·out_steps channels the steps of each are again one after the other.

    Args:
        shape: (C, H, W) of a record; ``steps`` divides C.
        steps: number of steps in a record.
        out_channels: number of variables of the target.
        out_steps: number of steps of the target.
        filters: number of channels of each of the encoder's layers; the forecaster has as many in reverse order.
        kernel: height and width of the windows, which keep the size of fields.

    Raises:
        UserError: a shape that is not (C, H, W), or channels that ``steps`` does not divide.
    """
    if len(shape) != 3:
        raise UserError(f"convlstm takes fields of the shape (channels, height, width), not {tuple(shape)}")
    if steps < 1 or shape[0] % steps:
        raise UserError(
            f"convlstm takes {steps} steps of as many channels each, which {shape[0]} channels cannot be; give steps "
            f"that divide {shape[0]}"
        )
    fields = nn.Input(tuple(shape), name="data")
    x = steps_of_channels(fields, shape[0] // steps, steps, shape[1:])
    last = len(filters)
    for number, count in enumerate(filters, 1):
        name = f"encoder{number}"
        x = nn.ConvLSTM2D(count, kernel, padding="same", return_sequences=number < last, name=name)(x)
    x = nn.RepeatVector(out_steps, name="repeat")(x)
    for number, count in enumerate(reversed(filters), 1):
        x = nn.ConvLSTM2D(count, kernel, padding="same", name=f"forecaster{number}", return_sequences=True)(x)
    x = nn.TimeDistributed(nn.Conv2D(out_channels, 1, name="output"))(x)
    if out_channels > 1:
        x = nn.Permute([2, 1, 3, 4], name="by_channel")(x)
    return nn.Model(fields, nn.Reshape([out_channels * out_steps, *shape[1:]], name="fields")(x), name="convlstm")


def steps_of_channels(x: Symbol, channels: int, steps: int, size: Sequence[int]) -> Symbol:
    """Return fields (B, channels·steps, H, W), in which the steps of a channel are neighbours, as (B, T, C, H, W)."""
    if channels == 1:
        return nn.Reshape([steps, 1, *size], name="input_steps")(x)
    x = nn.Reshape([channels, steps, *size], name="input_channels")(x)
    return nn.Permute([2, 1, 3, 4], name="input_steps")(x)
