"""Trainable: training of models described in Python and of those of job files."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

import dsinga.api as api
from dsinga.api.engines import find_runner
from dsinga.api.workspaces import remove_checkpoints
from dsinga.base.errors import UserError
from dsinga.data.sources.data_loaders import is_iterable, size_of_batches
from dsinga.engine.local_net import LocalNet
from dsinga.extensions import BackupAndRestore, KerasEvents, is_keras_callback
from dsinga.extensions.extension import RescuedParams
from dsinga.job import Job
from dsinga.job.message import field_names
from dsinga.monitor import History
from dsinga.net.layer_classes import SAMPLE_WEIGHT
from dsinga.nn.model.given_data import (
    FitFields,
    JobFields,
    as_codes,
    batch_in_order,
    check_whole_numbers,
    listed,
    read_iterable,
    split_off,
)
from dsinga.nn.model.predictable import Predictable
from dsinga.nn.model.records import (
    JobArguments,
    PhaseRecords,
    has_data,
    in_order_given,
    least_batch,
    naming_shapes,
    open_inputs,
    shapes_of,
    split_data,
    with_open_stores,
)  # fmt: skip
from dsinga.nn.model.sample_weights import add_weights, weights_of_classes, without_missing
from dsinga.nn.model.training_state import BatchSteps, FitBegin, TrainingState
from dsinga.nn.words.keras_arguments import check_names, checked
from dsinga.reading.bind_records import bind_records

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client


class Trainable(Predictable):
    """A net with its params, which can be trained, tested and used.

    Attributes:
        default_batch_size: the rows of a batch where none are given, None to leave those of a job.
        default_epochs: the epochs of a ``fit`` that gives none, None for the steps of a job.
    """

    default_batch_size: int | None = 32
    default_epochs: int | None = 1
    _batch_steps: tuple[Any, BatchSteps] | None = None  # of train_on_batch, with the shapes that it is for

    @checked
    def job(
        self,
        x: Any = None,
        y: Any = None,
        *,
        sample_weight: Any = None,
        validation_data: Any = None,
        test_data: Any = None,
        batch_size: int | None = None,
        epochs: int | None = None,
        train_steps: int | None = None,
        seed: int | None = None,
        cluster: Any = None,
        name: str | None = None,
        **fields: Unpack[JobFields],
    ) -> Job:
        """Return the model as a job, as a job file describes it.

        Args:
            x: records: a path, which is then in the job, or what :func:`dsinga.data.open_records` takes; for several
                inputs a list, or a dict by name. Without records the shape of ``nn.Input`` is needed.
            y: labels, where ``x`` has none.
            sample_weight: a factor for the loss of each record in training, (n,), as for :meth:`fit`.
            validation_data: (x, y), (x, y, sample_weight), or records with labels, to validate with after each epoch.
            test_data: likewise for tests.
            batch_size: rows of a batch, by default 32, and at most the number of records.
            epochs: how many times all records are read.
            train_steps: the number of batches, in place of ``epochs``.
            seed: determines all random numbers, by default 0.
            cluster: the topology, in place of that of ``compile``.
            name: the name of the job, by default the model's.
            fields: further fields of the job, such as ``checkpoint_freq``.

        Raises:
            UserError: shapes, losses and data do not fit.
        """
        check_names("job", [*inspect.signature(Trainable.job).parameters, *field_names(Job)], fields)
        chosen = {"seed": seed, "cluster": cluster, "name": name}
        given = {**fields, **{key: value for key, value in chosen.items() if value is not None}}
        data = {"train": (x, y), "val": validation_data, "test": test_data}
        return self._bound_job(self._job_arguments(data, sample_weight, batch_size, epochs, train_steps, given))

    def _job_arguments(
        self,
        data: Mapping[str, Any],
        sample_weight: Any,
        batch_size: int | None,
        epochs: int | None,
        train_steps: int | None,
        fields: Mapping[str, Any],
    ) -> JobArguments:
        """Return the arguments of a job on ``data``, opened, by phase."""
        check_whole_numbers(batch_size=batch_size, epochs=epochs, train_steps=train_steps)
        phases: dict[str, PhaseRecords] = {}
        for phase, source in data.items():
            if has_data(source):
                x, y, weights = split_data(source)
                names = self.record_names() or (phases["train"].names if "train" in phases else {})
                phases[phase] = open_inputs(self._pairs(x, y), names)
                weights = sample_weight if phase == "train" else weights
                if weights is not None:
                    add_weights(phases[phase], weights)
        trained = self.trained_windows() or (phases["train"].windows if "train" in phases else {})
        phases = {phase: records.in_order_of(trained) for phase, records in phases.items()}
        if sample_weight is not None and "train" not in phases:
            raise UserError("sample_weight needs x, the records that it weighs")
        if "train" in phases:
            batch_size = least_batch(batch_size, phases["train"], self.default_batch_size)
        return JobArguments(phases, batch_size, {**fields, **self._schedule(phases, epochs, train_steps, fields)})

    def _bound_job(self, arguments: JobArguments) -> Job:
        """Return the job of these arguments, which reads the opened records."""
        job = self.make_job(arguments.phases, arguments.batch_size, arguments.fields)
        bound = {phase: records.bound() for phase, records in arguments.phases.items() if records.bound()}
        return bind_records(job, bound) if bound else job

    def _schedule(
        self, phases: Mapping[str, PhaseRecords], epochs: int | None, steps: int | None, fields: Mapping[str, Any]
    ) -> dict[str, int]:
        """Return the fields of the job that say how long it trains, and how often it reports and validates."""
        if steps is not None and epochs is not None:
            raise UserError("give epochs or train_steps, not both")
        if epochs is not None:  # then metrics and validation come at the end of each epoch
            times = {"epochs": epochs, "train_steps": 0, "disp_freq": 0, "validate_freq": 0, "test_freq": 0}
        elif steps is not None:
            every = max(1, steps // 10)
            often = {"validate_freq": every * ("val" in phases), "test_freq": every * ("test" in phases)}
            times = {"train_steps": steps, "epochs": 0, "disp_freq": every, **often}
        else:
            times = {}
        return {name: value for name, value in times.items() if name not in fields}

    @checked
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        train_steps: int | None = None,
        steps_per_epoch: int | None = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | str | None = None,
        validation_data: Any = None,
        validation_split: float = 0.0,
        validation_steps: int | None = None,
        callbacks: Any = (),
        client: Client | None = None,
        workers: int | None = None,
        seed: int | None = None,
        workspace: str | os.PathLike[str] | None = None,
        resume: bool | str | os.PathLike[str] = False,
        progress: bool = True,
        shuffle: bool = True,
        **fields: Unpack[FitFields],
    ) -> History:
        """Train the model and return the history, whose rows are one an epoch.

        A second call goes on: from the params, the optimizer's state and its step, on which schedules depend.
        ``compile`` and setting the params begin the optimizer anew.

        Ctrl-C, or the stop button of a notebook, ends training after the round in flight. The model then has the params
        of that round, or the best ones where a callback keeps these, and KeyboardInterrupt is raised.

        Args:
            x: records, and labels where they have them; see :meth:`job`. A generator, or another iterable of batches
                (x, y) or (x, y, weights), is read once, into memory, to its end or for ``steps_per_epoch`` batches.
            y: labels.
            steps_per_epoch: the number of batches that are read of a generator, and so, where all have as many rows,
                the steps of an epoch. Without it an endless generator is refused when half of the free memory is full.
            sample_weight: a factor w for the loss l of each record, (n,), or of each step or point that has a label of
                its own, (n, ...): the loss is Σ w·l over the number of records, as in Keras, whatever the weights add
                up to. Shares of right predictions are Σ w·right / Σ w.
            class_weight: a factor for the loss of each class, by label, 1 for the others; ``sample_weight`` multiplies
                it. "balanced" stands for n / (k·n_c), where n_c of n labels are of the class, and k classes occur.
            epochs: how many times all records are read, by default once.
            batch_size: rows of a batch, at most the number of records; by default as many as the first batch of a
                generator has, or those of a DataLoader or PyDataset, and 32 for other records.
            train_steps: the number of batches, in place of ``epochs``.
            validation_data: (x, y), with which the model is validated after each epoch, or (x, y, sample_weight); or a
                generator of such batches, which is read once.
            validation_split: the share of the records that validates in its place, the last ones of arrays, before
                training shuffles them.
            validation_steps: the number of batches that are read of a generator of ``validation_data``.
            callbacks: objects of ``dsinga.extensions``, and functions of (step, metrics); a list, or a single one.
            client: a Dask client; by default as for :func:`dsinga.train`.
            workers: the number of workers of each worker group.
            seed: determines all random numbers; by default 0, and another number for each further call.
            workspace: folder for metrics and checkpoints.
            resume: as for :func:`dsinga.train`: continue from the newest checkpoint in the workspace, or from that at a
                path; "auto" continues if there is one and begins else.
            progress: whether to show progress; Keras's ``verbose`` is 0 to show none.
            shuffle: False reads the records in the order given, in each epoch; several worker groups take the batches
                in turn.
            fields: further fields of the job.

        Raises:
            UserError: shapes, losses and data do not fit.
            RunError: where a worker or a server is lost during training, or the checkpoints of a BackupAndRestore
                cannot be removed after it.
        """
        self._refuse_while_training("a further fit")
        self.require_loss()
        callbacks = listed(callbacks)
        backups = [each for each in callbacks if isinstance(each, BackupAndRestore)]
        size = None if is_iterable(x) else size_of_batches(x)
        if steps_per_epoch is not None and not is_iterable(x):
            raise UserError(
                "steps_per_epoch is for batches of a generator: an epoch reads all records; use train_steps"
            )
        (x, y, sample_weight), rows = read_iterable(x, y, sample_weight, steps_per_epoch, batch_size, seed)
        batch_size = size or rows if batch_size is None else batch_size
        if validation_data is not None and is_iterable(validation_data):
            validation_data, _ = read_iterable(validation_data, None, None, validation_steps, batch_size, seed)
        elif validation_steps is not None:
            raise UserError(
                "validation_steps is for batches of a generator: validation reads all records; use validate_steps"
            )
        y, sample_weight = without_missing(y, sample_weight, self.loss_of_labels())
        held_x, held_y, held_weights = split_data(validation_data)
        if isinstance(held_y, np.ndarray):
            validation_data = (held_x, *without_missing(held_y, held_weights, self.loss_of_labels()))
        for backup in backups:
            workspace, resume = backup.backup_dir, "auto"
            if isinstance(backup.save_freq, int):
                fields.setdefault("checkpoint_freq", backup.save_freq)
        cluster: Any = find_runner(client, waits=True)
        check_names("fit", [*inspect.signature(Trainable.fit).parameters, *field_names(Job)], fields)
        if epochs is None and train_steps is None:
            epochs = self.default_epochs
        if validation_split:
            if validation_data is not None:
                raise UserError("give validation_split or validation_data, not both")
            if isinstance(x, list) and len(self.input_names()) == 1:  # records, not arrays of several inputs
                x = np.asarray(as_codes(x, self.input_names()[0], self.text_encoders()))
            (x, y, sample_weight), validation_data = split_off((x, y, sample_weight), validation_split)
        pairs, held_out = (
            self._pairs(*split_data(data)[:2]) if has_data(data) else {} for data in ((x, y), validation_data)
        )
        trained = {name: shape[1:] for name, shape in shapes_of(pairs).items()}
        if class_weight is not None:
            if len(self.label_inputs()) > 1:
                raise UserError("class_weight is for models of one loss, because it weighs all; give sample_weight")
            labels = next(iter(pairs.values()), (None, None))[1]
            sample_weight = weights_of_classes(class_weight, labels, self.loss_of_labels(), sample_weight)
        with self._explained(pairs), naming_shapes(shapes_of(held_out), trained):
            begin = FitBegin(self._fits, self._training_state.steps)
            begin = self._begins.resumed(workspace, resume, begin)
            arguments = self._job_arguments(
                {"train": (x, y), "val": validation_data}, sample_weight, batch_size, epochs, train_steps,
                {**fields, "seed": begin.seed if seed is None else seed},
            )  # fmt: skip
            job = with_open_stores(self._bound_job(arguments), arguments.phases)
            job = job if shuffle else in_order_given(job)
            kept = RescuedParams("the model")
            job = job.replace(updater=job.updater.replace(earlier_steps=job.updater.earlier_steps + begin.steps))
            steps = self._steps_of_epoch(arguments)
            if backups and not job.checkpoint_freq:
                job = job.replace(checkpoint_freq=steps)
            self.stop_training = False
            events = {"epochs": epochs or 1, "steps": steps, "verbose": int(progress)}
            others = [each for each in callbacks if each not in backups]
            params, slots = self._params, self._training_state.slots
            try:
                with self._training(begin.steps) as running:
                    extensions = [
                        KerasEvents(each, self, running, events) if is_keras_callback(each) else each for each in others
                    ]
                    result = api.train(
                        job, cluster, workers=workers, workspace=workspace, resume=resume, progress=progress,
                        extensions=[*extensions, kept], params=params, updater_state=slots,
                    )  # fmt: skip
            finally:  # an interrupt leaves what was trained until then
                if kept.params is not None:
                    self._take(kept, job, arguments, begin, workspace)
        self.result = result
        for backup in backups:
            if backup.delete_checkpoint:
                remove_checkpoints(os.fspath(backup.backup_dir))
        return result.history

    def _steps_of_epoch(self, arguments: JobArguments) -> int:
        """Return how many steps an epoch of the records of training has."""
        records = [len(source) for source in arguments.phases["train"].sources.values()] if arguments.phases else [1]
        return max(1, -(-min(records, default=1) // (arguments.batch_size or 1)))

    @checked
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | str | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Train on one batch of numpy arrays, in this process, and return the loss of before the step.

        The optimizer goes on from the last step or fit, and the next fit from here; in an event of a callback, the fit
        that goes on, which does not count the step. With ``compile(metrics=...)`` it
        is a list, the loss and then these; with ``return_dict`` all metrics by name. Raises UserError for bad input.
        """
        self.require_loss()
        if self._fit is not None:
            self._fit.check_open()
        x, y = self._batch(x, y)
        y, sample_weight = without_missing(y, sample_weight, self.loss_of_labels())
        pairs = self._pairs(x, y)
        if class_weight is not None:
            labels = next(iter(pairs.values()))[1]
            sample_weight = weights_of_classes(class_weight, labels, self.loss_of_labels(), sample_weight)
        shapes = {name: (np.shape(records)[1:], np.shape(labels)[1:]) for name, (records, labels) in pairs.items()}
        key = shapes, sample_weight is None, self.trained_layers()
        with self._explained(pairs):
            net, records, labels = self._local_batch(pairs, sample_weight, key)
            assert self._batch_steps is not None
            self._params, metrics = self._batch_steps[1].step(self._known_params(net), records, labels)
        self._training_state = self._batch_steps[1].state
        return self._figures(metrics, return_dict)

    def trained_layers(self) -> list[bool]:
        """Return which of the layers whose ``trainable`` can be set are trained."""
        return []

    def _batch(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return the records and labels of a batch as numpy arrays in the order of training."""
        inputs, label_inputs = self.input_names(), self.label_inputs()
        x, y, self._loaded_names = batch_in_order(x, y, inputs, label_inputs, self.record_names())
        return x, y

    def _local_batch(self, pairs: Any, weights: Any, key: Any) -> tuple[LocalNet, Any, Any]:
        """Return the net of a batch, its records and labels; the net is kept for further batches of these shapes."""
        kept = self._batch_steps
        if kept is None or kept[0] != key or kept[1].state is not self._training_state:
            net, records, labels = self._local(pairs, True, weights, "train")
            self._batch_steps = key, BatchSteps(net, self._training_state)
            return net, records, labels
        records = {name: x for name, (x, _) in pairs.items()}
        if weights is not None:
            records[SAMPLE_WEIGHT] = add_weights(open_inputs(pairs), weights)
        return kept[1].net, records, {name: y for name, (_, y) in pairs.items() if y is not None} or None

    def _figures(self, metrics: Mapping[str, float], return_dict: bool) -> Any:
        """Return metrics as Keras's methods of batches do: the loss, a list, or all by name."""
        if return_dict:
            return dict(metrics)
        names = self._reported(metrics)
        values = [np.float64(metrics[name]) for name in ("loss", *names)]  # which have item(), as those of Keras
        return values if names else values[0]

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """Return the loss of a batch of numpy arrays, and metrics, as :meth:`train_on_batch` does, without a step."""
        return self._figures(
            self.evaluate(*self._batch(x, y), sample_weight=sample_weight, return_dict=True), return_dict
        )

    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs for a batch of numpy arrays, as :meth:`predict` does."""
        return self.predict(x)

    def _take(self, kept: RescuedParams, job: Job, arguments: JobArguments, begin: FitBegin, workspace: Any) -> None:
        """Go on from what a fit has trained, however it has ended."""
        assert kept.params is not None
        assert kept.net is not None
        self._arguments = arguments.described()
        self._training_state = TrainingState(begin.steps + kept.step, kept.slots)
        self._params, self._complete, self._fits = kept.params, True, begin.seed + 1
        self._begins.note(workspace, begin)
        self.result = api.Result(job, kept.params, kept.history, kept.net, kept.step, workspace)
