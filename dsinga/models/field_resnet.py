"""A residual net for fields, as for forecasts of the weather.

Rasp and Thuerey, Data-Driven Medium-Range Weather Prediction With a Resnet Pretrained on Climate Simulations (2021);
Clare, Jamil and Morcrette, Combining Distribution-Based Neural Networks to Predict Weather Forecast Probabilities
(2021), with the same blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsinga import nn
from dsinga.base.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.models.field_blocks import FieldLayers, Normalisation, Padding, Statistics, fields_input, fields_output
from dsinga.nn.writing.symbol import Symbol

SLOPE = 0.3  # of the rectifier for negative numbers, Keras's default when the paper was written


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

    A 7 x 7 convolution is followed by ``blocks`` blocks x + f(x), where f is two 3 x 3 convolutions. After each of
    these convolutions come a leaky rectifier of slope 0.3, normalisation and dropout. The last layer is a linear 1 x 1
    convolution; the paper's is 3 x 3.

    Args:
        shape: (C, H, W) of a record.
        out_channels: number of channels of the result.
        width: number of channels of the blocks; 128 in the paper.
        blocks: number of blocks; 19 in the paper.
        padding: what lies around a field, "zero", "edge", "reflect" or "periodic", for both axes or (rows, columns); by
            default longitude is periodic, as in the paper.
        normalisation: "batch", "group" or "none".
        dropout: share of the numbers that are 0 in a training step; 0.1 in the paper.
        input_statistics: mean and std of the channels of records, by which they are normalised first:
            ``statistics.of_inputs(windows)`` of :func:`dsinga.data.field_statistics`.
        output_statistics: mean and std of the channels of targets: the net then gives numbers in the data's units.

    Raises:
        UserError: a shape that is not (C, H, W), or an unknown padding or normalisation.
    """
    if len(shape) != 3:
        raise UserError(f"a residual net takes fields of the shape (channels, height, width), not {tuple(shape)}")
    layers = FieldLayers(padding, normalisation)

    def convolved(name: str, x: Symbol, kernel: int = 3) -> Symbol:
        """Return a convolution of x, rectified, normalised, and with dropout."""
        x = nn.LeakyReLU(SLOPE, name=f"{name}_relu")(layers.convolve(name, x, width, kernel, bias=True))
        x = layers.normalise(f"{name}_norm", x, width)
        return nn.Dropout(dropout, name=f"{name}_drop")(x) if dropout else x

    fields, x = fields_input(shape, input_statistics)
    x = convolved("conv", x, kernel=7)
    for number in range(1, blocks + 1):
        branch = convolved(f"block{number}_conv2", convolved(f"block{number}_conv1", x))
        x = nn.Add(name=f"block{number}_add")([x, branch])
    return nn.Model(fields, fields_output(x, out_channels, output_statistics), name="field_resnet")
