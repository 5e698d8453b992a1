"""Finds a job's training algorithm, such as back-propagation or a user's, and runs it on micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dsinga.base.errors import UserError
from dsinga.job import AlgConf
from dsinga.job.component import resolve
from dsinga.layers.interface.context import Context, Records
from dsinga.layers.interface.contract import is_metric
from dsinga.layers.interface.layer import Array
from dsinga.net import NeuralNet
from dsinga.ops.block_sums import add_gradients
from dsinga.training.bp import Push
from dsinga.training.metrics import Metrics, add_metrics

Algorithm = Callable[[NeuralNet, Mapping[str, Array], Mapping[str, Records], Context, Push], Metrics]


def algorithm(conf: AlgConf) -> Algorithm:
    """Return the algorithm that a job names: a function that computes the gradients of a batch.

    Register your own by ``@register("algorithm", "name")``: a function like :func:`dsinga.training.bp`, or a class that
    is made from the AlgConf and called like it.
    """
    if conf.function is not None:
        return conf.function
    entry = resolve(conf)
    train_one_batch = entry(conf) if isinstance(entry, type) else entry
    if not callable(train_one_batch):
        raise conf.error(f"algorithm {conf.user_alg!r} must be a function, or a class with __call__", "user_alg")
    return train_one_batch


def check_algorithm_metrics(metrics: Any) -> Metrics:
    """Check the metrics of a user's algorithm: UserError unless they are {name: (sum, count)}."""
    if isinstance(metrics, dict):
        for metric in metrics.values():  # a loop, for each step of a small net runs it
            if not is_metric(metric):
                break
        else:
            return metrics
    raise UserError(f'the algorithm must return metrics, as in {{"loss": (sum, count)}}, not {metrics!r}')


def accumulate(
    algorithm: Algorithm,
    net: NeuralNet,
    values: Mapping[str, Array],
    micro_batches: Iterable[tuple[Mapping[str, Records], Context]],
    count: int,
    push: Push,
) -> Metrics:
    """Compute a batch in ``count`` parts, to save memory: push the summed gradients, return the summed metrics.

    A loss divides by the rows of the whole batch (``Context.rows.total``). ``micro_batches`` gives records and context.
    A sum is pushed as soon as it is complete; the callee owns the array.
    """
    if count == 1:
        ((records, ctx),) = micro_batches
        return check_algorithm_metrics(algorithm(net, values, records, ctx, push))
    sums: dict[str, Any] = {}
    metrics: list[Metrics] = []

    def add(name: str, gradient: Array) -> None:
        sums[name] = add_gradients(sums.pop(name), gradient) if name in sums else gradient

    def add_last(name: str, gradient: Array) -> None:
        push(name, add_gradients(sums.pop(name), gradient) if name in sums else gradient)

    for number, (records, ctx) in enumerate(micro_batches, 1):
        receive = add if number < count else add_last
        metrics.append(check_algorithm_metrics(algorithm(net, values, records, ctx, receive)))
    for name, gradient in sums.items():  # for which the last micro-batch gave none
        push(name, gradient)
    return add_metrics(metrics)
