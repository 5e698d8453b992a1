"""Metrics whose figure is not a mean over rows: layers report parts that add up, a function makes the figure of them.

A layer reports the parts of a metric ``rmse`` under names such as ``rmse:squares``, each as (sum, count). Parts add up
over batches, workers and groups like all metrics; the figure is made once, of the sums. So it is that of all records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Sums = Mapping[str, tuple[float, float]]
Figures = Mapping[str, Any]
_FUNCTIONS: dict[str, Callable[[Sums], Figures]] = {}


def composed_metric(name: str) -> Callable[[Callable[[Sums], Figures]], Callable[[Sums], Figures]]:
    """Return a decorator for the function that makes the figures of the metric ``name`` of its parts.

    The function takes (sum, count) by the name of the part, and returns figures by name: numbers, or a table as a list
    of lists, which tests show and histories leave out.
    """

    def register(function: Callable[[Sums], Figures]) -> Callable[[Sums], Figures]:
        _FUNCTIONS[name] = function
        return function

    return register


def figures(sums: Sums) -> dict[str, Any]:
    """Return the figure of each metric: sum / count, or what the function of a composed metric returns.

    ``sums`` maps names to (sum, count). A name may have a layer in front, as in ``layer/rmse:squares``. Metrics with a
    count of 0 are left out.
    """
    means: dict[str, Any] = {}
    parts: dict[str, dict[str, tuple[float, float]]] = {}
    for name, (total, count) in sums.items():
        metric, colon, part = name.partition(":")
        if colon and metric.rpartition("/")[2] in _FUNCTIONS:
            parts.setdefault(metric, {})[part] = total, count
        elif count:
            means[name] = total / count
    for metric, values in parts.items():
        layer, slash, name = metric.rpartition("/")
        means |= {f"{layer}{slash}{figure}": value for figure, value in _FUNCTIONS[name](values).items()}
    return means


@composed_metric("rmse")
def root_mean_square(parts: Sums) -> Figures:
    """Return "rmse", the square root of the mean of the squares; nothing without records."""
    total, count = parts["squares"]
    return {"rmse": math.sqrt(total / count)} if count else {}
