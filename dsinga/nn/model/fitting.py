"""The steps of ``fit``: open the data, resume earlier training, run the job, keep the trained params."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import dsinga.api as api
from dsinga.api.engines import find_runner
from dsinga.api.trained import rescuing
from dsinga.api.workspaces import has_checkpoint
from dsinga.base.errors import UserError
from dsinga.data import RecordSource
from dsinga.data.locations import is_url
from dsinga.extensions import BackupAndRestore, KerasEvents, is_keras_callback
from dsinga.extensions.extension import Extension, RescuedParams
from dsinga.job import Job, Phase
from dsinga.job.checks import training_phases
from dsinga.nn.model.given_data import check_whole_numbers
from dsinga.nn.model.labels import check_class_weight, loss_of_labels, weights_of_classes
from dsinga.nn.model.params_on_disk import ParamsOnDisk
from dsinga.nn.model.records import (
    labelled,
    least_batch,
    opened,
    reading_opened,
    times_of,
    with_tables_open,
)
from dsinga.nn.model.training_state import set_trained, training
from dsinga.reading.bind_records import bind_records
from dsinga.reading.given import JobArguments, PhaseRecords
from dsinga.reading.pairs import Data, WeighedPairs, split_off


class FitBegin(NamedTuple):
    """The state from which ``fit`` starts training: seed, steps already done, workspace folder, checkpoint."""

    seed: int
    steps: int
    workspace: Any
    resume: Any
    backups: Sequence[BackupAndRestore] = ()


class RunSettings(NamedTuple):
    """The arguments of ``fit`` that say where a job runs and how progress is shown."""

    callbacks: Sequence[Any]
    client: Any
    workers: int | None
    progress: bool


def records_of_fit(model: Any, data: Data, held_out: Data, share: float, class_weight: Any) -> dict[str, WeighedPairs]:
    """Return the training and validation data of ``fit`` with labels, sample weights and class weights."""
    train, validation = labelled(model, data), labelled(model, held_out)
    if share or class_weight is not None:
        pairs = with_tables_open(train.pairs, model.trained.names, model.trained_definitions())
        train = train._replace(pairs=pairs)
    if len(model.label_inputs()) == 1:
        check_class_weight(class_weight, _labels(train), loss_of_labels(model))
    if share:
        if validation.pairs:
            raise UserError("give validation_split or validation_data, not both")
        train, validation = split_off(train, share)
    return {"train": with_class_weights(model, train, class_weight), "val": validation}


def with_class_weights(model: Any, data: WeighedPairs, class_weight: Any) -> WeighedPairs:
    """Multiply the sample weights of training data by class weights, if any."""
    if class_weight is None:
        return data
    if len(model.label_inputs()) > 1:
        raise UserError("class_weight is for models of one loss, because it weighs all; give sample_weight")
    weights = weights_of_classes(class_weight, _labels(data), loss_of_labels(model), data.weights)
    return data._replace(weights=weights)


def _labels(data: WeighedPairs) -> Any:
    """Return the labels of data for a model of one loss, or the record source that has them."""
    records, labels = next(iter(data.pairs.values()), (None, None))
    return records if isinstance(records, RecordSource) else labels


def begin_fit(model: Any, workspace: Any, resume: Any, callbacks: Iterable[Any], fields: dict[str, Any]) -> FitBegin:
    """Find the seed, step and workspace from which ``fit`` starts; BackupAndRestore may name the workspace."""
    backups = [callback for callback in callbacks if isinstance(callback, BackupAndRestore)]
    for backup in backups:
        given = {"workspace": workspace, "resume": resume or None, "checkpoint_freq": fields.get("checkpoint_freq")}
        if any(value is not None for value in given.values()):
            name = next(name for name, value in given.items() if value is not None)
            raise UserError(f"BackupAndRestore stands for {name}; leave out {name}, or the callback")
        workspace, resume = backup.backup_dir, "auto"
        if backup.save_freq != "epoch":
            fields["checkpoint_freq"] = backup.save_freq
        fields.setdefault("checkpoint_keep", 1)
    begin = FitBegin(model.trained.seed, model.trained.steps, workspace, resume, backups)
    return resumed(begin, model._fits.begins)


def resumed(begin: FitBegin, earlier: Mapping[str, FitBegin]) -> FitBegin:
    """Take over seed and step of an earlier ``fit`` in this process that this one resumes."""
    workspace, resume = begin.workspace, begin.resume
    if isinstance(resume, (str, os.PathLike)) and resume != "auto":
        workspace = Path(resume).expanduser().absolute().parent.parent
    if workspace is None or not resume or _key(workspace) not in earlier:
        return begin
    if resume == "auto" and not has_checkpoint(os.fspath(workspace)):
        return begin
    resumed_fit = earlier[_key(workspace)]
    return begin._replace(seed=resumed_fit.seed, steps=resumed_fit.steps)


def _key(workspace: str | os.PathLike[str]) -> str:
    """Return the URL or absolute path of a workspace, to recognise it in a later ``fit``."""
    text = os.fspath(workspace)
    return text if is_url(text) else str(Path(text).absolute())


def job_arguments(
    model: Any,
    data: Mapping[str, WeighedPairs],
    batch_size: int | None,
    epochs: int | None,
    train_steps: int | None,
    fields: Mapping[str, Any],
) -> JobArguments:
    """Open training and validation data, and collect the arguments of the job."""
    check_whole_numbers(batch_size=batch_size, epochs=epochs, train_steps=train_steps)
    if fields.get("checkpoint_path") and begin_params(model, None):
        raise UserError(
            "the model has params, with which it begins, and not with those of checkpoint_path; leave "
            "checkpoint_path out, or set model.params to the path"
        )
    phases: dict[str, PhaseRecords] = {}
    for phase, (pairs, weights) in data.items():
        if pairs:
            phases[phase] = opened(model, pairs, weights, phases.get("train"))
    if "train" in phases:
        batch_size = least_batch(batch_size, phases["train"], model.default_batch_size)
    return JobArguments(phases, batch_size, {**fields, **times_of(phases, epochs, train_steps, fields)})


def bound_job(model: Any, arguments: JobArguments) -> Job:
    """Make the job of a model and let its input layers read the data already opened."""
    job: Job = model.make_job(arguments.phases, arguments.batch_size, arguments.fields)
    bound = {phase: records.bound() for phase, records in arguments.phases.items() if records.bound()}
    return bind_records(job, bound) if bound else job


def begin_params(model: Any, seed: int | None) -> dict[str, Any]:
    """Return the params from which training starts, by name (:meth:`.Trained.start`)."""
    return replace(model.trained, params=model._params).start(seed, lambda: model.shaped_net().net)


def job_of_fit(model: Any, arguments: JobArguments, begin: FitBegin, shuffle: bool) -> Job:
    """Return the job that ``fit`` runs; it continues the optimizer's step count from earlier fits."""
    job = reading_opened(bound_job(model, arguments), arguments.phases, shuffle)
    if begin.backups and not job.checkpoint_freq:
        job = job.replace(checkpoint_freq=arguments.steps_of_epoch())
    job = model.trained.with_statistics(job, begin.steps, model._params or {})
    return job.replace(updater=job.updater.replace(earlier_steps=job.updater.earlier_steps + begin.steps))


def run_fit(model: Any, job: Job, arguments: JobArguments, begin: FitBegin, settings: RunSettings) -> api.Result:
    """Train the job while callbacks may set params; keep the trained params even after an error."""
    runner: Any = find_runner(settings.client, waits=True)
    events = {"epochs": job.epochs or 1, "steps": arguments.steps_of_epoch(), "verbose": int(settings.progress)}
    on_disk = ParamsOnDisk(model)
    params, slots = begin_params(model, job.seed), model.trained.slots
    model.stop_training = False
    keep = functools.partial(keep_rescued, model, job=job, arguments=arguments, begin=begin)
    with rescuing("the model", keep) as rescued, training(model, begin.steps, job.seed + 1) as running:
        extensions = [
            KerasEvents(callback, model, running, events) if is_keras_callback(callback) else callback
            for callback in settings.callbacks
            if not isinstance(callback, BackupAndRestore)
        ]
        check_watched(settings.callbacks, job)
        return api.train(
            job, runner, workers=settings.workers, workspace=begin.workspace, resume=begin.resume,
            progress=settings.progress, extensions=[on_disk, *extensions, rescued], params=params, updater_state=slots,
        )  # fmt: skip


def check_watched(callbacks: Sequence[Any], job: Job) -> None:
    """Raise UserError if a callback, such as EarlyStopping, watches a validation metric without validation data."""
    if Phase.kVal in training_phases(job) or any(getattr(each, "phase", None) == "val" for each in callbacks):
        return
    for callback in callbacks:
        watched = [str(getattr(callback, "monitor", ""))]
        if isinstance(callback, Extension) and hasattr(callback, "trigger"):  # api.train refuses one without
            watched = [trigger.monitor.replace("/", "_", 1) for trigger in callback.trigger.metrics()]
        for name in watched:
            if name.startswith("val_"):
                raise UserError(
                    f"{type(callback).__name__} watches {name}, but fit was called without validation_data=; give it "
                    "(x_val, y_val), or fit validation_split=0.2"
                )


def keep_rescued(model: Any, rescued: RescuedParams, job: Job, arguments: JobArguments, begin: FitBegin) -> None:
    """Store trained params, optimizer state and history in the model after ``fit``, even if it failed."""
    assert rescued.params is not None
    assert rescued.net is not None
    described, begins = arguments.described(), {**model._fits.begins}
    if begin.workspace is not None:
        begins[_key(begin.workspace)] = begin._replace(backups=())
    model._fits = replace(model._fits, arguments=described, begins=begins)
    records = described.phases.get("train", PhaseRecords(names={**model.trained.names}))
    trained = replace(model.trained, names=records.names, definitions=records.definitions)
    set_trained(model, trained.after(rescued, job, begin.steps))
    model.result = api.Result(job, rescued.params, rescued.history, rescued.net, rescued.step, begin.workspace)
