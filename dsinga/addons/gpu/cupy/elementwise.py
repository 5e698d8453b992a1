"""Elementwise kernels, softmax, one-hot vectors, embeddings, crops of images and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.addons.gpu.cupy.arrays import aligned, contiguous, dense, empty_like, to_rows
from dsinga.addons.gpu.cupy.library import Source, cupy
from dsinga.addons.gpu.cupy.recording import CupyRecording
from dsinga.ops.interface import Ops
from dsinga.ops.layout import to_image
from dsinga.ops.types import Array, NotCapturable, Pair, RecordedStep

_elementwise, _rows, _lookup = Source("elementwise"), Source("rows"), Source("lookup")
FLT_MIN = float(np.finfo(np.float32).tiny)


def _apply(kernel: str, x: Array, *others: Array, constants: tuple[float, ...] = ()) -> Array:
    if x.flags.c_contiguous:  # asked once: each look at the flags takes as long as a launch's other arguments
        result = cupy.empty(x.shape, x.dtype)
    else:
        x = dense(x)
        result = empty_like(x)
    arguments = [aligned(other, x) for other in others]
    _elementwise.each(kernel, x.dtype, x.size, x, *arguments, result, *[float(number) for number in constants])
    return result


def _method(kernel: str) -> Any:
    return lambda self, *arrays: _apply(kernel, *arrays)


class CupyElementwise(Ops):
    """Activations, sums and products, softmax and the loss on it, dropout masks."""

    sigmoid, sigmoid_grad = _method("sigmoid"), _method("sigmoid_grad")
    gelu, gelu_grad = _method("gelu"), _method("gelu_grad")
    silu, silu_grad = _method("silu"), _method("silu_grad")
    multiply, add = _method("multiply"), _method("add")

    def relu(self, x: Array, slope: float = 0.0) -> Array:
        return _apply("relu", x, constants=(slope,))

    def relu_grad(self, y: Array, dy: Array, slope: float = 0.0) -> Array:
        return _apply("relu_grad", y, dy, constants=(slope,))

    def tanh(self, x: Array, outer: float = 1.0, inner: float = 1.0) -> Array:
        return _apply("tanh_of", x, constants=(outer, inner))

    def tanh_grad(self, y: Array, dy: Array, outer: float = 1.0, inner: float = 1.0) -> Array:
        return _apply("tanh_grad", y, dy, constants=(outer, inner))

    def softmax(self, x: Array) -> Array:
        x = contiguous(x)
        y = empty_like(x)
        _rows.rows("softmax", x.dtype, len(x), x, y, x.shape[1])
        return y

    def softmax_grad(self, y: Array, dy: Array) -> Array:
        y = contiguous(y)
        dx = empty_like(y)
        _rows.rows("softmax_grad", y.dtype, len(y), y, aligned(dy, y), dx, y.shape[1])
        return dx

    def softmax_loss(self, x: Array, labels: Array, topk: int) -> tuple[Array, Any, Any]:
        p = self.softmax(x)
        sums = self.label_losses(p, labels, topk).sum(axis=1)
        return p, sums[0], sums[1]

    def label_losses(self, p: Array, labels: Array, topk: int) -> Array:
        """Compute the loss and the hit of each row of p (n, K), as (2, n) float64."""
        rows = cupy.empty((2, len(p)), np.float64)
        _rows.rows("label_loss", p.dtype, len(p), p, int64(labels), rows[0], rows[1], FLT_MIN, int(topk), p.shape[1])
        return rows

    def softmax_loss_grad(self, p: Array, labels: Array, factor: float, smoothing: float = 0.0) -> Array:
        p = contiguous(p)
        dx, target = empty_like(p), (1.0 - smoothing, smoothing / p.shape[1])
        _rows.each("label_loss_grad", p.dtype, p.size, p, int64(labels), dx, float(factor), *target, p.shape[1])
        return dx

    def hits(self, scores: Array, labels: Array, topk: int) -> Any:
        scores = contiguous(scores)
        hits, sizes = cupy.empty(len(scores), np.float64), (int(topk), scores.shape[1])
        _rows.rows("label_loss", scores.dtype, len(scores), scores, int64(labels), None, hits, FLT_MIN, *sizes)
        return hits.sum()

    def bernoulli(self, p: Array, uniform: Array) -> Array:
        p = contiguous(p)
        y = empty_like(p)
        _lookup.each("bernoulli", p.dtype, p.size, p, contiguous(cupy.asarray(uniform, np.float32)), y)
        return y

    def dropout_mask(self, uniform: Array, ratio: float) -> Array:
        uniform = contiguous(cupy.asarray(uniform, np.float32))
        mask = empty_like(uniform)
        _lookup.each("dropout_mask", mask.dtype, mask.size, uniform, mask, float(ratio), 1 / (1 - ratio))
        return mask


def int64(numbers: Any) -> Array:
    """Copy integers of host or device to C-contiguous int64 on the device."""
    return contiguous(cupy.asarray(numbers, np.int64))


class CupyLookup(CupyRecording):
    """One-hot vectors, embeddings, crops, uniform numbers.

    Codes beyond the last give NaN, because a recorded pass cannot check them in host memory.
    """

    def one_hot(self, codes: Array, size: int) -> Array:
        codes = int64(codes)
        vectors = cupy.empty((*codes.shape, size), np.float32)
        _lookup.each("one_hot", vectors.dtype, vectors.size, codes, vectors, size)
        return vectors

    def embedding(self, table: Array, codes: Array) -> Array:
        table, codes = contiguous(table), int64(codes)
        vectors = cupy.empty((*codes.shape, table.shape[1]), table.dtype)
        _lookup.each("embedding", table.dtype, vectors.size, table, codes, vectors, *table.shape)
        return vectors

    def embedding_grad(self, codes: Array, dy: Array) -> tuple[Array, Array]:
        """Sum the gradients of each distinct row; the host waits for their number, the result's size."""
        if self.is_recording:
            raise NotCapturable("the gradient of an embedding has as many rows as there are different codes")
        flat, dy = int64(codes).reshape(-1), contiguous(dy).reshape(-1, dy.shape[-1])
        if not flat.size:
            return flat, dy
        order = cupy.argsort(flat)  # CuPy's sort is stable, so rows are added in their order in the batch
        ordered = flat[order]
        begins = ordered >= 0
        begins[1:] &= ordered[1:] != ordered[:-1]
        starts = cupy.flatnonzero(begins)
        values = cupy.empty((starts.size, dy.shape[1]), dy.dtype)
        sizes = starts.size, flat.size, dy.shape[1]
        _lookup.rows("segment_sums", dy.dtype, starts.size, dy, order, starts, values, *sizes)
        return ordered[starts], values

    def uniform(self, key: tuple[int, int], first: int, step: int, rows: int, columns: int) -> Array:
        numbers, blocks = cupy.empty((rows, columns), np.float32), -(-columns // 8)
        keys = (int(np.uint64(part).view(np.int64)) for part in key)
        block = self.block if isinstance(step, RecordedStep) else None  # another step is the same in each pass
        steps = (None, step) if block is None else (block.step, 0)
        _lookup.each("philox", numbers.dtype, rows * blocks, numbers, *keys, first, *steps, blocks, columns)
        return numbers

    def crop(
        self, images: Array, tops: Sequence[int], lefts: Sequence[int], mirrored: Sequence[bool], size: Pair, pad: int
    ) -> Array:
        rows = to_rows(images)
        batch, height, width, channels = rows.shape
        padded = cupy.zeros((batch, height + 2 * pad, width + 2 * pad, channels), images.dtype)
        padded[:, pad : pad + height, pad : pad + width] = rows
        xp = cupy if isinstance(tops, cupy.ndarray) else np
        across = xp.arange(size[1])
        flipped = xp.asarray(mirrored, bool)[:, None]
        columns = xp.asarray(lefts, np.int64)[:, None] + xp.where(flipped, size[1] - 1 - across, across)
        down = xp.asarray(tops, np.int64)[:, None] + xp.arange(size[0])
        row, column = cupy.asarray(down)[:, :, None], cupy.asarray(columns)[:, None, :]
        return to_image(padded[cupy.arange(batch)[:, None, None], row, column])

    def read(self, numbers: Sequence[Any]) -> list[float]:
        """Return numbers of device (copied together, after waiting) and host as floats."""
        if self.is_recording:
            raise NotCapturable("the host reads numbers of the device")
        arrays = [number.astype(np.float64, copy=False) for number in numbers if isinstance(number, cupy.ndarray)]
        copies = iter(cupy.stack(arrays).get().tolist() if arrays else ())
        return [next(copies) if isinstance(number, cupy.ndarray) else float(number) for number in numbers]
