"""Results of passes of a LocalNet: features, gradients, and the means of metrics."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dsinga.base.param_arrays import ParamArrays
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.ops import SparseRows
from dsinga.training import Metrics


class Means(dict[str, Any]):
    """The figures of metrics by name; ``sums`` has the (sum, count) of each, which add up over batches."""

    def __init__(self, sums: Metrics):
        super().__init__(metric_values(sums))
        self.sums = sums


class Forward(NamedTuple):
    """The result of a forward pass: features by layer, and the means of the metrics over the batch."""

    outputs: ParamArrays
    metrics: Means

    @property
    def loss(self) -> float:
        """The mean loss. Raises KeyError for a pass without a loss layer."""
        return self.metrics["loss"]


class Backward(NamedTuple):
    """The result of a backward pass: gradients by param, and the means of the metrics over the batch.

    For a param that is not trainable, such as a running mean, the gradient is its new value.
    """

    gradients: dict[str, np.ndarray | SparseRows]
    metrics: Means

    @property
    def loss(self) -> float:
        """The mean loss. Raises KeyError for an algorithm that reports none."""
        return self.metrics["loss"]
