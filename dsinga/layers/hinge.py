"""kHingeLoss: the multi-class hinge loss of support vector machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import HingeNorm, LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count, NonNegative, Positive
from dsinga.layers.base import Array, Arrays, Gradients, Layer, Output, Shape, from_matrix, to_matrix
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.declarations import Cut, Labels, SourceKind
from dsinga.layers.label import check_topk, class_labels
from dsinga.ops import Ops
from dsinga.registry import register


@register("layer", kHingeLoss=731)
class HingeLoss(Layer):
    """Hinge loss, Σ max(0, margin - x[label] + x[k])^p·scale / B over the classes k other than the label.

    Weston and Watkins, Support Vector Machines for Multi-Class Pattern Recognition (1999); p is 1 with ``norm`` L1,
    2 with L2. The first source gives (B, ...), K scores a row; the second labels in [0, K). The feature is the scores,
    (B, K). Metrics: "loss", and "accuracy", the share of rows whose label is among the ``topk`` highest.
    """

    source_kind = SourceKind.kVectors

    class Conf(Settings):
        """Settings of kHingeLoss."""

        norm: HingeNorm = setting(HingeNorm.L1, "whether violations of the margin are summed, or their squares")
        margin: Positive = setting(1.0, "by how much the label's score should be above the others")
        topk: Count = setting(1, "a prediction counts as right if the label is among so many highest scores")
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Conf
    source_count: ClassVar[int | None] = 2
    labels = Labels(source=1, per="row")
    is_loss: ClassVar[bool] = True
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    cut = Cut(gathered_because="compares the classes of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        rows, self.classes = self.source_shapes[0][0], math.prod(self.source_shapes[0][1:])
        self.topk = check_topk(self, settings.topk, self.classes, settings)
        self.squared, self.margin, self.scale = settings.norm is HingeNorm.L2, settings.margin, settings.scale
        self.shape = (rows, self.classes)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        scores, ops = to_matrix(sources[0], ctx.ops), ctx.ops
        labels = ops.asarray(class_labels(self, sources[1], self.classes))
        violation, rows = self._violations(scores, labels, ops), len(labels)
        loss = (violation * violation if self.squared else violation).sum(dtype=np.float64) * self.scale
        metrics = {"loss": (loss, rows), "accuracy": (ops.hits(scores, labels, self.topk), rows)}
        return Output(scores, saved=(violation, labels) if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None, None), ()
        violation, labels = output.saved
        slope = 2 * violation if self.squared else (violation > 0).astype(violation.dtype)
        dx = slope * (self.scale / ctx.rows.total)
        dx[ctx.ops.xp.arange(len(labels)), labels] = -dx.sum(axis=1)
        return (from_matrix(dx, sources[0], ctx.ops), None), ()

    def _violations(self, x: Array, labels: Array, ops: Ops) -> Array:
        """Return by how much each class violates its margin to the label's score, (B, K); 0 for the label itself."""
        rows = ops.xp.arange(len(labels))
        violation = ops.xp.maximum(x - x[rows, labels][:, None] + self.margin, 0)
        violation[rows, labels] = 0
        return violation
