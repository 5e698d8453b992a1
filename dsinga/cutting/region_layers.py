"""Layers of nets cut by space: RegionSlice hands out overlapping boxes of a field, RegionJoin assembles them.

A worker has them if it needs points of its neighbours (a halo), and between a cut by space and another cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dsinga.cutting.point_runs import PointRun
from dsinga.job import LayerConf
from dsinga.layers.interface.context import Context
from dsinga.layers.interface.declarations import Bfloat16
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.interface.region import FILL, along
from dsinga.ops.types import FLOAT32

Index = tuple[slice, ...]


class RegionSlice(Layer):
    """Gives each destination a box of its source, as a view, and adds up the gradients of the boxes."""

    source_count = 1
    bf16 = Bfloat16.kFeatures

    def __init__(self, conf: LayerConf, shape: Shape, boxes: Sequence[Index]):
        super().__init__(conf, [shape])
        self.boxes = tuple(boxes)
        self.part_shapes = tuple(box_shape(shape, box) for box in boxes)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(tuple(sources[0][box] for box in self.boxes))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        x, ops = sources[0], ctx.ops
        parts = [(box, ops.to_float32(part)) for box, part in zip(self.boxes, grad, strict=True) if part is not None]
        dx = ops.empty(x.shape, parts[0][1].dtype if parts else x.dtype)
        largest = next((k for k, (_, part) in enumerate(parts) if part.shape == x.shape), None)
        dx[...] = 0 if largest is None else parts.pop(largest)[1]
        for box, part in parts:
            target = dx[box]
            target += part
        return (ops.cast_like(dx, x),), ()


class Piece(NamedTuple):
    """A block of an array from one worker: its shape, and the places that it fills, by axis."""

    shape: Shape
    runs: tuple[PointRun, ...]


class RegionJoin(Layer):
    """Assembles an array from blocks of several workers (``pieces``), with padding ``fill``."""

    bf16 = Bfloat16.kFeatures

    def __init__(
        self,
        conf: LayerConf,
        shape: Shape,
        axes: Sequence[int],
        pieces: Sequence[Piece],
        padding: Sequence[tuple[int, PointRun]],
        fill: float,
    ):
        super().__init__(conf, [piece.shape for piece in pieces])
        self.shape, self.axes, self.pieces, self.fill = shape, tuple(axes), tuple(pieces), fill
        self.padding = tuple((along(axis, run.target), run.length) for axis, run in padding)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        y = ctx.ops.empty(self.shape, sources[0].dtype if sources else FLOAT32)  # no sources: padding alone
        for index, _ in self.padding:
            y[index] = self.fill
        for piece, source in zip(self.pieces, sources, strict=True):
            y[self._target(piece)] = source
        return Output(y)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return [
            self._gradient(piece, grad, ctx) if need else None for piece, need in zip(self.pieces, needs, strict=True)
        ], ()

    def _gradient(self, piece: Piece, grad: Array, ctx: Context) -> Array:
        part = grad[self._target(piece)]
        repeated = tuple(axis for axis, run in zip(self.axes, piece.runs, strict=True) if run.step == 0)
        return ctx.ops.cast_like(ctx.ops.to_float32(part).sum(axis=repeated, keepdims=True), grad) if repeated else part

    def _target(self, piece: Piece) -> Index:
        index = [slice(None)] * len(self.shape)
        for axis, run in zip(self.axes, piece.runs, strict=True):
            index[axis] = run.target
        return tuple(index)


def box_shape(shape: Shape, box: Index) -> Shape:
    """Return the shape of a box of an array of ``shape``."""
    sizes = (len(range(*part.indices(size))) for size, part in zip(shape, box, strict=False))
    return (*sizes, *shape[len(box) :])


def padding_runs(axes: Sequence[int], needs: Sequence[Sequence[PointRun]]) -> list[tuple[int, PointRun]]:
    """Return the runs that are padding, with their axes."""
    return [(axis, run) for axis, runs in zip(axes, needs, strict=True) for run in runs if run.start == FILL]
