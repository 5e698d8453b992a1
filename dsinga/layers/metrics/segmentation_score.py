"""The layer kSegmentationScore: how far regions of predicted classes overlap with those of the labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.layer import Arrays, Layer, Output, Shape
from dsinga.layers.interface.region import Region
from dsinga.layers.losses.point_classes import WEIGHTED, PointClasses
from dsinga.layers.metrics.composed_metrics import MetricValues, Sums, composed_metric
from dsinga.layers.metrics.metric_state import ArraySum


@register("layer", kSegmentationScore=823)
class SegmentationScore(PointClasses):
    """Metrics "mean_iou", "dice" and "pixel_accuracy" of the most probable class of each point, from exact counts.

    The first source gives scores or probabilities (B, K, *space), the second labels as kFieldSoftmaxLoss takes them.
    With h right points of a class, p predicted and t labelled ones, over all records of a test, its IoU (Jaccard index)
    is h / (p + t - h), its Dice score, which is F1, 2h / (p + t). "mean_iou" and "dice" are means over the classes that
    occur among labels or predictions, as in Keras' MeanIoU; tests also give "iou_by_class" and "dice_by_class".
    Pixel accuracy is Σ h / Σ t. Masked points are not counted; with ``weighted`` a point counts by its weight. One
    channel is the probability of class 1 of two, which is predicted above 0.5. The feature is the predicted classes,
    (B, *space) int64.
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


@composed_metric("segmentation")
def overlaps(parts: Sums) -> MetricValues:
    """Return the overlaps of all classes and of each; nothing without points."""
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
