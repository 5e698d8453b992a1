"""Linear-chain conditional random fields, by one launch for all steps, with a block for each sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.ops.cupy.channels import column_sums
from dsinga.ops.cupy.elementwise import int64
from dsinga.ops.cupy.kernels import Source
from dsinga.ops.cupy.library import cupy
from dsinga.ops.interface import Ops
from dsinga.ops.types import Array

_crf = Source("crf")


class CupyCRF(Ops):
    """The forward algorithm in log space, its derivative by smoothing backwards, and Viterbi's algorithm."""

    def crf(self, x: Array, tags: Array, transitions: Array, start: Array, train: bool) -> tuple[Array, Any]:
        x, transitions, start = (cupy.ascontiguousarray(array, x.dtype) for array in (x, transitions, start))
        batch = len(x)
        forward, log_sums, loss = cupy.empty_like(x), cupy.empty(batch, x.dtype), cupy.empty(batch, x.dtype)
        _launch("crf", x, int64(tags), transitions, start, forward, log_sums, loss)
        return loss, (forward, log_sums) if train else None

    def crf_grad(
        self, x: Array, tags: Array, transitions: Array, start: Array, workspace: Any
    ) -> tuple[Array, Array, Array]:
        x, transitions = (cupy.ascontiguousarray(array, x.dtype) for array in (x, transitions))
        (batch, _, count), (forward, log_sums) = x.shape, workspace
        dx, counts = cupy.empty_like(x), cupy.empty((batch, count * count), x.dtype)
        _launch("crf_grad", x, int64(tags), transitions, forward, log_sums, dx, counts)
        first = cupy.ascontiguousarray(dx[:, :1].reshape(batch, count))  # the starts have the gradients of first tags
        return dx, column_sums(counts, rounded=x.dtype).reshape(count, count), column_sums(first, rounded=x.dtype)

    def crf_decode(self, x: Array, lengths: Array, transitions: Array, start: Array) -> Array:
        x, transitions, start = (cupy.ascontiguousarray(array, x.dtype) for array in (x, transitions, start))
        best_before, tags = cupy.empty(x.shape, np.int32), cupy.empty(x.shape[:2], np.int64)
        _launch("crf_decode", x, int64(lengths), transitions, start, best_before, tags)
        return tags


def _launch(kernel: str, x: Array, *arguments: Array) -> None:
    """Run a kernel on x (B, T, K) with two numbers of shared memory for each tag."""
    batch, steps, count = x.shape
    _crf.rows(kernel, x.dtype, batch, x, *arguments, steps, count, shared=2 * count * x.itemsize)
