"""Metrics of scores beside a loss: kTopKAccuracy, and kPerplexity of probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels, SourceKind
from dsinga.layers.interface.layer import Arrays, Layer, Output, Shape, to_matrix
from dsinga.layers.metrics.composed_metrics import MetricValues, Sums, composed_metric
from dsinga.layers.records.label import check_topk, class_labels
from dsinga.ops.numpy.elementwise import FLT_MIN


@register("layer", kTopKAccuracy=778)
class TopKAccuracy(Layer):
    """Metric "top_5_accuracy": the share of rows whose label is among the ``k`` highest scores; k is in its name.

    The first source gives scores (B, ...), K a row, the second labels in [0, K). Of equal scores the first class
    counts as higher. The feature is the scores.
    """

    class Conf(Settings):
        """Settings of kTopKAccuracy."""

        k: Count = setting(5, "how many of the highest scores of a row count")

    settings: Conf
    source_kind = SourceKind.kVectors
    source_count = 2
    labels = Labels(source=1, per="row")
    is_output = True
    marks_wrong_labels = True
    cut = Cut(gathered_because="ranks all classes of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.classes = math.prod(self.source_shapes[0][1:])
        self.k = check_topk(self, self.settings.k, self.classes, self.settings)
        self.metric_names = (f"top_{self.k}_accuracy",)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = ctx.ops.asarray(class_labels(self, sources[1], self.classes, checked_later=True))
        hits = ctx.ops.hits(to_matrix(sources[0], ctx.ops), labels, self.k)
        return Output(sources[0], metrics={self.metric_names[0]: (hits, len(labels))})


@register("layer", kPerplexity=779)
class Perplexity(Layer):
    """Metric "perplexity", exp(-Σ log p[label] / n) over all n rows, or with ``per_step`` all steps before the end.

    The first source gives probabilities (B, K), as the feature of a kSoftmaxLoss or kSoftmax does, or of the labels
    alone, (B, 1), as that of a kClassSoftmaxLoss; the second labels in [0, K). Probabilities below 1.2e-38 count as
    1.2e-38. The feature is the probabilities.
    """

    source_kind = SourceKind.kVectors
    source_count = 2
    labels = Labels(source=1, per="row")
    is_output = True
    metric_names = ("perplexity",)
    cut = Cut(gathered_because="chooses among all classes of a row")

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        xp, probabilities = ctx.ops.xp, to_matrix(sources[0], ctx.ops)
        classes = probabilities.shape[1]
        labels = class_labels(self, sources[1], classes if classes > 1 else np.iinfo(np.int64).max)
        chosen = ctx.ops.asarray(labels) if classes > 1 else xp.zeros(len(labels), np.int64)
        of_labels = probabilities[xp.arange(len(labels)), chosen]
        if (wrong := of_labels[(of_labels < 0) | (of_labels > 1.001)]).size:
            raise self.fail(
                f"takes probabilities, but {self.source_name(0)} gives {float(wrong[0]):g}; take the feature of the "
                "kSoftmaxLoss, or put a kSoftmax between"
            )
        logs = xp.log(xp.maximum(of_labels, FLT_MIN))
        return Output(sources[0], metrics={"perplexity:logs": (-logs.sum(dtype=np.float64), len(labels))})


@composed_metric("perplexity")
def perplexity(parts: Sums) -> MetricValues:
    """Return the exponential of the mean; nothing without records, infinity beyond the largest float64."""
    total, count = parts["logs"]
    if not count:
        return {}
    mean = float(total) / count
    return {"perplexity": math.exp(mean) if mean < 709 else math.inf}
