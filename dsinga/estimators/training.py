"""Trains the job of an estimator in this process or on a cluster, and makes rows of epochs from its history."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from dsinga.api import train
from dsinga.api.jobs_with_data import job_with_data, roots
from dsinga.base.arrays import ParamArrays
from dsinga.data.array_kinds import is_dask_collection
from dsinga.estimators.jobs import batchsize_of, input_name
from dsinga.estimators.lazy import compute
from dsinga.estimators.records import TrainingSet
from dsinga.estimators.tables import with_messages
from dsinga.extensions.extension import Extension, RescuedParams
from dsinga.job import Job, Phase
from dsinga.loop.initial_state import RunOptions
from dsinga.loop.local_run import continue_locally
from dsinga.monitor import NOT_METRICS, Row, RunMonitor
from dsinga.net.layer_classes import SAMPLE_WEIGHT
from dsinga.reading.checked_job import check_job, resolve_epochs
from dsinga.reading.learnt_statistics import with_learnt_statistics
from dsinga.training.local_updater import Slots


def train_net(
    job: Job,
    records: TrainingSet,
    client: Any,
    *,
    rescued: RescuedParams,
    stopping: Extension | None,
    on_cluster: bool,
    params: ParamArrays | None,
    slots: Slots,
    steps: int,
    validation: TrainingSet | None,
    goes_on: bool,
    workers: int | None,
) -> None:
    """Train a job from ``params``, or from initial values; ``rescued`` has the result, also after an interrupt.

    ``stopping`` ends training early, None for training to the end of its epochs. A cluster is that of the client, or
    for None one that is started in this process for the run. The updater goes on after ``steps`` steps from its
    ``slots``. ``goes_on`` says that training will go on from the result. ``workers`` is the number of workers on a
    cluster, by default that of the job, or of the cluster. Raises UserError for bad input, Diverged where a loss is not
    finite.
    """
    job = with_messages(job, scaled=None)  # the records are scaled
    data: dict[str, Any] = {"train": _sources(job, records)}
    extensions = [rescued] if stopping is None else [stopping, rescued]
    job = _reported_by_epoch(job, len(records.x), tests=validation is not None)
    if validation is not None:
        if not on_cluster and is_dask_collection(validation.x):
            validation = TrainingSet(*compute(tuple(validation), None))
        if records.weights is not None and validation.weights is None:
            validation = validation._replace(weights=np.ones(len(validation.x)))
        data["test"] = _sources(job, validation)
    job = job.replace(updater=job.updater.replace(earlier_steps=steps, goes_on=goes_on))
    if on_cluster:
        train(
            job, client, data=data, params=params, updater_state=slots, progress=False, extensions=extensions,
            workers=workers,
        )  # fmt: skip
        return
    job = job.replace(cluster=None)  # its worker groups would count as readers of the records
    checked = resolve_epochs(check_job(job_with_data(job, data, Phase.kTrain, None), roots(job, None)))
    if not steps:
        checked = with_learnt_statistics(checked, params, None, False)
    with RunMonitor(job.name, checked.job.train_steps, None, False, False) as monitor:
        options = RunOptions(roots=roots(job, None), params=params, extensions=extensions)
        continue_locally(checked, monitor, options, earlier=(slots, steps), shuffle=batchsize_of(job) < len(records.x))


def epoch_rows(rows: Iterable[Row], epochs: int, earlier_steps: int) -> list[Row]:
    """Return a row for each epoch from the rows of a run, which began after so many ``epochs`` and steps."""
    by_step: dict[int, Row] = {}
    for row in rows:
        if row["step"] == 0:  # a test before training
            continue
        metrics = {name: value for name, value in row.items() if name not in NOT_METRICS}
        prefix = "" if row["phase"] == "train" else "val_"
        step = earlier_steps + row["step"]
        epoch = by_step.setdefault(step, {"epoch": epochs + len(by_step) + 1, "step": step})
        epoch.update({f"{prefix}{name}": value for name, value in metrics.items()})
    return list(by_step.values())


def best_epoch(stopping: Extension | None, rows: Iterable[Row], earlier_steps: int) -> int | None:
    """Return the epoch of the best params by the rows of a run that stops early; None without, or before the first."""
    step = earlier_steps + stopping.state_dict()["best_step"] if stopping is not None else None
    return next((row["epoch"] for row in rows if row["step"] == step), None)


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
