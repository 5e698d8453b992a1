"""The U-Net: a net for targets that are fields, which joins features of several resolutions.

Ronneberger, Fischer and Brox, U-Net: Convolutional Networks for Biomedical Image Segmentation (2015).
"""

from __future__ import annotations

from collections.abc import Sequence

from dsinga import nn
from dsinga.base.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.models.field_blocks import FieldLayers, Normalisation, Padding, Statistics, fields_input, fields_output
from dsinga.nn.writing.symbol import Symbol


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
