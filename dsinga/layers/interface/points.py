"""Fields of images and volumes: their axes, settings with a number for each axis, and slices along one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dsinga.layers.interface.layer import Array, Layer, Shape
from dsinga.ops import Ops

V = TypeVar("V")


def points_shape(layer: Layer) -> Shape:
    """Return (H, W) of images (B, C, H, W), or (D, H, W) of volumes (B, C, D, H, W), that a layer gets."""
    takes = "images (batch, channels, height, width) or volumes with a depth before the height"
    return layer.expect_axes((4, 5), takes, "give the shape of a record in the input layer's store_conf")[2:]


def by_axis(layer: Layer, field: str, default: V) -> tuple[V, ...]:
    """Return the values of a repeated setting for each axis after the channels; raise UserError for another number.

    One value is for all axes, none means ``default``.
    """
    values: Sequence[V] = getattr(layer.settings, field) or [default]
    axes = len(points_shape(layer))
    if len(values) not in (1, axes):
        raise layer.fail(
            f"has {len(values)} values of {field} for {axes} axes after the channels; give one for all or for each",
            layer.settings,
            field,
        )
    return tuple(values) * (axes // len(values))


def along(axis: int, part: slice) -> tuple[slice, ...]:
    """Return the index of a part of an array along ``axis``."""
    return (*(slice(None),) * axis, part)


def interior(before: Sequence[int], sizes: Sequence[int], first: int = 2) -> tuple[slice, ...]:
    """Return the index of ``sizes`` points after those ``before``, along each axis from the axis ``first`` on."""
    parts = (slice(start, start + size) for start, size in zip(before, sizes, strict=True))
    return (*(slice(None),) * first, *parts)


def embed(x: Array, index: tuple[slice, ...], shape: Shape, ops: Ops) -> Array:
    """Return x as the part at ``index`` of an array whose rows have the shape of those of ``shape``, else 0."""
    y = ops.empty((len(x), *shape[1:]), x.dtype)
    y[...] = 0
    y[index] = x
    return y
