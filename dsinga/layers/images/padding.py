"""kPadding and kCropping: add points around an image or volume, or remove its outermost points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf, PaddingMode
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Padding as Points
from dsinga.layers.images.sliding import by_axis, interior, points_shape
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.interface.region import FILL, Reach, Region, along

NUMPY_MODES: dict[PaddingMode, Any] = {  # numpy's words for what copies points
    PaddingMode.kEdge: "edge",
    PaddingMode.kReflect: "reflect",
    PaddingMode.kPeriodic: "wrap",
}


def without_axes(values: Sequence[int], region: Region) -> list[int]:
    """Return a setting's values by axis, with 0 for axes cut over workers, which neighbours' points pad instead."""
    return [0 if axis in region.axes else value for axis, value in enumerate(values, 2)]


@register("layer", kPadding=840)
class Padding(Layer):
    """Images (B, C, H, W) or volumes (B, C, D, H, W) with points added around them: (B, C, H', W').

    H' = before + H + after. Each axis has a ``mode``:

    - kZero: zeros, or another ``value``.
    - kEdge: the edge, repeated.
    - kReflect: the field mirrored at its edge, without the edge itself (PyTorch's and numpy's "reflect").
    - kPeriodic: the opposite side of a periodic field, such as longitude (PyTorch's "circular", numpy's "wrap").

    Corners have the modes of all their axes.
    """

    class Conf(Settings):
        """Settings of kPadding; each with one value for all axes after the channels, or one for each."""

        before: list[Points] = setting([], "how many points are added before the first; 0 by default")
        after: list[Points] = setting([], "how many points are added after the last; 0 by default")
        mode: list[PaddingMode] = setting([], "what is added; kZero by default")
        value: float = setting(0.0, "what kZero adds in place of zeros")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)
    bf16 = Bfloat16.kFeatures

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.sizes = points_shape(self)
        self.before, self.after = by_axis(self, "before", 0), by_axis(self, "after", 0)
        self.modes = by_axis(self, "mode", PaddingMode.kZero)
        self.source_fill = self.settings.value
        for size, mode, *added in zip(self.sizes, self.modes, self.before, self.after, strict=True):
            most = {PaddingMode.kReflect: size - 1, PaddingMode.kPeriodic: size}.get(mode)
            if most is not None and max(added) > most:
                raise self.fail(
                    f"adds {max(added)} points to an axis of {size}, but {mode.name} has at most {most} to copy; "
                    "pad less, or by kEdge or kZero",
                    field="before" if added[0] > most else "after",
                )
        padded = (b + n + a for b, n, a in zip(self.before, self.sizes, self.after, strict=True))
        self.shape = (*self.source_shapes[0][:2], *padded)

    def source_points(self, axis: int, start: int, stop: int) -> np.ndarray:
        places, added = np.arange(self.sizes[axis - 2]), (self.before[axis - 2], self.after[axis - 2])
        mode = NUMPY_MODES.get(self.modes[axis - 2])
        padded = np.pad(places, added, constant_values=FILL) if mode is None else np.pad(places, added, mode)
        return padded[start:stop]

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        before, after = without_axes(self.before, region), without_axes(self.after, region)
        settings = self.settings.replace(before=before, after=after, mode=list(self.modes))
        return type(self)(self.conf.replace(padding_conf=settings), source_shapes)

    def reach(self) -> tuple[Reach, ...]:
        kinds = {PaddingMode.kPeriodic: "periodic"}
        return tuple(
            Reach(1, 1, before, -before, kinds.get(mode, "edge") if before or after else "")
            for before, after, mode in zip(self.before, self.after, self.modes, strict=True)
        )

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = sources[0]
        y = ctx.ops.empty((len(x), *self.shape[1:]), x.dtype)
        y[interior(self.before, self.sizes)] = x
        for axis, mode in enumerate(self.modes):  # of the axes before, the borders are filled already
            region = y[interior(self.before[axis + 1 :], self.sizes[axis + 1 :], axis + 3)]
            inner = region[along(axis + 2, self._inner(axis))]
            for border, source in self._borders(axis):
                copied = self.settings.value if mode is PaddingMode.kZero else inner[along(axis + 2, source)]
                region[along(axis + 2, border)] = copied
        return Output(y)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        ops, inner = ctx.ops, interior(self.before, self.sizes)
        if all(mode is PaddingMode.kZero for mode in self.modes):
            return (ops.cast_like(grad[inner], sources[0]),), ()
        grad = ops.to_float32(grad)
        dx = ops.empty(sources[0].shape, grad.dtype)
        dx[...] = grad[inner]
        self._add_borders(grad, dx, 0)
        return (ops.cast_like(dx, sources[0]),), ()

    def _add_borders(self, grad: Array, dx: Array, axis: int) -> None:
        """Add the gradients of border points along ``axis`` and later axes to those points that they copy."""
        if axis == len(self.sizes):
            return
        self._add_borders(grad[along(axis + 2, self._inner(axis))], dx, axis + 1)
        mode = self.modes[axis]
        for border, source in self._borders(axis) if mode is not PaddingMode.kZero else ():
            strip = grad[along(axis + 2, border)]
            inner = strip[interior(self.before[axis + 1 :], self.sizes[axis + 1 :], axis + 3)].copy()
            self._add_borders(strip, inner, axis + 1)
            target = dx[along(axis + 2, source)]
            target += inner.sum(axis=axis + 2, keepdims=True) if mode is PaddingMode.kEdge else inner

    def _inner(self, axis: int) -> slice:
        return slice(self.before[axis], self.before[axis] + self.sizes[axis])

    def _borders(self, axis: int) -> Iterator[tuple[slice, slice]]:
        """Yield each border along an axis as a slice, and the slice of the points that it copies."""
        size, before, after, mode = self.sizes[axis], self.before[axis], self.after[axis], self.modes[axis]
        if mode is PaddingMode.kReflect:
            end = size - 2 - after
            first, last = slice(before, 0, -1), slice(size - 2, end if end >= 0 else None, -1)
        elif mode is PaddingMode.kPeriodic:
            first, last = slice(size - before, size), slice(0, after)
        else:
            first, last = slice(0, 1), slice(size - 1, size)
        if before:
            yield slice(0, before), first
        if after:
            yield slice(before + size, before + size + after), last


@register("layer", kCropping=841)
class Cropping(Layer):
    """Images (B, C, H, W) or volumes (B, C, D, H, W) without their outermost points: H' = H - before - after."""

    class Conf(Settings):
        """Settings of kCropping; each with one value for all axes after the channels, or one for each."""

        before: list[Points] = setting([], "how many points are left out before the first; 0 by default")
        after: list[Points] = setting([], "how many points are left out after the last; 0 by default")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)
    bf16 = Bfloat16.kFeatures

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        sizes, self.before, after = points_shape(self), by_axis(self, "before", 0), by_axis(self, "after", 0)
        self.after = after
        self.sizes = tuple(size - b - a for size, b, a in zip(sizes, self.before, after, strict=True))
        if min(self.sizes) < 1:
            raise self.fail(
                f"leaves nothing of fields of {shape_text(sizes)} without {shape_text(self.before)} points before and "
                f"{shape_text(after)} after; crop fewer",
                field="after" if after[self.sizes.index(min(self.sizes))] else "before",
            )
        self.shape = (*self.source_shapes[0][:2], *self.sizes)

    def reach(self) -> tuple[Reach, ...]:
        return tuple(Reach(1, 1, -before, before) for before in self.before)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(sources[0][interior(self.before, self.sizes)])

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        dx = ctx.ops.empty(sources[0].shape, sources[0].dtype)
        dx[...] = 0
        dx[interior(self.before, self.sizes)] = ctx.ops.cast_like(grad, sources[0])
        return (dx,), ()

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        before, after = without_axes(self.before, region), without_axes(self.after, region)
        settings = self.settings.replace(before=before, after=after)
        return type(self)(self.conf.replace(cropping_conf=settings), source_shapes)
