"""Pooling in plain numpy, by one pass over the image for each position in the window."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.ops.interface import Ops
from dsinga.ops.layout import crop_rows, output_sizes, pad_rows, taps, to_image, to_rows
from dsinga.ops.types import Array, Pair


class NumpyPooling(Ops):
    """Maximum and mean over windows; pads are smaller than kernels, so that every window overlaps the image."""

    def max_pool(self, x: Array, kernel: Pair, stride: Pair, pad: Pair, train: bool) -> tuple[Array, Any]:
        outputs = output_sizes(x.shape, kernel, stride, pad)
        first, *others = taps(pad_rows(to_rows(x), pad, -np.inf), kernel, stride, outputs)
        best = first.copy()
        for tap in others:
            np.maximum(best, tap, out=best)
        return to_image(best), best if train else None

    def max_pool_grad(self, x: Array, workspace: Any, dy: Array, kernel: Pair, stride: Pair, pad: Pair) -> Array:
        padded, views = _gradient(x, dy, kernel, stride, pad)
        sources = taps(pad_rows(to_rows(x), pad, -np.inf), kernel, stride, dy.shape[2:])
        rows, best = to_rows(dy), workspace
        pending = np.ones(best.shape, bool)  # windows without a maximum so far: the first of equals gets the gradient
        for source, tap in zip(sources, views, strict=True):
            winner = (source == best) & pending
            pending ^= winner
            tap += rows * winner
        return to_image(np.ascontiguousarray(crop_rows(padded, pad)))

    def avg_pool(self, x: Array, kernel: Pair, stride: Pair, pad: Pair) -> Array:
        outputs = output_sizes(x.shape, kernel, stride, pad)
        total = np.zeros((x.shape[0], *outputs, x.shape[1]), x.dtype)
        for tap in taps(pad_rows(to_rows(x), pad), kernel, stride, outputs):
            total += tap
        total *= 1 / (kernel[0] * kernel[1])
        return to_image(total)

    def avg_pool_grad(self, x: Array, dy: Array, kernel: Pair, stride: Pair, pad: Pair) -> Array:
        padded, views = _gradient(x, dy, kernel, stride, pad)
        share = to_rows(dy) * (1 / (kernel[0] * kernel[1]))
        for tap in views:
            tap += share
        return to_image(np.ascontiguousarray(crop_rows(padded, pad)))


def _gradient(x: Array, dy: Array, kernel: Pair, stride: Pair, pad: Pair) -> tuple[Array, list[Array]]:
    """Return zeros for the padded gradient of x, and its views to which windows add."""
    batch, channels, height, width = x.shape
    padded = np.zeros((batch, height + 2 * pad[0], width + 2 * pad[1], channels), dy.dtype)
    return padded, taps(padded, kernel, stride, dy.shape[2:])
