"""Cross-entropy of a softmax, its gradient, and hits, in plain numpy."""

from __future__ import annotations

import numpy as np

from dsinga.ops.interface import Ops
from dsinga.ops.types import Array

FLT_MIN = float(np.finfo(np.float32).tiny)


class NumpyLoss(Ops):
    """Softmax with cross-entropy; a subclass may have a faster softmax."""

    def softmax_loss(self, x: Array, labels: Array, topk: int) -> tuple[Array, float, int]:
        p = self.softmax(x)
        of_labels = p[np.arange(len(labels)), labels]
        loss = -float(np.log(np.maximum(of_labels, FLT_MIN)).sum(dtype=np.float64))
        return p, loss, self.hits(p, labels, topk)

    def softmax_loss_grad(self, p: Array, labels: Array, factor: float, smoothing: float = 0.0) -> Array:
        dx = self.scale_and_shift(p, factor, -factor * smoothing / p.shape[1])
        dx[np.arange(len(labels)), labels] -= factor * (1 - smoothing)
        return dx

    def scale_and_shift(self, x: Array, factor: float, shift: float) -> Array:
        """Return x·factor + shift as a new array."""
        y = x * factor
        if shift:
            y += shift
        return y

    def hits(self, scores: Array, labels: Array, topk: int) -> int:
        of_labels = scores[np.arange(len(labels)), labels][:, None]
        if topk == 1 < scores.shape[1]:  # the first of the highest; NaN is no hit
            return int(((scores.argmax(axis=1) == labels) & ~np.isnan(of_labels[:, 0])).sum())
        later = np.arange(scores.shape[1]) > labels[:, None]
        beaten = ((scores < of_labels) | ((scores == of_labels) & later)).sum(axis=1)
        return int((beaten >= scores.shape[1] - topk).sum())
