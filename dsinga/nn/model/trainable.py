"""Trains models, or converts them to jobs: ``fit``, ``train_on_batch`` and ``job``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from dsinga.api.workspaces import remove_checkpoints
from dsinga.base.arguments import check_bool, unknown_name, with_types
from dsinga.base.errors import UserError
from dsinga.data import RecordSource
from dsinga.data.sources.data_loaders import size_of_batches
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job
from dsinga.job.enums import PRECISIONS, Precision
from dsinga.job.message import field_names
from dsinga.monitor import History
from dsinga.nn.model import fitting
from dsinga.nn.model.column_scales import remark_on_columns, remark_on_softmax
from dsinga.nn.model.given_data import FitFields, JobFields, batch_in_order, listed
from dsinga.nn.model.predictable import Predictable
from dsinga.nn.model.predicting import arrays_of, kinds_of_records, local_net, reported
from dsinga.nn.model.records import explained, label_inputs_for, labelled
from dsinga.nn.model.training_state import (
    BatchSteps,
    leave_to_user,
    optimizer_fields,
    set_trained,
    with_state,
)
from dsinga.nn.words.keras_arguments import check_names, checked
from dsinga.nn.writing.symbol import Symbol
from dsinga.reading.pairs import ALL_IN_AN_EPOCH, ALL_VALIDATE, read_iterable, split_data

if TYPE_CHECKING:  # Dask is imported only when needed
    from distributed import Client

# What to write for precisions of other libraries.
HALF = dict.fromkeys(("float16", "fp16", "half", "mixed_float16", "16", "bfloat16", "mixed_bfloat16"), 'use "bf16"')


class Trainable(Predictable):
    """Base class of models, with the methods ``fit``, ``train_on_batch`` and ``job``.

    Attributes:
        default_batch_size: default rows of a batch, None for the job's.
        default_epochs: default epochs of a ``fit``, None for the job's steps.
    """

    default_batch_size: int | None = 32
    default_epochs: int | None = 1

    def _inputs(self) -> list[Symbol]:
        """Return the symbolic tensors of the inputs; none for a model of a job."""
        return []

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
        checkpoint_freq: int | None = None,
        precision: str | None = None,
        gpu: Sequence[int] | None = None,
        micro_batches: int | None = None,
        blocks: int | None = None,
        **job_fields: Unpack[JobFields],
    ) -> Job:
        """Return the model as a job, with the fields of a job file.

        The job begins with the model's params, if set; its text does not contain them.

        Args:
            x: records, as for :meth:`fit`; a path becomes part of the job. Without records, ``nn.Input`` needs a shape.
            y: labels, unless ``x`` has them.
            sample_weight: as for :meth:`fit`.
            validation_data: as for :meth:`fit`.
            test_data: test records, in the same forms.
            batch_size: rows of a batch, by default 32, and at most the number of records.
            epochs: how many times all records are read.
            train_steps: number of batches, instead of ``epochs``.
            seed: determines all random numbers, by default 0.
            cluster: topology, instead of ``compile``'s.
            name: name of the job, by default the model's.
            checkpoint_freq: steps between checkpoints.
            precision: as for :meth:`fit`.
            gpu: as for :meth:`fit`.
            micro_batches: as for :meth:`fit`.
            blocks: as for :meth:`fit`.
            job_fields: further fields of the job: docs/reference/job-fields.md.

        Raises:
            UserError: shapes, losses and data do not fit.

        Examples:
            >>> from dsinga import nn
            >>> model = nn.Sequential([nn.Input(4), nn.Dense(2)])
            >>> model.compile("adam", "mse")
            >>> job = model.job(epochs=5, checkpoint_freq=100)
            >>> job.epochs
            5
        """
        settings = _job_settings(
            Trainable.job, job_fields, checkpoint_freq=checkpoint_freq, precision=precision, gpu=gpu,
            micro_batches=micro_batches, blocks=blocks, seed=seed, cluster=cluster, name=name,
        )  # fmt: skip
        data = {"train": (x, y, sample_weight), "val": split_data(validation_data), "test": split_data(test_data)}
        phases = {phase: labelled(self, of_phase) for phase, of_phase in data.items()}
        job = fitting.bound_job(self, fitting.job_arguments(self, phases, batch_size, epochs, train_steps, settings))
        params = fitting.begin_params(self, None)
        leave_to_user(params)
        return job.with_params(params)

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
        checkpoint_freq: int | None = None,
        precision: str | None = None,
        gpu: Sequence[int] | None = None,
        micro_batches: int | None = None,
        blocks: int | None = None,
        **job_fields: Unpack[FitFields],
    ) -> History:
        """Train the model and return the history, which has a row for each epoch.

        A second call continues from the params and the optimizer's state and step. ``compile`` and setting the params
        reset the optimizer. Ctrl-C, or a notebook's stop button, ends training after the current round and raises
        KeyboardInterrupt. The model keeps the params of that round, or the best ones if a callback keeps them.

        Args:
            x: arrays of numpy, dask or xarray, a zarr store's path, ``dsinga.table(frame)``, ``dsinga.windows(ds)``, a
                list or dict of them by input, or a generator of batches (x, y), which is read into memory once.
            y: labels.
            epochs: how many times all records are read, by default once.
            batch_size: rows of a batch, at most the number of records. By default 32, or the rows of the first batch of
                a generator, DataLoader or PyDataset.
            train_steps: number of batches, instead of ``epochs``.
            steps_per_epoch: how many batches of a generator are read; an endless generator needs it.
            sample_weight: factor w for the loss l of each record, (n,), or of each step or point with a label, (n,
                ...). The loss is Σ w·l over the number of records, as in Keras; accuracies are Σ w·right / Σ w.
            class_weight: factor by label, or by class name of a table, 1 for the others. "balanced" is n / (k·n_c) for
                a class with n_c of n labels, if k classes occur.
            validation_data: (x, y), (x, y, sample_weight), or a generator of such, to validate with after each epoch.
            validation_split: share of the records to validate with instead: the last ones before shuffling.
            validation_steps: how many batches of a ``validation_data`` generator are read.
            callbacks: one or a list of ``dsinga.extensions`` objects and functions of (step, metrics).
            client: Dask client; by default as for :func:`dsinga.train`.
            workers: number of workers of each worker group.
            seed: determines all random numbers; by default 0, then another for each further call.
            workspace: folder for metrics and checkpoints.
            resume: True to continue from the newest checkpoint of the workspace, or the path of a checkpoint. "auto"
                starts from scratch if the workspace has no checkpoint.
            progress: whether to show progress.
            shuffle: False to read the records in order; worker groups take turns at the batches.
            checkpoint_freq: steps between checkpoints.
            precision: "bf16" to multiply in bfloat16, "tf32" in TF32 on GPUs; by default "float32".
            gpu: numbers of the GPUs to compute on, such as [0, 1].
            micro_batches: in how many turns a batch is computed, to save memory. The bits of ``blocks`` stay the same.
            blocks: number of parts of a batch that workers share; any number of workers then gives the same bits.
            job_fields: further fields of the job, such as ``skip_bad_batches``: docs/reference/job-fields.md.

        Raises:
            UserError: shapes, losses and data do not fit.
            RunError: a worker or a server is lost, or checkpoints of a BackupAndRestore cannot be removed.

        Examples:
            >>> import numpy as np
            >>> from dsinga import nn
            >>> x = np.random.default_rng(0).normal(size=(100, 4))
            >>> y = (x[:, 0] > 0).astype(int)
            >>> model = nn.Sequential([nn.Dense(8, activation="relu"), nn.Dense(2)])
            >>> model.compile("adam", "sparse_categorical_crossentropy")
            >>> history = model.fit(x, y, epochs=20, validation_split=0.2, progress=False)
            >>> history[-1]["phase"], history[-1]["epoch"]
            ('val', 20)
            >>> from distributed import Client # doctest: +SKIP
            >>> model.fit(x, y, client=Client(n_workers=4, threads_per_worker=1)) # doctest: +SKIP
        """
        self.refuse_while_training("a further fit")
        self.require_loss()
        check_bool("shuffle", shuffle)
        settings = _job_settings(
            Trainable.fit, job_fields, checkpoint_freq=checkpoint_freq, precision=precision, gpu=gpu,
            micro_batches=micro_batches, blocks=blocks,
        )  # fmt: skip
        data, rows = read_iterable((x, y, sample_weight), steps_per_epoch, batch_size, seed, ALL_IN_AN_EPOCH)
        batch_size = rows or size_of_batches(x) if batch_size is None else batch_size
        held_out, _ = read_iterable(split_data(validation_data), validation_steps, batch_size, seed, ALL_VALIDATE)
        phases = fitting.records_of_fit(self, data, held_out, validation_split, class_weight)
        if not self.trained.steps:
            remark_on_columns(self._inputs(), phases["train"].pairs)
        run = fitting.RunSettings(listed(callbacks), client, workers, progress)
        begin = fitting.begin_fit(self, workspace, resume, run.callbacks, settings)
        settings["seed"] = begin.seed if seed is None else seed
        epochs = self.default_epochs if epochs is None and train_steps is None else epochs
        with explained(self, *(pairs for pairs, _ in phases.values())):
            arguments = fitting.job_arguments(self, phases, batch_size, epochs, train_steps, settings)
            job = fitting.job_of_fit(self, arguments, begin, shuffle)
            if not self.trained.steps:
                remark_on_softmax(job.neuralnet.layer)
            self.result = fitting.run_fit(self, job, arguments, begin, run)  # includes the remarks of the whole run
        for backup in begin.backups:
            if backup.delete_checkpoint:
                remove_checkpoints(os.fspath(backup.backup_dir))
        return self.result.history

    @checked
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | str | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Train on one batch of numpy arrays in this process, and return the loss before the step.

        The optimizer continues from the last step or fit. In a callback, the running fit continues from here, without
        counting the step. With ``compile(metrics=...)`` the result is a list of the loss and these metrics; with
        ``return_dict`` a dict. Raises UserError for bad input.

        Examples:
            >>> import numpy as np
            >>> from dsinga import nn
            >>> model = nn.Sequential([nn.Dense(1, kernel_initializer="zeros")])
            >>> model.compile("sgd", "mse")
            >>> float(model.train_on_batch(np.ones((8, 3)), np.ones((8, 1))))
            1.0
        """
        self.require_loss()
        if optimizer_fields(self).get("ema_conf") is not None:
            raise UserError(
                "train_on_batch never ends, and use_ema gives the averages of params at the end of a fit; call fit "
                "with train_steps=1, or leave use_ema out"
            )
        if self._fits.running is not None:
            self._fits.running.check_open()
        data = labelled(self, (*_batch(self, x, y), sample_weight))
        pairs, sample_weight = fitting.with_class_weights(self, data, class_weight)
        shapes = {name: (np.shape(records)[1:], np.shape(labels)[1:]) for name, (records, labels) in pairs.items()}
        key = shapes, sample_weight is None, [layer.trainable for layer in self._builders()], optimizer_fields(self)
        with explained(self, pairs):
            net, records, labels = _local_batch(self, pairs, sample_weight, key)
            assert self._fits.batch_steps is not None
            params = self.known_params(net)
            trained, metrics = self._fits.batch_steps[1].step(with_state(self), params, records, labels)
            set_trained(self, trained)
        return _figures(self, metrics, return_dict)

    @with_types
    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """Return the loss and metrics of a batch of numpy arrays, without training."""
        x, y = (x, y) if self.trained_definitions() else _batch(self, x, y)
        return _figures(self, self.evaluate(x, y, sample_weight=sample_weight, return_dict=True), return_dict)

    @with_types
    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs for a batch of numpy arrays."""
        return self.predict(x)


def _job_settings(function: Any, fields: Mapping[str, Any], **named: Any) -> dict[str, Any]:
    """Collect the job fields among the arguments of ``fit`` or ``job``."""
    if fields:
        known = [name for name in inspect.signature(function).parameters if name != "job_fields"]
        check_names(function.__name__, [*known, *field_names(Job)], fields)
    if isinstance(named.get("gpu"), bool):
        raise UserError(f"gpu has the numbers of the GPUs to compute on, as in gpu=[0], not {named['gpu']}")
    precision, precisions = named.get("precision"), {name: member.name for member, name in PRECISIONS.items()}
    if isinstance(precision, str) and precision not in Precision.__members__:
        if precision not in precisions:
            raise unknown_name("precision", precision, precisions, HALF)
        named["precision"] = precisions[precision]
    return {**fields, **{name: value for name, value in named.items() if value is not None}}


def _batch(model: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return a batch's records and labels as numpy arrays. Raises UserError for sources of records and for tables."""
    if any(by.is_encoded for by in kinds_of_records(model, None)) or isinstance(x, RecordSource):
        raise UserError("train_on_batch takes arrays; give fit the data frame, or the records, with train_steps=1")
    inputs, label_inputs = model.input_names(), label_inputs_for(model, x)
    x, y, names = batch_in_order(x, y, inputs, label_inputs, model.trained.names)
    if names != model.trained.names:
        model.trained = replace(model.trained, names=names)
    return x, y


def _local_batch(model: Any, pairs: Any, weights: Any, key: Any) -> tuple[LocalNet, Any, Any]:
    """Return the net, cached for these shapes, with records and labels for a batch."""
    kept, trained = model._fits.batch_steps, with_state(model)
    if kept is None or kept[0] != key or kept[1].slots is not trained.slots:
        net, records, labels = local_net(model, pairs, True, weights, "train")
        model._fits = replace(model._fits, batch_steps=(key, BatchSteps(net, trained)))
        return net, records, labels
    return kept[1].net, *arrays_of(pairs, weights)


def _figures(model: Any, metrics: Mapping[str, float], return_dict: bool) -> Any:
    """Return metrics in Keras's form: the loss, a list of loss and metrics, or a dict."""
    if return_dict:
        return dict(metrics)
    names = reported(model, metrics)
    first = "loss" if "loss" in metrics else next(iter(metrics))  # of RBMs, the error of the reconstruction
    values = [np.float64(metrics[name]) for name in (first, *names)]  # numpy numbers have item(), as Keras's results
    return values if names else values[0]
