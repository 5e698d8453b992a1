"""Nets from fields to fields, such as maps: a U-Net, a residual net, convolutional LSTMs, and DeepESD.

U-Net: Ronneberger, Fischer and Brox, U-Net: Convolutional Networks for Biomedical Image Segmentation (2015).

Residual net: Rasp and Thuerey, Data-Driven Medium-Range Weather Prediction With a Resnet Pretrained on Climate
Simulations (2021).

``padding`` is "zero", "edge", "reflect" or "periodic", for both axes or (rows, columns): ``("edge", "periodic")`` suits
latitude and longitude. ``normalisation`` after each convolution is "batch", "group" (at most eight equal groups of
channels) or "none". ``input_statistics``, the records' mean and std by channel, come from
``statistics.of_inputs(windows)`` of :func:`dsinga.data.field_statistics`; with ``output_statistics``, the targets', the
net predicts in the data's units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dsinga import nn
from dsinga.api.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.nn.writing.symbol import Symbol

Normalisation = Literal["batch", "group", "none"]
Padding = str | tuple[str, str]
NORMALISATIONS = ("batch", "group", "none")
GROUPS = 8  # the most groups of channels
Statistics = Mapping[str, Any] | None  # "mean" and "std", (C,) or (C, H, W), for nn.Normalization
SLOPE = 0.3  # the rectifier's slope for negative numbers, Keras's default when the paper was written


def fields_input(shape: Sequence[int], statistics: Statistics) -> tuple[Symbol, Symbol]:
    """Return the symbolic tensor of records of a shape, and the same normalised by ``statistics``, if given."""
    fields = nn.Input(tuple(shape), name="data")
    return fields, fields if statistics is None else nn.Normalization(**statistics, name="normalised")(fields)


def fields_output(x: Symbol, channels: int, statistics: Statistics) -> Symbol:
    """Return a linear 1 x 1 convolution of x as a net's output, in the data's units if ``statistics`` are given."""
    if statistics is None:
        return nn.Conv2D(channels, 1, name="output")(x)
    return nn.Normalization(**statistics, invert=True, name="output")(nn.Conv2D(channels, 1, name="scores")(x))


@dataclass(frozen=True)
class FieldLayers:
    """Makes the layers of field nets: convolutions that keep the size of a field, and the normalisation after them."""

    padding: Padding
    normalisation: Normalisation

    def __post_init__(self) -> None:
        if self.normalisation not in NORMALISATIONS:
            raise UserError(f'normalisation is "batch", "group" or "none", not {self.normalisation!r}')

    def convolve(self, name: str, x: Symbol, filters: int, kernel: int = 3, bias: bool | None = None) -> Symbol:
        """Apply a convolution with an odd kernel size; by default it has a bias only without normalisation."""
        bias = self.normalisation == "none" if bias is None else bias
        settings: dict[str, Any] = {"kernel_initializer": "he_normal", "use_bias": bias, "name": name}
        if self.padding == "zero" or kernel == 1:
            return nn.Conv2D(filters, kernel, padding=kernel // 2, **settings)(x)
        padded = nn.Padding2D(kernel // 2, self.padding, name=f"{name}_pad")(x)
        return nn.Conv2D(filters, kernel, **settings)(padded)

    def normalise(self, name: str, x: Symbol, channels: int) -> Symbol:
        """Normalise x, unless the normalisation is "none"."""
        if self.normalisation == "batch":
            return nn.BatchNormalization(name=name)(x)
        if self.normalisation == "group":
            return nn.GroupNormalization(math.gcd(channels, GROUPS), name=name)(x)
        return x


@typed("models.")
def unet(
    shape: Sequence[int],
    out_channels: int = 1,
    *,
    width: int = 32,
    depth: int = 3,
    padding: Padding = "zero",
    normalisation: Normalisation = "batch",
    input_statistics: Statistics = None,
    output_statistics: Statistics = None,
) -> nn.Model:
    """Return a U-Net from fields (B, C, H, W) to fields (B, out_channels, H, W), a model that ``fit`` trains.

    Each of ``depth`` levels has two 3 x 3 convolutions with rectifiers, then a maximum over 2 x 2 points, and twice the
    channels of the level above. On the way back a transposed 2 x 2 convolution doubles the size. Its result is joined
    to the level's features, and two convolutions follow. The output is a linear 1 x 1 convolution. Unlike in the paper,
    convolutions keep the size of a field.

    Args:
        shape: (C, H, W) of a record; 2^``depth`` divides H and W.
        out_channels: channels of the result.
        width: channels at the first level; 64 in the paper.
        depth: number of halvings; 4 in the paper.
        padding: "zero", "edge", "reflect" or "periodic", for both axes or (rows, columns).
        normalisation: "batch", "group" or "none".
        input_statistics: mean and std that normalise the channels of records.
        output_statistics: mean and std of the targets' channels.

    Raises:
        UserError: fields that cannot be halved ``depth`` times, or an unknown padding or normalisation.
    """
    if len(shape) != 3:
        raise UserError(f"a U-Net takes fields of the shape (channels, height, width), not {tuple(shape)}")
    if depth < 1 or any(size % 2**depth for size in shape[1:]):
        raise UserError(
            f"a U-Net of depth {depth} halves fields {depth} times, which {shape[1]} x {shape[2]} points cannot be; "
            "give a smaller depth, at least 1, or pad or crop the fields"
        )
    layers = FieldLayers(padding, normalisation)
    fields, x = fields_input(shape, input_statistics)
    skipped = []
    for level in range(depth):
        x = _block(f"down{level}", x, width << level, layers)
        skipped.append(x)
        x = nn.MaxPooling2D(2, name=f"down{level}_pool")(x)
    x = _block("bottom", x, width << depth, layers)
    for level in reversed(range(depth)):
        filters = width << level
        up = nn.Conv2DTranspose(filters, 2, 2, kernel_initializer="he_normal", name=f"up{level}_grow")(x)
        joined = nn.Concatenate(axis=1, name=f"up{level}_join")([skipped[level], up])
        x = _block(f"up{level}", joined, filters, layers)
    return nn.Model(fields, fields_output(x, out_channels, output_statistics), name="unet")


def _block(name: str, x: Symbol, filters: int, layers: FieldLayers) -> Symbol:
    for number in (1, 2):
        x = layers.convolve(f"{name}_conv{number}", x, filters)
        x = nn.ReLU(name=f"{name}_relu{number}")(layers.normalise(f"{name}_norm{number}", x, filters))
    return x


@typed("models.")
def field_resnet(
    shape: Sequence[int],
    out_channels: int = 1,
    *,
    width: int = 32,
    blocks: int = 4,
    padding: Padding = ("zero", "periodic"),
    normalisation: Normalisation = "batch",
    dropout: float = 0.0,
    input_statistics: Statistics = None,
    output_statistics: Statistics = None,
) -> nn.Model:
    """Return a residual net from fields (B, C, H, W) to (B, out_channels, H, W), a model that ``fit`` trains.

    A 7 x 7 convolution comes first, then ``blocks`` blocks x + f(x), where f is two 3 x 3 convolutions. Each of these
    convolutions has a leaky rectifier of slope 0.3, normalisation and dropout. The output is a linear 1 x 1
    convolution; the paper's is 3 x 3.

    Args:
        shape: (C, H, W) of a record.
        out_channels: channels of the result.
        width: channels of the blocks; 128 in the paper.
        blocks: number of blocks; 19 in the paper.
        padding: as for :func:`unet`. By default longitude is periodic, as in the paper.
        normalisation: as for :func:`unet`.
        dropout: share of the numbers set to 0 in training; 0.1 in the paper.
        input_statistics: as for :func:`unet`.
        output_statistics: as for :func:`unet`.

    Raises:
        UserError: a shape that is not (C, H, W), or an unknown padding or normalisation.
    """
    if len(shape) != 3:
        raise UserError(f"a residual net takes fields of the shape (channels, height, width), not {tuple(shape)}")
    layers = FieldLayers(padding, normalisation)

    def convolved(name: str, x: Symbol, kernel: int = 3) -> Symbol:
        x = nn.LeakyReLU(SLOPE, name=f"{name}_relu")(layers.convolve(name, x, width, kernel, bias=True))
        x = layers.normalise(f"{name}_norm", x, width)
        return nn.Dropout(dropout, name=f"{name}_drop")(x) if dropout else x

    fields, x = fields_input(shape, input_statistics)
    x = convolved("conv", x, kernel=7)
    for number in range(1, blocks + 1):
        branch = convolved(f"block{number}_conv2", convolved(f"block{number}_conv1", x))
        x = nn.Add(name=f"block{number}_add")([x, branch])
    return nn.Model(fields, fields_output(x, out_channels, output_statistics), name="field_resnet")


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

    After Shi et al., Convolutional LSTM Network: A Machine Learning Approach for Precipitation Nowcasting (2015). A
    record's channels are all ``steps`` steps of the first variable, then all steps of the next, as in windows of
    fields. The result has out = out_channels·out_steps channels in the same order.

    The encoder's last hidden state is the input of each of the forecaster's ``out_steps`` steps. A 1 x 1 convolution
    turns each step into ``out_channels``. In the paper there is no input, and the forecaster's states begin with the
    encoder's.

    Args:
        shape: (C, H, W) of a record; ``steps`` divides C.
        steps: steps in a record.
        out_channels: variables of the target.
        out_steps: steps of the target.
        filters: channels of each encoder layer; the forecaster's layers have them in reverse order.
        kernel: height and width of the kernels.

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
    """Reshape fields (B, channels·steps, H, W), ordered by channel, to sequences (B, T, C, H, W)."""
    if channels == 1:
        return nn.Reshape([steps, 1, *size], name="input_steps")(x)
    x = nn.Reshape([channels, steps, *size], name="input_channels")(x)
    return nn.Permute([2, 1, 3, 4], name="input_steps")(x)


@typed("models.")
def deepesd(
    shape: Sequence[int],
    out_points: int,
    *,
    filters: Sequence[int] = (50, 25, 1),
    padding: int = 1,
    dense_partition_dim: int | None = None,
) -> nn.Model:
    """Return DeepESD, a downscaling net from fields (B, C, H, W) to all points of a grid, (B, out_points).

    Baño-Medina et al., Downscaling multi-model climate projection ensembles with deep learning (DeepESD), GMD 15,
    6747–6758 (2022). Three 3 x 3 convolutions with rectifiers precede one dense layer to all grid points, which has
    most params, H·W·filters[-1] for each point.

    Args:
        shape: (C, H, W) of a record, the predictors.
        out_points: number of grid points; only land points if the sea has no target.
        filters: channels of each convolution; the last is 10 for precipitation in the paper.
        padding: zeros around a field before each convolution; 1 keeps its size, 0 makes it smaller.
        dense_partition_dim: 1 divides the dense layer's points among the workers of a group.

    Raises:
        UserError: a shape that is not (C, H, W), or fields too small for the convolutions.
    """
    if len(shape) != 3:
        raise UserError(f"DeepESD takes fields of the shape (channels, height, width), not {tuple(shape)}")
    x = fields = nn.Input(tuple(shape), name="data")
    for number, count in enumerate(filters, 1):
        x = nn.Conv2D(count, 3, padding=padding, activation="relu", name=f"conv{number}")(x)
    dense = nn.Dense(out_points, name="output", partition_dim=dense_partition_dim)
    return nn.Model(fields, dense(nn.Flatten()(x)), name="deepesd")
