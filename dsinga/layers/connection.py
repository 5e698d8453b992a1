"""Connection layers: kSplit copies its source to several destinations, kSlice cuts it, kConcate joins sources.

The feature of kSplit and kSlice is a tuple of views, one for each destination.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Axis, Parts
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo, cut_evenly
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut, Keeps
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, shaped
from dsinga.layers.interface.region import Reach
from dsinga.ops import Ops
from dsinga.ops.layout import LAST, SECOND
from dsinga.ops.types import is_on_device


@register("layer", kSplit=504)
class Split(Layer):
    """Pass the source's feature to each of ``num_splits`` destinations, and add up their gradients."""

    class Conf(Settings):
        """Settings of kSplit."""

        num_splits: Parts = setting(1, "the number of destinations that get the whole feature")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)
    bf16 = Bfloat16.kFeatures
    keeps = Keeps(sources=0, feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.part_shapes = (self.shape,) * self.settings.num_splits

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output((sources[0],) * len(self.part_shapes))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        total = None
        if needs[0]:
            for part in grad:
                total = part if total is None else total if part is None else ctx.ops.add(total, part)
        return (total,), ()


def described(parts: Sequence[Array]) -> list[tuple[Shape, np.dtype]]:
    """Return the shapes and dtypes of arrays."""
    return [(part.shape, part.dtype) for part in parts]


@register("layer", kSlice=503)
class SliceLayer(Layer):
    """Cut the source into ``num_slices`` parts along axis ``slice_dim``, the i-th part for the i-th destination.

    If the length is not a multiple, the first parts are one longer. On axis 0 the parts are rows of the global batch.
    """

    class Conf(Settings, name="SliceConf"):
        """Settings of kSlice."""

        slice_dim: Axis = setting(0, "the axis along which the source is cut; 0 is the batch")
        num_slices: Parts = setting(1, "into how many parts the source is cut")

    settings: Conf
    source_count = 1
    bf16 = Bfloat16.kFeatures
    keeps = Keeps(sources=0, feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.axis = self.expect_axis("slice_dim")
        length = self.shape[self.axis]
        text = f"dimension {self.axis} of {shape_text(self.shape)} has {length}"
        parts = self.expect_setting("num_slices", 1, length, text)
        self._set_bounds([0, *(rows.stop for rows in cut_evenly(length, parts))])
        self.cut = cut_beside(self.axis, "hands parts of the {} to its destinations")

    @classmethod
    def of(cls, conf: LayerConf, shape: Shape, axis: int, bounds: Sequence[int]) -> SliceLayer:
        """Return a layer for partitioned nets that cuts a source of ``shape`` at rising ``bounds`` along ``axis``."""
        layer = cls(conf.replace(slice_conf={"slice_dim": axis}), [shape])
        layer._set_bounds(bounds)
        return layer

    def _set_bounds(self, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        before, after = self.shape[: self.axis], self.shape[self.axis + 1 :]
        self.part_shapes = tuple((*before, stop - start, *after) for start, stop in pairwise(bounds))

    def reach(self) -> tuple[Reach, ...] | None:
        return self.same_points() if self.axis == 1 else None

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        parts = split_at(sources[0], self._bounds(ctx), self.axis)
        return Output(parts, saved=described(parts) if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        parts = [
            shaped(ctx.ops.xp.zeros(shape, dtype), shape, False, ctx.ops) if part is None else part
            for part, (shape, dtype) in zip(grad, output.saved or described(output.feature), strict=True)
        ]
        return (join(parts, self.axis, ctx.ops),), ()

    def hand_on_labels(self, labels: Sequence[Any], ctx: Context) -> Any:
        if self.axis or labels[0] is None:
            return labels[0]
        return split_at(labels[0], self._bounds(ctx), 0)

    def _bounds(self, ctx: Context) -> Sequence[int]:
        """Return where the parts begin and end in this worker's array, which has the rows ``ctx.rows``."""
        if self.axis:
            return self.bounds
        (start, stop, _), first = ctx.rows, ctx.pass_rows.start
        return [min(max(first + bound, start), stop) - start for bound in self.bounds]


@register("layer", kConcate=502)
class Concate(Layer):
    """Concatenate the sources along axis ``concate_dim``, the only axis on which their shapes may differ."""

    class Conf(Settings):
        """Settings of kConcate."""

        concate_dim: Axis = setting(0, "the axis along which the sources are joined; 0 is the batch")
        num_concates: Parts = setting(1, "the number of sources; 1 for as many as there are")

    settings: Conf
    bf16 = Bfloat16.kFeatures
    keeps = Keeps(sources=0, feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        self.expect_some_source()
        sources = len(self.source_shapes)
        if settings.num_concates not in (1, sources):
            text = f"num_concates is {settings.num_concates}, but it has {sources} sources; leave num_concates out"
            raise self.fail(text, field="num_concates")
        self.axis = self.expect_axis("concate_dim")
        first = self.source_shapes[0]
        for index, shape in enumerate(self.source_shapes):
            if len(shape) != len(first) or any(
                a != b for axis, (a, b) in enumerate(zip(first, shape, strict=True)) if axis != self.axis
            ):
                raise self.fail(
                    f"cannot join {self.source_name(0)}, {shape_text(first)}, and {self.source_name(index)}, "
                    f"{shape_text(shape)}, along dimension {self.axis}; make their other dimensions equal",
                    field="srclayers",
                )
        self.cut = cut_beside(self.axis, "joins the {} of its sources")
        joined = sum(shape[self.axis] for shape in self.source_shapes)
        self.shape = (*first[: self.axis], joined, *first[self.axis + 1 :])

    def reach(self) -> tuple[Reach, ...] | None:
        return self.same_points() if self.axis == 1 else None

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(join(sources, self.axis, ctx.ops))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        bounds = [0, *accumulate(source.shape[self.axis] for source in sources)]
        parts = split_at(grad, bounds, self.axis)
        return [part if need else None for part, need in zip(parts, needs, strict=True)], ()

    def hand_on_labels(self, labels: Sequence[Any], ctx: Context) -> Any:
        if self.axis:
            return super().hand_on_labels(labels, ctx)
        return None if any(array is None for array in labels) else np.concatenate(labels)


def cut_beside(axis: int, does: str) -> Cut:
    """Return how workers may cut a layer that joins or slices ``axis``: along any other axis."""
    if axis == 1:
        return Cut(gathered_because=does.format("features"), by_space=True)
    return Cut(Connection.kOneToOne, whole_because="" if axis else does.format("rows"))


def split_at(x: Array, bounds: Sequence[int], axis: int) -> tuple[Array, ...]:
    """Split an array along ``axis`` into views between neighbouring ``bounds``."""
    before = (slice(None),) * axis
    return tuple(x[(*before, slice(start, stop))] for start, stop in pairwise(bounds))


def join(parts: Sequence[Array], axis: int, ops: Ops) -> Array:
    """Concatenate arrays along ``axis``; channels-last images give a channels-last image."""
    axes = parts[0].ndim
    # numpy keeps the order of the strides, except where strides are equal, as with one channel
    rows = [part.transpose(LAST[axes]) for part in parts] if axes in LAST else parts
    axis = SECOND[axes][axis] if axes in LAST else axis
    if is_on_device(parts[0]):
        joined = ops.xp.concatenate(rows, axis=axis)
    else:
        length = sum(part.shape[axis] for part in rows)
        shape = *rows[0].shape[:axis], length, *rows[0].shape[axis + 1 :]
        joined = np.concatenate(rows, axis=axis, out=buffers.empty(shape, dtype=np.result_type(*parts)))
    return joined.transpose(SECOND[axes]) if axes in LAST else joined
