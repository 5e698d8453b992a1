"""The confusion matrix, kConfusionMatrix: counts of records by true and predicted class, and the F1 of all classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dsinga.job import LayerConf
from dsinga.layers.base import Arrays, Layer, Output, Shape, to_matrix
from dsinga.layers.composed_metrics import Figures, Sums, composed_metric
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.label import class_labels
from dsinga.registry import register


@register("layer", "kConfusionMatrix")
class ConfusionMatrix(Layer):
    """Metric "confusion": K rows of K counts, by true class and by the class with the highest score.

    The first source gives K scores a row, (B, ...), the second labels in [0, K). Of the table follow the metrics
    "macro_precision", "macro_recall" and "macro_f1": means over the classes that occur among labels or predictions,
    with 0 for a class that is never predicted, or never a label. The feature is the predicted class, (B,) int64.
    """

    source_count: ClassVar[int | None] = 2
    label_source: int | None = 1
    takes_one_label: ClassVar[bool] = True
    is_output = True
    metric_names: ClassVar[tuple[str, ...]] = ("macro_precision", "macro_recall", "macro_f1")
    gathered_because = "chooses among all classes of a row"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.classes = math.prod(self.source_shapes[0][1:])
        self.shape = self.source_shapes[0][:1]

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = class_labels(self, sources[1], self.classes)
        predictions = ctx.ops.to_numpy(to_matrix(sources[0], ctx.ops)).argmax(axis=1)
        cells, counts = np.unique(np.stack([labels, predictions]), axis=1, return_counts=True)
        counted = zip(*cells, counts, strict=True)
        parts = {f"confusion:{row},{column}": (int(count), 0) for row, column, count in counted}
        size = {f"confusion:{self.classes - 1},{self.classes - 1}": (0, 0)}  # the last cell says how many classes
        return Output(predictions, metrics=size | parts)


@composed_metric("confusion")
def class_figures(parts: Sums) -> Figures:
    """Return the table of counts, and precision, recall and F1 as means over classes."""
    cells = {tuple(map(int, part.split(","))): int(total) for part, (total, _) in parts.items()}
    table = np.zeros([1 + max(max(cell) for cell in cells)] * 2, np.int64)
    for cell, count in cells.items():
        table[cell] = count
    hits, labels, predictions = table.diagonal(), table.sum(axis=1), table.sum(axis=0)
    present = labels + predictions > 0
    ratios = {
        "macro_precision": (hits, predictions),
        "macro_recall": (hits, labels),
        "macro_f1": (2 * hits, labels + predictions),
    }
    means = {name: float((part / np.maximum(whole, 1))[present].mean()) for name, (part, whole) in ratios.items()}
    return {**means, "confusion": table.tolist()}
