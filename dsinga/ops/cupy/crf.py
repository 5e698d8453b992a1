"""Linear-chain conditional random fields: one launch for all steps of all sequences, a block for each sequence."""

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
        x, transitions, start = (cupy.ascontiguousarray(one, x.dtype) for one in (x, transitions, start))
        batch = len(x)
        forward, every, loss = cupy.empty_like(x), cupy.empty(batch, x.dtype), cupy.empty(batch, x.dtype)
        _launch("crf", x, int64(tags), transitions, start, forward, every, loss)
        return loss, (forward, every) if train else None

    def crf_grad(
        self, x: Array, tags: Array, transitions: Array, start: Array, workspace: Any
    ) -> tuple[Array, Array, Array]:
        x, transitions = (cupy.ascontiguousarray(one, x.dtype) for one in (x, transitions))
        (batch, _, count), (forward, every) = x.shape, workspace
        dx, counts = cupy.empty_like(x), cupy.empty((batch, count * count), x.dtype)
        _launch("crf_grad", x, int64(tags), transitions, forward, every, dx, counts)
        first = cupy.ascontiguousarray(dx[:, :1].reshape(batch, count))  # a start is used wherever a first tag is
        return dx, column_sums(counts, rounded=x.dtype).reshape(count, count), column_sums(first, rounded=x.dtype)

    def crf_decode(self, x: Array, lengths: Array, transitions: Array, start: Array) -> Array:
        x, transitions, start = (cupy.ascontiguousarray(one, x.dtype) for one in (x, transitions, start))
        came, tags = cupy.empty(x.shape, np.int32), cupy.empty(x.shape[:2], np.int64)
        _launch("crf_decode", x, int64(lengths), transitions, start, came, tags)
        return tags


def _launch(kernel: str, x: Array, *arguments: Array) -> None:
    """Run a kernel on x (B, T, K), with two numbers of shared memory for each tag."""
    batch, steps, count = x.shape
    _crf.rows(kernel, x.dtype, batch, x, *arguments, steps, count, shared=2 * count * x.itemsize)
