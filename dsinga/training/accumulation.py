"""Exact accumulation: the gradient of a batch from its micro-batches, which are computed one after another.

A loss divides by the rows of the whole batch (``Context.rows.total``), whatever rows are computed at once, so that the
gradients of micro-batches add up to that of the batch: Σ over all rows / rows of the batch. A mean of the means of
micro-batches would be another number where sequences have different lengths, or rows have weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dsinga.layers.interface.context import Context, Records
from dsinga.layers.interface.layer import Array
from dsinga.net import NeuralNet
from dsinga.ops import SparseRows
from dsinga.ops.sparse import add_up
from dsinga.training.algorithms import Algorithm, check_algorithm_metrics
from dsinga.training.bp import Push
from dsinga.training.metrics import Metrics, add_metrics


def accumulate(
    algorithm: Algorithm,
    net: NeuralNet,
    values: Mapping[str, Array],
    micro_batches: Iterable[tuple[Mapping[str, Records], Context]],
    count: int,
    push: Push,
) -> Metrics:
    """Run ``algorithm`` on each of ``count`` micro-batches; push the sums of gradients, and return those of metrics.

    ``micro_batches`` gives the records and the context of each; the next is asked for when the one before is computed.
    Sums are pushed while the last micro-batch is computed, each as soon as it is complete. With a single micro-batch
    this is a call of the algorithm. The callee owns the arrays that it gets, as those of the algorithm.
    """
    sums: dict[str, Any] = {}
    metrics: list[Metrics] = []

    def add(name: str, gradient: Array) -> None:
        sums[name] = _add(sums.pop(name), gradient) if name in sums else gradient

    def add_last(name: str, gradient: Array) -> None:
        push(name, _add(sums.pop(name), gradient) if name in sums else gradient)

    for number, (records, ctx) in enumerate(micro_batches, 1):
        receive = add if number < count else add_last
        metrics.append(check_algorithm_metrics(algorithm(net, values, records, ctx, receive)))
    for name, gradient in sums.items():  # for which the last micro-batch gave none
        push(name, gradient)
    return metrics[0] if count == 1 else add_metrics(metrics)


def _add(total: Any, gradient: Any) -> Any:
    """Return the sum of two gradients of one param, in the memory of the first if both are arrays."""
    if isinstance(total, SparseRows) or isinstance(gradient, SparseRows):
        return add_up([total, gradient])
    if type(total) is np.ndarray and not total.flags.writeable:
        return total + gradient
    total += gradient
    return total
