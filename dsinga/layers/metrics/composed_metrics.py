"""Metrics that are not means over rows, such as R² and F1, and the layers kConfusionMatrix and kRegressionError.

A layer reports the parts of a metric ``r2`` under names such as ``r2:moments``, each as (sum, count). The figure is
computed once, from the sums over all records.

Register the function by ``@register("composed_metric", "r2")``. It maps {part name: (sum, count)} to values by name:
numbers, or a table as a list of lists, which histories leave out. A sum may be a
:class:`dsinga.layers.metrics.metric_state.MetricState`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import find, lookup, register
from dsinga.job import LayerConf
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels
from dsinga.layers.interface.layer import Arrays, Layer, Output, Shape, to_matrix
from dsinga.layers.metrics.metric_state import ArraySum, RunningMoments
from dsinga.layers.records.label import class_labels, required_labels

Sums = Mapping[str, tuple[Any, float]]
MetricValues = Mapping[str, Any]


def metric_values(sums: Sums) -> dict[str, Any]:
    """Compute the value of each metric from its sums and counts, by division or by a composed metric's function.

    A name may start with a layer, as in ``layer/r2:moments``. Metrics with a count of 0 are left out.
    """
    means: dict[str, Any] = {}
    parts: dict[str, dict[str, tuple[float, float]]] = {}
    for name, (total, count) in sums.items():
        metric, colon, part = name.partition(":")
        if colon and find("composed_metric", metric.rpartition("/")[2]):
            parts.setdefault(metric, {})[part] = total, count
        elif count:
            means[name] = total / count
    for metric, values in parts.items():
        layer, slash, name = metric.rpartition("/")
        means |= {f"{layer}{slash}{figure}": value for figure, value in lookup("composed_metric", name)(values).items()}
    return means


def errors_of(sums: np.ndarray) -> MetricValues:
    """Compute "rmse", "mae" and "bias", each (C,), from sums (5 or more, C) float64.

    The sums are Σ w, the number of points, Σ w·e, Σ w·e² and Σ w·|e|; e is prediction - label. A figure is NaN if Σ w
    is 0.
    """
    weights, _, errors, squares, absolute = sums[:5]
    total = np.where(weights > 0, weights, np.nan)
    return {"rmse": np.sqrt(squares / total), "mae": absolute / total, "bias": errors / total}


@register("composed_metric", "errors")
def error_metrics(parts: Sums) -> MetricValues:
    """Compute "rmse" and "mae" of all records from summed errors; nothing without records."""
    sums, count = parts["sums"]
    if not count:
        return {}
    by_name = errors_of(sums.sums[:, None])
    return {name: float(by_name[name][0]) for name in ("mae", "rmse")}


@register("layer", kConfusionMatrix=751)
class ConfusionMatrix(Layer):
    """Metric "confusion": K rows of K counts, by true class and by the class with the highest score.

    The sources give K scores a row, (B, ...), and labels in [0, K), integers or whole floats. One score a row, (B, 1),
    is the probability of class 1 of two, which is predicted above 0.5. The feature is the predicted class, (B,) int64.
    These metrics come from the counts:

    - "macro_precision", "macro_recall", "macro_f1": means over the classes that occur among labels or predictions. A
      class that is never predicted, or never a label, counts as 0.
    - "mcc": Matthews' correlation of two or several classes.
    - "precision", "recall", "f1", for two classes: the figures of class 1.
    - "f1_by_class" and so on, in tests: the figures of each class.
    """

    source_count = 2
    labels = Labels(source=1, per="row", floats=True)
    is_output = True
    metric_names: tuple[str, ...] = ("macro_precision", "macro_recall", "macro_f1", "mcc")
    cut = Cut(gathered_because="chooses among all classes of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.classes = max(2, math.prod(self.source_shapes[0][1:]))
        self.shape = self.source_shapes[0][:1]
        if self.classes == 2:
            self.metric_names = (*self.metric_names, "precision", "recall", "f1")

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = class_labels(self, self._whole(required_labels(self, sources[1])), self.classes)
        scores = ctx.ops.to_numpy(to_matrix(sources[0], ctx.ops))
        predictions = scores.argmax(axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0.5).astype(np.int64)
        cells, counts = np.unique(np.stack([labels, predictions]), axis=1, return_counts=True)
        counted = zip(*cells, counts, strict=True)
        parts = {f"confusion:{row},{column}": (int(count), 0) for row, column, count in counted}
        size = {f"confusion:{self.classes - 1},{self.classes - 1}": (0, 0)}  # the last cell says how many classes
        return Output(predictions, metrics=size | parts)

    def _whole(self, labels: np.ndarray) -> np.ndarray:
        """Convert labels to integers."""
        if labels.dtype.kind != "f":
            return labels
        wrong = labels[np.floor(labels) != labels]
        if wrong.size:
            raise self.fail(
                f"takes labels that are classes, whole numbers, but {self.source_name(1)} gives {wrong[0]:g}; for "
                "numbers to predict use kRegressionError (rmse, mae, r2)"
            )
        return labels.astype(np.int64)


@register("composed_metric", "confusion")
def class_metrics(parts: Sums) -> MetricValues:
    """Compute the confusion table, and precision, recall and F1 averaged over classes, from counts."""
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
    by_class = {name: part / np.maximum(whole, 1) for name, (part, whole) in ratios.items()}
    means = {name: float(values[present].mean()) for name, values in by_class.items()}
    names = {name: name.removeprefix("macro_") for name in by_class}
    of_second = {names[name]: float(values[1]) for name, values in by_class.items()} if len(table) == 2 else {}
    means["mcc"] = matthews(int(hits.sum()), labels, predictions)
    lists = {f"{names[name]}_by_class": values.tolist() for name, values in by_class.items()}
    return {**means, **of_second, "confusion": table.tolist(), **lists}


def matthews(hits: int, labels: np.ndarray, predictions: np.ndarray) -> float:
    """Compute Matthews' correlation of true and predicted classes from counts; 0 if one class is all."""
    true, predicted, total = labels.tolist(), predictions.tolist(), int(labels.sum())  # whole numbers of any size
    squares = [total**2 - sum(count**2 for count in counts) for counts in (true, predicted)]
    both = hits * total - sum(a * b for a, b in zip(true, predicted, strict=True))
    return both / math.sqrt(squares[0] * squares[1]) if all(squares) else 0.0


@register("layer", kRegressionError=750)
class RegressionError(Layer):
    """Metrics "rmse", √(Σ (x - label)² / n), "mae", Σ |x - label| / n, and "r2"; the feature is x - label.

    The sources give predictions (B, ...), k numbers a row, and labels (B,) or (B, k), float32 or integers. n counts all
    numbers of all records of a test. "r2" is 1 - Σ (x - label)² / Σ (label - mean)², the mean over the k numbers, as in
    scikit-learn's r2_score. It needs two records.
    """

    source_count = 2
    labels = Labels(source=1, floats=True)
    is_output = True
    metric_names = ("rmse", "mae", "r2")
    cut = Cut(gathered_because="compares whole rows with their labels")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        predictions, labels = self.source_shapes
        self.shape = (predictions[0], math.prod(predictions[1:]))
        if len(labels) > 1:  # (B,) may stand for labels that are not known before the first batch
            self._check(labels)

    def _check(self, labels: Shape) -> None:
        """Raise UserError unless labels (B,) or (B, k) have as many numbers a row as the predictions."""
        if math.prod(labels[1:]) != self.shape[1]:
            raise self.fail(
                f"compares {self.source_name(0)}, {shape_text(self.source_shapes[0])}, with labels "
                f"{shape_text(labels)} of {self.source_name(1)}; predict as many numbers as a record has labels",
                field="srclayers",
            )

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, labels = to_matrix(sources[0], ctx.ops), required_labels(self, sources[1])
        self._check(labels.shape)
        errors = x - ctx.ops.asarray(labels.reshape(x.shape).astype(x.dtype))
        of_host, count = ctx.ops.to_numpy(errors), math.prod(errors.shape)
        exact = of_host.astype(np.float64)
        sums = np.array([count, count, exact.sum(), (exact * exact).sum(), np.abs(exact).sum()])
        moments = RunningMoments.of(labels.reshape(x.shape), of_host)
        metrics = {"errors:sums": (ArraySum(sums), count), "r2:moments": (moments, len(labels))}
        return Output(errors, metrics=metrics)


@register("composed_metric", "r2")
def determination(parts: Sums) -> MetricValues:
    """Compute "r2". For labels that are all equal it is 1 if all predictions are right, else 0, as in scikit-learn."""
    moments, count = parts["moments"]
    if count < 2:
        return {}
    known = moments.deviations > 0
    ratios = moments.squares / np.where(known, moments.deviations, 1)
    return {"r2": float(np.where(known, 1 - ratios, moments.squares == 0).mean())}
