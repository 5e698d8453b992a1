"""Softmax over the channels of fields and its loss: the kernels of matrices, on a row for each point."""

from __future__ import annotations

from typing import Any

from dsinga.ops.cupy.arrays import by_channel, from_channel_rows
from dsinga.ops.cupy.elementwise import CupyElementwise
from dsinga.ops.types import Array


class CupyPoints(CupyElementwise):
    """Softmax and cross-entropy of the points of fields; results are channels-last."""

    def point_softmax(self, x: Array) -> Array:
        return from_channel_rows(self.softmax(by_channel(x)), x.shape)

    def point_softmax_loss(self, x: Array, labels: Array, weights: Array | None = None) -> tuple[Array, Any, Any]:
        p = self.softmax(by_channel(x))
        rows = self.label_losses(p, labels.reshape(-1), 1)
        if weights is not None:
            rows *= weights.reshape(-1)
        sums = rows.sum(axis=1)
        return from_channel_rows(p, x.shape), sums[0], sums[1]

    def point_softmax_loss_grad(self, p: Array, labels: Array, weights: Array | None, factor: float) -> Array:
        dx = self.softmax_loss_grad(by_channel(p), labels.reshape(-1), factor)
        if weights is not None:
            dx *= weights.reshape(-1, 1).astype(dx.dtype, copy=False)
        return from_channel_rows(dx, p.shape)

    def highest_channel(self, x: Array) -> Array:
        return x.argmax(axis=1)
