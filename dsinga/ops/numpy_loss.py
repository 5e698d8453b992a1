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

    def softmax_loss_grad(self, p: Array, labels: Array, factor: float) -> Array:
        dx = p * factor
        dx[np.arange(len(labels)), labels] -= factor
        return dx

    def hits(self, scores: Array, labels: Array, topk: int) -> int:
        of_labels = scores[np.arange(len(labels)), labels][:, None]
        later = np.arange(scores.shape[1]) > labels[:, None]
        beaten = ((scores < of_labels) | ((scores == of_labels) & later)).sum(axis=1)
        return int((beaten >= scores.shape[1] - topk).sum())
