"""Training the net of an estimator: in this process, or on a Dask cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga.api import train
from dsinga.api.jobs_with_data import job_with_data, roots
from dsinga.base.param_arrays import ParamArrays
from dsinga.data.array_kinds import is_dask_collection
from dsinga.estimators.jobs import batchsize_of, input_name
from dsinga.estimators.records import TrainingSet, compute
from dsinga.extensions.extension import RescuedParams
from dsinga.job import Job, Phase
from dsinga.loop.initial_state import RunOptions
from dsinga.loop.local_run import continue_locally
from dsinga.monitor import NOT_METRICS, Row, RunMonitor
from dsinga.net.layer_classes import SAMPLE_WEIGHT
from dsinga.reading.checked_job import check_job, resolve_epochs
from dsinga.training import create_updater
from dsinga.training.local_updater import LocalUpdater


@dataclass
class Trained:
    """What training has made, from which it can go on: params, updater, and a row of metrics for each epoch.

    The updater is None for training on a cluster, whose updaters begin anew.
    """

    params: ParamArrays
    updater: LocalUpdater | None
    history: list[Row]


def train_net(
    job: Job,
    records: TrainingSet,
    client: Any,
    *,
    on_cluster: bool,
    before: Trained | None = None,
    validation: TrainingSet | None = None,
    goes_on: bool = False,
    kept: RescuedParams,
    workers: int | None = None,
) -> Trained:
    """Train a job from what was trained ``before``, or from initial values, and return the result.

    On a cluster it is that of the client, or for None one that is started in this process for the run. Raises UserError
    for bad input, Diverged where a loss is not finite. ``goes_on`` says that training will go on from the result.
    ``kept`` keeps what was trained where training is interrupted; :func:`rescued` returns it. ``workers`` is the number
    of workers on a cluster, by default that of the job, or of the cluster.
    """
    data: dict[str, Any] = {"train": _sources(job, records)}
    job = _reported_by_epoch(job, len(records.x), tests=validation is not None)
    if validation is not None:
        if not on_cluster and is_dask_collection(validation.x):
            validation = TrainingSet(*compute(tuple(validation), None))
        if records.weights is not None and validation.weights is None:
            validation = validation._replace(weights=np.ones(len(validation.x)))
        data["test"] = _sources(job, validation)
    params, history = (None, []) if before is None else (before.params, before.history)
    if on_cluster:
        result = train(job, client, data=data, params=params, progress=False, extensions=[kept], workers=workers)
        return Trained(result.params, None, [*history, *_rows(result.history, len(history), 0)])
    updater = None if before is None else before.updater
    earlier_steps = 0 if updater is None else updater.steps
    counts = {"earlier_steps": earlier_steps, "goes_on": goes_on}  # for checks; the updater counts itself
    # Worker groups of the job's cluster would count as readers of the records.
    job = job.replace(updater=job.updater.replace(**counts), cluster=None)
    checked = resolve_epochs(check_job(job_with_data(job, data, Phase.kTrain, None), roots(job, None)))
    monitor = RunMonitor(job.name, checked.job.train_steps, None, False, False)
    with monitor:
        options = RunOptions(roots=roots(job, None), params=params, extensions=[kept])
        outcome, updater = continue_locally(
            checked, monitor, options, updater=updater, shuffle=batchsize_of(job) < len(records.x)
        )
    return Trained(outcome.params, updater, [*history, *_rows(monitor.history, len(history), earlier_steps)])


def rescued(job: Job, kept: RescuedParams, *, on_cluster: bool, before: Trained | None = None) -> Trained:
    """Return what an interrupted :func:`train_net` has trained."""
    assert kept.params is not None
    assert kept.net is not None
    history = [] if before is None else before.history
    earlier_steps = 0 if before is None or before.updater is None else before.updater.steps
    updater = None if on_cluster else LocalUpdater(create_updater(job.updater), kept.net.params)
    if updater is not None:
        updater.resume_learnt(kept.slots, earlier_steps + kept.step)
    return Trained(kept.params, updater, [*history, *_rows(kept.history, len(history), earlier_steps)])


def _sources(job: Job, records: TrainingSet) -> dict[str, Any]:
    name = input_name(job)
    main = records.x if records.y is None else (records.x, records.y)
    return {name: main} if records.weights is None else {name: main, SAMPLE_WEIGHT: records.weights.astype(np.float32)}


def _reported_by_epoch(job: Job, length: int, tests: bool) -> Job:
    """Return the job with a row of metrics for each epoch, which a job with ``epochs`` writes without frequencies.

    ``tests`` says whether there are records to test on.
    """
    steps = 0 if job.epochs else math.ceil(length / batchsize_of(job))
    return job.replace(disp_freq=steps, test_freq=steps if tests else 0)


def _rows(history: Any, before: int, earlier_steps: int) -> list[Row]:
    """Return a row for each epoch from the rows of a run's phases, after so many epochs ``before`` and steps."""
    rows: dict[int, Row] = {}
    for row in history:
        if row["step"] == 0:  # a test before training
            continue
        metrics = {name: value for name, value in row.items() if name not in NOT_METRICS}
        prefix = "" if row["phase"] == "train" else "val_"
        step = earlier_steps + row["step"]
        kept = rows.setdefault(step, {"epoch": before + len(rows) + 1, "step": step})
        kept.update({f"{prefix}{name}": value for name, value in metrics.items()})
    return list(rows.values())
