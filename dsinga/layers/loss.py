"""Losses: kSoftmaxLoss (kCudnnSoftmaxLoss), kEuclideanLoss and kSigmoidCrossEntropyLoss.

Gradients are of the mean over the global batch. The metric "loss" is (sum over the rows of this worker, rows), so that
the sums and counts of all workers add up to that mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import EuclideanLossConf, LayerConf, SigmoidCrossEntropyLossConf, SoftmaxLossConf
from dsinga.layers.base import Arrays, Gradients, Layer, Output, Shape, as_text, from_matrix, to_matrix
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.label import check_topk, class_labels
from dsinga.registry import register


@register("layer", "kSoftmaxLoss", "kCudnnSoftmaxLoss")
class SoftmaxLoss(Layer):
    """Softmax cross-entropy, -Σ log max(p[label], FLT_MIN)·scale / B; the feature is the probabilities p, (B, K).

    The first source gives (B, ...), K numbers a row; the second gives labels in [0, K). Metrics: "loss", and
    "accuracy", the share of rows whose label is among the ``topk`` most probable classes.
    """

    source_count: ClassVar[int | None] = 2
    label_source: int | None = 1
    takes_one_label: ClassVar[bool] = True
    is_loss: ClassVar[bool] = True
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    gathered_because = "normalises over all classes of a row"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = conf.softmaxloss_conf or SoftmaxLossConf()
        rows, self.classes = self.source_shapes[0][0], math.prod(self.source_shapes[0][1:])
        self.topk = check_topk(self, settings.topk, self.classes, settings)
        self.scale = settings.scale
        self.shape = (rows, self.classes)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = ctx.ops.asarray(class_labels(self, sources[1], self.classes))
        probabilities, loss, hits = ctx.ops.softmax_loss(to_matrix(sources[0], ctx.ops), labels, self.topk)
        loss = loss if self.scale == 1 else loss * self.scale  # on a device this is a kernel launch
        metrics = {"loss": (loss, len(labels)), "accuracy": (hits, len(labels))}
        return Output(probabilities, saved=labels if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None, None), ()
        dx = ctx.ops.softmax_loss_grad(output.feature, output.saved, self.scale / ctx.rows.total)
        return (from_matrix(dx, sources[0], ctx.ops), None), ()


class PairLoss(Layer):
    """Base of losses that compare two sources whose rows have equal lengths; the feature is (B, n)."""

    source_count: ClassVar[int | None] = 2
    gathered_because = "reports the loss of whole rows"
    is_loss: ClassVar[bool] = True
    metric_names: ClassVar[tuple[str, ...]] = ("loss",)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        first, second = self.source_shapes
        if first[0] != second[0] or math.prod(first) != math.prod(second):
            raise self.fail(
                f"compares {self.source_name(0)}, {as_text(first)}, with {self.source_name(1)}, {as_text(second)}; "
                "give both as many rows, and rows as long",
                field="srclayers",
            )
        self.shape = (first[0], math.prod(first[1:]))


@register("layer", "kEuclideanLoss")
class EuclideanLoss(PairLoss):
    """Squared error, Σ (x - target)²·scale / B over two sources of equal sizes; the feature is x - target, (B, n).

    The gradient is 2(x - target)·scale/B, and its negative for the target. SINGA 0.3 has half of that, which is not
    the derivative of the loss that it reports: a job tuned with SINGA needs half the learning rate, or scale 0.5, here.
    """

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.scale = (conf.euclideanloss_conf or EuclideanLossConf()).scale

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        difference = to_matrix(sources[0], ctx.ops) - to_matrix(sources[1], ctx.ops)
        loss = ctx.ops.channel_sums(difference, difference).sum() * self.scale
        return Output(difference, metrics={"loss": (loss, difference.shape[0])})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        factor = 2 * self.scale / ctx.rows.total
        grads = (
            from_matrix(output.feature * sign, source, ctx.ops) if need else None
            for sign, source, need in zip((factor, -factor), sources, needs, strict=True)
        )
        return tuple(grads), ()


@register("layer", "kSigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(PairLoss):
    """Binary cross-entropy, -Σ (t·log p + (1 - t)·log(1 - p))·scale / B; the feature is p = sigmoid(x), (B, n).

    The first source gives x, the second as many targets t in [0, 1]: several labels of a record, or one, by kLabel.
    It is computed as max(x, 0) - x·t + log(1 + exp(-|x|)), which does not overflow. A negative loss means that targets
    are not in [0, 1], such as labels of more than two classes.
    """

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.scale = (conf.sigmoidcrossentropyloss_conf or SigmoidCrossEntropyLossConf()).scale

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        (x, target), xp = (to_matrix(source, ctx.ops) for source in sources), ctx.ops.xp
        losses = xp.maximum(x, 0) - x * target + xp.log1p(xp.exp(-xp.abs(x)))
        loss = losses.sum(dtype=np.float64) * self.scale
        return Output(ctx.ops.sigmoid(x), metrics={"loss": (loss, x.shape[0])})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        x, target = (to_matrix(source, ctx.ops) for source in sources)
        factor = self.scale / ctx.rows.total
        dx = from_matrix((output.feature - target) * factor, sources[0], ctx.ops) if needs[0] else None
        dtarget = from_matrix(x * -factor, sources[1], ctx.ops) if needs[1] else None
        return (dx, dtarget), ()
