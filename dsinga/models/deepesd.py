"""DeepESD: a net that downscales fields of a climate model to the points of a finer grid."""

from __future__ import annotations

from collections.abc import Sequence

from dsinga import nn
from dsinga.base.argument_types import typed
from dsinga.base.errors import UserError


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
