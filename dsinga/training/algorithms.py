"""Looks up the TrainOneBatch algorithm of a job: kBP, kBPTT, kCD or a user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsinga.base.errors import UserError
from dsinga.job import AlgConf
from dsinga.job.resolve import resolve
from dsinga.layers.interface.context import Context, Records
from dsinga.layers.interface.contract import is_metric
from dsinga.layers.interface.layer import Array
from dsinga.net import NeuralNet
from dsinga.training.bp import Push
from dsinga.training.metrics import Metrics

Algorithm = Callable[[NeuralNet, Mapping[str, Array], Mapping[str, Records], Context, Push], Metrics]


def algorithm(conf: AlgConf) -> Algorithm:
    """Return the algorithm that the job names.

    A user's is registered as ``@register("algorithm", "name")``: a function like :func:`dsinga.training.bp`, or a
    class that is made from the AlgConf and called like it. Raises JobError for one that is not registered.
    """
    if conf.function is not None:
        return conf.function
    entry = resolve(conf)
    train_one_batch = entry(conf) if isinstance(entry, type) else entry
    if not callable(train_one_batch):
        raise conf.error(f"algorithm {conf.user_alg!r} must be a function, or a class with __call__", "user_alg")
    return train_one_batch


def check_algorithm_metrics(metrics: Any) -> Metrics:
    """Return the metrics that an algorithm has returned; raise UserError unless they are {name: (sum, count)}."""
    if isinstance(metrics, dict) and all(is_metric(metric) for metric in metrics.values()):
        return metrics
    raise UserError(f'the algorithm must return metrics, as in {{"loss": (sum, count)}}, not {metrics!r}')
