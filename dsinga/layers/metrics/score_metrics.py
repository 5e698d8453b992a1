"""Metrics of scores: kTopKAccuracy, kPerplexity of probabilities, and kSegmentationScore of fields."""

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
from dsinga.layers.interface.region import Region
from dsinga.layers.losses.point_classes import WEIGHTED, PointClasses
from dsinga.layers.metrics.composed_metrics import MetricValues, Sums
from dsinga.layers.metrics.metric_state import ArraySum
from dsinga.layers.records.label import class_labels
from dsinga.ops.numpy.elementwise import FLT_MIN


@register("layer", kTopKAccuracy=778)
class TopKAccuracy(Layer):
    """Metric "top_5_accuracy": the share of rows with their label among the ``k`` highest scores; k is in the name.

    The sources give scores (B, ...), K a row, and labels in [0, K). Of equal scores the first class counts as higher.
    The feature is the scores.
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
        self.k = self.expect_setting("k", 1, self.classes, f"there are {self.classes} classes")
        self.metric_names = (f"top_{self.k}_accuracy",)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = ctx.ops.asarray(class_labels(self, sources[1], self.classes, checked_later=True))
        hits = ctx.ops.hits(to_matrix(sources[0], ctx.ops), labels, self.k)
        return Output(sources[0], metrics={self.metric_names[0]: (hits, len(labels))})


@register("layer", kPerplexity=779)
class Perplexity(Layer):
    """Metric "perplexity", exp(-Σ log p[label] / n) over all n rows, or with ``per_step`` all steps before the end.

    The sources give probabilities, (B, K) from a kSoftmaxLoss or kSoftmax, or the labels' (B, 1) from a
    kClassSoftmaxLoss, and labels in [0, K). The feature is the probabilities.
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


@register("composed_metric", "perplexity")
def perplexity(parts: Sums) -> MetricValues:
    """Compute the perplexity from summed log probabilities; nothing without records."""
    total, count = parts["logs"]
    if not count:
        return {}
    mean = float(total) / count
    return {"perplexity": math.exp(mean) if mean < 709 else math.inf}


@register("layer", kSegmentationScore=823)
class SegmentationScore(PointClasses):
    """Metrics "mean_iou", "dice" and "pixel_accuracy" of the most probable class of each point, from exact counts.

    The sources give scores or probabilities (B, K, *space), and labels as for kFieldSoftmaxLoss. A class has h right, p
    predicted and t labelled points in all records of a test. Its IoU (Jaccard index) is h / (p + t - h), and its Dice
    score (F1) is 2h / (p + t). "mean_iou" and "dice" are means over the classes that occur among labels or predictions,
    as in Keras's MeanIoU. Tests also give "iou_by_class" and "dice_by_class". Pixel accuracy is Σ h / Σ t.

    Masked points do not count. With ``weighted`` a point counts by its weight. One channel is the probability of class
    1 of two, which is predicted above 0.5. The feature is the predicted classes, (B, *space) int64.
    """

    class Conf(Settings):
        """Settings of kSegmentationScore."""

        weighted: bool = setting(False, WEIGHTED)

    settings: Conf
    is_output = True
    metric_names = ("mean_iou", "dice", "pixel_accuracy")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = (self.shape[0], *self.space)

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        part = super().region_part(region, source_shapes)
        part.shape = (part.shape[0], *part.field_shape[2:])
        return part

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels, weights = self.point_labels(sources[1], ctx)
        scores = self.by_class(sources[0])
        chosen = ctx.ops.highest_channel(scores) if self.channels > 1 else scores[:, 0] > 0.5
        predictions = ctx.ops.to_numpy(chosen).astype(np.int64)
        pairs, weights = (labels * self.count + predictions).ravel(), None if weights is None else weights.ravel()
        table = np.bincount(pairs, weights, self.count**2).reshape(self.count, self.count)
        counts = np.stack([table.diagonal(), table.sum(axis=0), table.sum(axis=1)]).astype(np.float64)
        metrics = {"segmentation:counts": (ArraySum(counts), self.counted_rows(len(scores)))}
        return Output(predictions.reshape(len(scores), *self.shape[1:]), metrics=metrics)


@register("composed_metric", "segmentation")
def overlaps(parts: Sums) -> MetricValues:
    """Compute IoU, Dice score and pixel accuracy from counts by class; nothing without points."""
    hits, predicted, labelled = parts["counts"][0].sums
    present = predicted + labelled > 0
    if not present.any():
        return {}
    both = np.where(present, predicted + labelled, 1)
    iou, dice = hits / np.where(present, predicted + labelled - hits, 1), 2 * hits / both
    return {
        "mean_iou": float(iou[present].mean()),
        "dice": float(dice[present].mean()),
        "pixel_accuracy": float(hits.sum() / labelled.sum()),
        "iou_by_class": iou.tolist(),
        "dice_by_class": dice.tolist(),
    }
