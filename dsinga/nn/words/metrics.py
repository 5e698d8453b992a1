"""Metrics by the names of Keras's classes, for ``compile(metrics=[nn.metrics.AUC()])``; docs/metrics.md has all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsinga.base.arguments import check_names
from dsinga.nn.words.keras_arguments import missing_names

NAMES = {
    "AUC": "roc_auc",
    **dict.fromkeys("Accuracy BinaryAccuracy CategoricalAccuracy SparseCategoricalAccuracy".split(), "accuracy"),
    "MeanAbsoluteError": "mae",
    "MeanIoU": "mean_iou",
    "Precision": "precision",
    "R2Score": "r2",
    "Recall": "recall",
    "RootMeanSquaredError": "rmse",
    **dict.fromkeys(("SparseTopKCategoricalAccuracy", "TopKCategoricalAccuracy"), "top_{}_accuracy"),
}


def metric_function(name: str) -> Callable[..., str]:
    """Return the function of a class of Keras, which returns the name of a metric.

    Its arguments ``name`` and ``num_classes`` have no effect: rows of the history have the name that it returns.
    """

    def metric(k: int = 5, **others: Any) -> str:
        known = ["name", *(["num_classes"] if name == "MeanIoU" else []), *(["k"] if "{}" in NAMES[name] else [])]
        check_names(name, known, others)
        return NAMES[name].format(k)

    metric.__name__ = metric.__qualname__ = name
    return metric


FUNCTIONS = {name: metric_function(name) for name in NAMES}

__getattr__ = missing_names(__name__, public="dsinga.nn.metrics", derived=lambda: FUNCTIONS)
