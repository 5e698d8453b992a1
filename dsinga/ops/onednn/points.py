"""Softmax of the points of fields by oneDNN, or by numpy for few classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsinga.ops.layout import by_channel, is_channels_last, point_blocks
from dsinga.ops.numpy.points import Block, NumpyPoints, by_class, classes_first, softmax_by_class
from dsinga.ops.onednn.choices import choose_kernel
from dsinga.ops.onednn.elementwise import MatrixSoftmax
from dsinga.ops.onednn.primitive import accepts
from dsinga.ops.types import Array


class PointSoftmax(MatrixSoftmax):
    """The blocks of the softmax over the channels of channels-last fields, with so many points and classes."""

    def __call__(self, *arrays: Array) -> Iterator[Block]:
        x, p = arrays
        self.run(by_channel(x), by_channel(p))
        result = by_class(p)
        for rows, points in point_blocks(result.shape):
            yield rows, points, classes_first(result[rows, :, points])


class SoftmaxByClass:
    """The same by numpy, for few classes."""

    def __init__(self, points: int, classes: int):
        pass

    def __call__(self, x: Array, p: Array) -> Iterator[Block]:
        return softmax_by_class(x, p)


class OnednnPoints(NumpyPoints):
    """Softmax of the points of fields by the library."""

    def softmax_blocks(self, x: Array, p: Array) -> Iterator[Block]:
        kernel: Any = None
        if is_channels_last(x) and accepts(x):
            kernel = choose_kernel("point_softmax", PointSoftmax, x.size // x.shape[1], x.shape[1])
        return kernel(x, p) if kernel else super().softmax_blocks(x, p)
