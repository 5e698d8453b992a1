"""Nets for fields, and their blocks: a U-Net, a residual net, convolutional LSTMs, and DeepESD.

U-Net: Ronneberger, Fischer and Brox, U-Net: Convolutional Networks for Biomedical Image Segmentation (2015). Residual
net: Rasp and Thuerey, Data-Driven Medium-Range Weather Prediction With a Resnet Pretrained on Climate Simulations
(2021); Clare, Jamil and Morcrette, Combining Distribution-Based Neural Networks to Predict Weather Forecast
Probabilities (2021), with the same blocks.
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
Statistics = Mapping[str, Any] | None  # {"mean": (C,) or (C, H, W), "std": likewise}, arguments of nn.Normalization
SLOPE = 0.3  # the rectifier's slope for negative numbers, Keras's default when the paper was written


def fields_input(shape: Sequence[int], statistics: Statistics) -> tuple[Symbol, Symbol]:
    """Return the symbol of records of a shape, and that of the records normalised by ``statistics``, if there are."""
    fields = nn.Input(tuple(shape), name="data")
    return fields, fields if statistics is None else nn.Normalization(**statistics, name="normalised")(fields)


def fields_output(x: Symbol, channels: int, statistics: Statistics) -> Symbol:
    """Return a linear 1 x 1 convolution of x; with ``statistics`` its results are brought into the data's units."""
    if statistics is None:
        return nn.Conv2D(channels, 1, name="output")(x)
    return nn.Normalization(**statistics, invert=True, name="output")(nn.Conv2D(channels, 1, name="scores")(x))


@dataclass(frozen=True)
class FieldLayers:
    """Makes convolutions that keep the size of a field, and the normalisation after them.

    ``padding`` says what lies around a field: "zero", "edge", "reflect" or "periodic", for both axes or (rows,
    columns). ``normalisation`` is "batch", "group" (of at most eight equal groups of channels) or "none".
    """

    padding: Padding
    normalisation: Normalisation

    def __post_init__(self) -> None:
        if self.normalisation not in NORMALISATIONS:
            raise UserError(f'normalisation is "batch", "group" or "none", not {self.normalisation!r}')

    def convolve(self, name: str, x: Symbol, filters: int, kernel: int = 3, bias: bool | None = None) -> Symbol:
        """Return a convolution whose kernel has an odd size; it has a bias where no normalisation follows."""
        bias = self.normalisation == "none" if bias is None else bias
        settings: dict[str, Any] = {"kernel_initializer": "he_normal", "use_bias": bias, "name": name}
        if self.padding == "zero" or kernel == 1:
            return nn.Conv2D(filters, kernel, padding=kernel // 2, **settings)(x)
        padded = nn.Padding2D(kernel // 2, self.padding, name=f"{name}_pad")(x)
        return nn.Conv2D(filters, kernel, **settings)(padded)

    def normalise(self, name: str, x: Symbol, channels: int) -> Symbol:
        """Return x normalised, x itself without normalisation."""
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

    At each of ``depth`` levels two 3 x 3 convolutions with rectifiers are followed by a maximum over 2 x 2 points, and
    the number of channels doubles; on the way back a transposed convolution of 2 x 2 doubles the size, the features of
    that level are joined to its result, and two convolutions follow. A linear 1 x 1 convolution gives the channels of
    the result. Unlike the paper's, convolutions keep the size of a field, and may be followed by normalisation.

    Args:
        shape: (C, H, W) of a record; H and W can be halved ``depth`` times.
        out_channels: number of channels of the result.
        width: number of channels at the first level; 64 in the paper.
        depth: number of levels below which fields are halved; 4 in the paper.
        padding: what lies around a field, "zero", "edge", "reflect" or "periodic", for both axes or (rows, columns):
            ``("edge", "periodic")`` for latitude and longitude.
        normalisation: "batch", "group" or "none" after each convolution.
        input_statistics: mean and std of the channels of records, by which they are normalised first:
            ``statistics.of_inputs(windows)`` of :func:`dsinga.data.field_statistics`.
        output_statistics: mean and std of the channels of targets: the net then gives numbers in the data's units.

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
    """Return two convolutions of x, each normalised and rectified."""
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


@typed("models.")
def deepesd(
    shape: Sequence[int],
    out_points: int,
    *,
    filters: Sequence[int] = (50, 25, 1),
    padding: int = 1,
    dense_partition_dim: int | None = None,
) -> nn.Model:
    """Return DeepESD, from fields (B, C, H, W) to numbers at all points of a grid, (B, out_points).

    Baño-Medina et al., Downscaling multi-model climate projection ensembles with deep learning (DeepESD), GMD 15,
    6747–6758 (2022): three convolutions of 3 x 3 with rectifiers, and one dense layer to all grid points; also the
    baseline of CORDEX ML-Bench. Most params are those of the dense layer, H·W·filters[-1] for each point.

    Args:
        shape: (C, H, W) of a record, the predictors.
        out_points: number of points of the grid, of land alone where others have no target.
        filters: number of channels of each convolution; the last is 10 for precipitation in the paper.
        padding: how many zeros surround a field before each convolution; 1 keeps its size, 0 makes it smaller.
        dense_partition_dim: 1 cuts the dense layer by points where the job has several workers in a group, while
            fields are cut by rows: each worker holds the weights of its points.

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
