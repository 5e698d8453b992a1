"""Trains an estimator's job in this process or on a cluster, and turns its history into rows of epochs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga.api import train
from dsinga.api.runners import RunLimits, ThisProcess, Train, TrainingOptions
from dsinga.api.trained import Trained
from dsinga.estimators.jobs import batchsize_of, input_name
from dsinga.estimators.lazy import compute
from dsinga.estimators.records import TrainingSet
from dsinga.estimators.tables import with_store
from dsinga.extensions.extension import Extension
from dsinga.job import Job, Phase
from dsinga.loop.initial_state import updater_state
from dsinga.loop.local_run import continue_locally
from dsinga.monitor import NOT_METRICS, Row
from dsinga.net.layer_classes import SAMPLE_WEIGHT
from dsinga.nn.model.from_job import with_sample_weights
from dsinga.reading.checked_job import CheckedJob
from dsinga.reading.learnt_statistics import normalised, with_steps


@dataclass
class Continued(ThisProcess):
    """Trains in this process as a continuation of earlier training, as ``partial_fit`` needs."""

    before: int = 0

    @contextlib.contextmanager
    def training(self, checked: CheckedJob, options: TrainingOptions, limits: RunLimits) -> Iterator[Train]:
        """Yield a function that continues the training of a job of one worker."""
        if steps := checked.job.updater.earlier_steps:  # the layers count them, too
            before = {conf.name: self.before for conf in normalised(checked.job)}
            checked = checked.with_job(with_steps(checked.job, before))
        earlier = updater_state(options.updater_state or {}), steps
        yield lambda observer, run: continue_locally(checked, observer, run, earlier=earlier)


def train_net(
    job: Job, records: TrainingSet, validation: TrainingSet | None, trained: Trained, client: Any, *, on_cluster: bool,
    goes_on: bool, workers: int | None, extensions: Sequence[Extension],
) -> None:  # fmt: skip
    """Train an estimator's job from given params, or initial values; an extension keeps the result.

    ``client`` None starts a cluster in this process for the run. ``goes_on`` says that training will continue from the
    result. Raises UserError for bad input, Diverged if a loss is not finite.
    """
    if records.weights is not None or (validation is not None and validation.weights is not None):
        phases = [Phase.kTest] if records.weights is None else [Phase.kTrain, Phase.kTest]
        weighed = with_sample_weights(job.neuralnet.layer, phases)  # raises UserError for a loss without weights
        job = job.replace(neuralnet=job.neuralnet.replace(layer=weighed))
    job = with_store(job, scaled=None)  # the records are already scaled
    if batchsize_of(job) >= len(records.x):  # their order would change nothing but the last bits
        job = with_store(job, shuffle=False, group_by_length=0)
    job = _reported_by_epoch(job, len(records.x), tests=validation is not None)
    job = job.replace(updater=job.updater.replace(earlier_steps=trained.steps, goes_on=goes_on))
    data = {"train": _sources(job, records)}
    if validation is not None:
        if not on_cluster:
            validation = TrainingSet(*compute(tuple(validation), None))
        if records.weights is not None and validation.weights is None:
            validation = validation._replace(weights=np.ones(len(validation.x)))
        data["test"] = _sources(job, validation)
    if not on_cluster:  # worker groups of the job would count as readers of the records
        job, client, workers = job.replace(cluster=None), Continued(trained.before), None
    if job.blocks:  # a cluster counts the steps of each call from 0, so this process does, too
        job, client = job.replace(seed=job.seed + trained.steps), client if on_cluster else ThisProcess()
    train(
        job, client, data=data, params=trained.params, updater_state=trained.slots, progress=False,
        extensions=extensions, workers=workers,
    )  # fmt: skip


def epoch_rows(rows: Iterable[Row], epochs: int, earlier_steps: int) -> list[Row]:
    """Combine the rows of a run that began after ``epochs`` epochs into one for each epoch."""
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
    """Return the epoch that gave the best params of a run with early stopping; None without any."""
    step = earlier_steps + stopping.state_dict()["best_step"] if stopping is not None else None
    return next((row["epoch"] for row in rows if row["step"] == step), None)


def _sources(job: Job, records: TrainingSet) -> dict[str, Any]:
    name = input_name(job)
    main = records.x if records.y is None else (records.x, records.y)
    return {name: main} if records.weights is None else {name: main, SAMPLE_WEIGHT: records.weights.astype(np.float32)}


def _reported_by_epoch(job: Job, length: int, tests: bool) -> Job:
    """Return the job set to report metrics once per epoch, with ``tests`` also validation metrics."""
    steps = 0 if job.epochs else math.ceil(length / batchsize_of(job))
    return job.replace(disp_freq=steps, test_freq=steps if tests else 0)
