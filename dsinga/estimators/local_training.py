"""Training on numpy arrays in this process, without Dask: the batches and the bits of dsinga.train with one worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga.data import Sampler
from dsinga.data.store_format import block_rows
from dsinga.engine.local_net import LocalNet
from dsinga.engine.local_results import Means
from dsinga.engine.local_updater import LocalUpdater
from dsinga.estimators.jobs import batchsize_of, input_name
from dsinga.estimators.records import TrainingSet
from dsinga.job import Job
from dsinga.monitor import Row
from dsinga.net.sample_weights import SAMPLE_WEIGHT
from dsinga.training import Metrics, add_metrics
from dsinga.worker.param_slices import Arrays


@dataclass
class Trained:
    """What training has made, from which it can go on: params, updater, and a row of metrics for each epoch."""

    params: Arrays
    updater: LocalUpdater | None
    history: list[Row]


def train_here(
    job: Job, records: TrainingSet, before: Trained | None = None, validate: Callable[[Arrays], Row] | None = None
) -> Trained:
    """Train a job on ``records``, from ``before`` or from initial values, and return the result.

    ``validate(params)`` returns what is added to the metrics of each epoch. Raises UserError for records that do not
    fit the net, Diverged where a loss is not finite.
    """
    net = LocalNet(
        job, {name: array[:1] for name, array in _inputs(job, records).items()}, _labels(job, records, slice(1))
    )
    if before is None:
        before = Trained(net.initial_params(), net.updater(), [])
    updater = before.updater or net.updater()
    trained = Trained({name: value.copy() for name, value in before.params.items()}, updater, [*before.history])
    start, parts = updater.steps, list[Metrics]()
    for (x, y), is_last in _batches(job, records, start):
        gradients, metrics = net.backward(trained.params, x, y, step=updater.steps)
        updater.step(trained.params, gradients)
        parts.append(metrics.sums)
        if is_last:
            row = {"epoch": len(trained.history) + 1, "step": updater.steps, **Means(add_metrics(parts))}
            trained.history.append(row | (validate(trained.params) if validate else {}))
            parts = []
    return trained


def steps_of(job: Job, length: int) -> int:
    """Return the number of steps of a job that trains on so many records."""
    return math.ceil(job.epochs * length / batchsize_of(job)) if job.epochs else job.train_steps


def _batches(job: Job, records: TrainingSet, start: int) -> Iterator[tuple[tuple[Any, Any], bool]]:
    """Yield the records and labels of each step, and whether it is the last one of an epoch."""
    length, size = len(records.x), batchsize_of(job)
    inputs, steps = _inputs(job, records), steps_of(job, length)
    if size >= length:
        for _ in range(steps):
            yield (inputs, _labels(job, records, slice(None))), True
        return
    chunk = block_rows(length, records.x[:1].nbytes)
    sampler = Sampler(length, size, seed=job.seed, chunk=chunk)
    for step in range(start, start + steps):
        rows = sampler.rows(step)
        done = (step - start + 1) * size
        is_last = done // length > (done - size) // length or step == start + steps - 1
        yield ({name: array[rows] for name, array in inputs.items()}, _labels(job, records, rows)), is_last


def _inputs(job: Job, records: TrainingSet) -> dict[str, np.ndarray]:
    weights = {} if records.weights is None else {SAMPLE_WEIGHT: records.weights.astype(np.float32)}
    return {input_name(job): records.x, **weights}


def _labels(job: Job, records: TrainingSet, rows: Any) -> dict[str, np.ndarray] | None:
    return None if records.y is None else {input_name(job): records.y[rows]}
