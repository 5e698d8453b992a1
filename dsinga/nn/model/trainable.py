"""Trainable: training, testing and predicting, for models described in Python and for those of job files."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

import dsinga.api as api
from dsinga.api.workspaces import remove_checkpoints
from dsinga.base.errors import UserError
from dsinga.data import FieldWindows
from dsinga.data.array_kinds import is_a
from dsinga.data.sources.items import is_iterable
from dsinga.data.text_codes import TextEncoder
from dsinga.engine.local_net import LocalNet
from dsinga.extensions import BackupAndRestore, KerasEvents, is_keras_callback
from dsinga.job import Job
from dsinga.job.message import field_types
from dsinga.loop.kept_run import KeptRun
from dsinga.monitor import History
from dsinga.net.members import with_member
from dsinga.net.sample_weights import SAMPLE_WEIGHT
from dsinga.nn.model.batch_steps import BatchSteps
from dsinga.nn.model.channels import labels_first, outputs_last
from dsinga.nn.model.figures import Figures
from dsinga.nn.model.given_data import (
    as_arrays,
    as_codes,
    check_whole_numbers,
    listed,
    read_iterable,
    size_of_batches,
)
from dsinga.nn.model.job_fields import FitFields, JobFields
from dsinga.nn.model.model_params import ModelParams
from dsinga.nn.model.records import (
    JobArguments,
    Pair,
    PhaseRecords,
    are_numpy,
    describe_arrays,
    has_data,
    least_batch,
    naming_shapes,
    open_inputs,
    pair_up,
    read_label_paths,
    shapes_of,
    split_data,
    with_open_stores,
)  # fmt: skip
from dsinga.nn.model.sample_weights import add_weights, weights_of_classes
from dsinga.nn.model.training_state import FitBegin, TrainingState
from dsinga.nn.model.validation_split import split_off
from dsinga.nn.words.keras_arguments import check_names, checked
from dsinga.nn.writing.symbol import Symbol, flatten
from dsinga.reading.bind_records import bind_records, has_no_rows, row_of_zeros

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client


class Trainable(ModelParams):
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
        check_names("job", [*inspect.signature(Trainable.job).parameters, *field_types(Job)], fields)
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
        for phase in phases.keys() & {"val", "test"}:
            trained = phases["train"].windows if "train" in phases else {}
            phases[phase] = phases[phase].in_order_of(trained)
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
        self,
        phases: Mapping[str, PhaseRecords],
        epochs: int | None,
        steps: int | None,
        fields: Mapping[str, Any],
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

    def _pairs(self, x: Any, y: Any) -> dict[str, Pair]:
        if isinstance(x, tuple) and len(x) == 2 and y is None and len(self.input_names()) == 1:
            x, y = x
        label_inputs = self.label_inputs()
        y = read_label_paths(y, len(label_inputs))
        y = self.as_labels(labels_first(y) if self.has_channels_last() else y)
        return self._as_codes(pair_up(x, y, self.input_names(), label_inputs))

    def _as_codes(self, pairs: Mapping[str, Pair]) -> dict[str, Pair]:
        """Return the records of each input with arrays of codes in place of texts and of sequences."""
        encoders = self.text_encoders()
        return {name: (as_codes(x, name, encoders), y) for name, (x, y) in pairs.items()}

    def text_encoders(self) -> dict[str, TextEncoder | None]:
        """Return what makes codes of the texts of each input that takes texts, None for one of codes of any length."""
        return {}

    def has_channels_last(self) -> bool:
        """Whether the records are images, or volumes, with their channels last; so are labels and outputs then."""
        return False

    def as_labels(self, y: Any) -> Any:
        """Return labels in the form that the losses take."""
        return y

    def loss_of_labels(self) -> Any:
        """Return the loss that ``compile`` was given for the first output, None where it was given none."""
        return None

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
        callbacks: Any = (),
        client: Client | None = None,
        workers: int | None = None,
        seed: int | None = None,
        workspace: str | os.PathLike[str] | None = None,
        resume: bool | str | os.PathLike[str] = False,
        progress: bool = True,
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
            epochs: how many times all records are read, by default once. Training shuffles the records.
            batch_size: rows of a batch, at most the number of records; by default as many as the first batch of a
                generator has, or those of a DataLoader, and 32 for other records.
            train_steps: the number of batches, in place of ``epochs``.
            validation_data: (x, y), with which the model is validated after each epoch, or (x, y, sample_weight).
            validation_split: the share of the records that validates in its place, the last ones of arrays, before
                training shuffles them.
            callbacks: objects of ``dsinga.extensions``, and functions of (step, metrics); a list, or a single one.
            client: a Dask client; by default as for :func:`dsinga.train`.
            workers: the number of workers of each worker group.
            seed: determines all random numbers; by default 0, and another number for each further call.
            workspace: folder for metrics and checkpoints.
            resume: as for :func:`dsinga.train`: continue from the newest checkpoint in the workspace, or from that at a
                path; "auto" continues if there is one and begins else.
            progress: whether to show progress.
            fields: further fields of the job.

        Raises:
            UserError: shapes, losses and data do not fit.
            RunError: where a worker or a server is lost during training, or the checkpoints of a BackupAndRestore
                cannot be removed after it.
        """
        self.require_loss()
        callbacks = listed(callbacks)
        backups = [each for each in callbacks if isinstance(each, BackupAndRestore)]
        size = size_of_batches(x)
        if steps_per_epoch is not None and not is_iterable(x):
            raise UserError(
                "steps_per_epoch is for batches of a generator: an epoch reads all records; use train_steps"
            )
        (x, y, sample_weight), rows = read_iterable(x, y, sample_weight, steps_per_epoch)
        batch_size = size or rows if batch_size is None else batch_size
        if validation_data is not None and is_iterable(validation_data):
            validation_data, _ = read_iterable(validation_data)
        for backup in backups:
            workspace, resume = backup.backup_dir, "auto"
            if isinstance(backup.save_freq, int):
                fields.setdefault("checkpoint_freq", backup.save_freq)
        cluster: Any = api.find_cluster(client, waits=True)
        check_names("fit", [*inspect.signature(Trainable.fit).parameters, *field_types(Job)], fields)
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
            kept = KeptRun("the model")
            job = job.replace(updater=job.updater.replace(earlier_steps=job.updater.earlier_steps + begin.steps))
            steps = self._steps_of_epoch(arguments)
            if backups and not job.checkpoint_freq:
                job = job.replace(checkpoint_freq=steps)
            self.stop_training = False
            events = {"epochs": epochs or 1, "steps": steps, "verbose": int(progress)}
            others = [each for each in callbacks if each not in backups]
            extensions = [KerasEvents(each, self, events) if is_keras_callback(each) else each for each in others]
            try:
                result = api.train(
                    job, cluster, workers=workers, workspace=workspace, resume=resume, progress=progress,
                    extensions=[*extensions, kept], params=self._params,
                    updater_state=self._training_state.slots,
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

        The optimizer goes on from the last step or fit, and the next fit from here. With ``compile(metrics=...)`` it
        is a list, the loss and then these; with ``return_dict`` all metrics by name. Raises UserError for bad input.
        """
        self.require_loss()
        pairs = self._pairs(*self._batch(x, y))
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
        """Return the records and labels of a batch as numpy arrays."""
        return as_arrays(x, len(self.input_names()) > 1), as_arrays(y, len(self.label_inputs()) > 1)

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
        return [metrics["loss"], *(metrics[name] for name in names)] if names else metrics["loss"]

    def _reported(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the names of the metrics of ``compile`` that are among these."""
        return [name for name in map(str, getattr(self, "metrics", ())) if name in metrics]

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """Return the loss of a batch of numpy arrays, and metrics, as :meth:`train_on_batch` does, without a step."""
        return self._figures(self.evaluate(*self._batch(x, y), sample_weight=sample_weight), return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs for a batch of numpy arrays, as :meth:`predict` does."""
        return self.predict(x)

    def _take(self, kept: KeptRun, job: Job, arguments: JobArguments, begin: FitBegin, workspace: Any) -> None:
        """Go on from what a fit has trained, however it has ended."""
        assert kept.params is not None
        assert kept.net is not None
        self._arguments = arguments.described()
        self._training_state = TrainingState(begin.steps + kept.step, kept.slots)
        self._params, self._complete, self._fits = kept.params, True, begin.seed + 1
        self._begins.note(workspace, begin)
        self.result = api.Result(job, kept.params, kept.history, kept.net, kept.step, workspace)

    def require_loss(self) -> None:
        """Raise UserError for a model that ``compile`` has given no loss."""

    @checked
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        *,
        sample_weight: Any = None,
        batch_size: int | None = None,
        client: Client | None = None,
        by: Any = None,
        against: Any = (),
    ) -> Any:
        """Return the mean loss and metrics over all records by name; ``loss, accuracy = model.evaluate(x, y)`` works.

        With ``sample_weight`` the loss and the shares of right predictions are those of :meth:`fit`; other metrics
        count each record once. numpy arrays are computed in this process unless a client is given. Raises UserError for
        bad input.

        Of windows of a Dataset ``by`` names groups, such as ("variable", "lead", "season"), and ``against`` baselines:
        then the result is a Dataset of errors, see :func:`dsinga.evaluate_fields`.
        """
        check_whole_numbers(batch_size=batch_size)
        if by is not None or against:
            return self._evaluate_fields(x, batch_size, client, () if by is None else by, against)
        (x, y, sample_weight), _ = read_iterable(x, y, sample_weight)
        pairs = self._pairs(x, y)
        if client is None and are_numpy(pairs):
            with self._explained(pairs):
                labelled = any(y is not None for _, y in pairs.values())
                net, records, labels = self._local(pairs, labelled, sample_weight)
                figures = net.evaluate(self._known_params(net), records, labels, batchsize=batch_size)
            return Figures(figures, self._reported(figures))
        cluster: Any = api.find_cluster(client, waits=True)
        opened = open_inputs(pairs, self.record_names()).in_order_of(self.trained_windows())
        if sample_weight is not None:
            add_weights(opened, sample_weight)
        job, data = self._test_job(opened, batch_size)
        means = api.evaluate(job, self._require_params(), client=cluster, data=data)
        return Figures(means, self._reported(means))

    def _evaluate_fields(self, x: Any, batch_size: int | None, client: Any, by: Any, against: Any) -> Any:
        """Return the errors of the output as a prediction of the targets of windows, by group."""
        if not isinstance(x, FieldWindows):
            raise UserError("by and against are for windows of a Dataset, as of dsinga.windows")
        layers = self.output_layers()
        if len(layers) != 1:
            raise UserError(f"errors by group are those of a model with one output, not {len(layers)}")
        cluster: Any = api.find_cluster(client, waits=True)
        opened = open_inputs(self._pairs(x, None), self.record_names()).in_order_of(self.trained_windows())
        job, data = self._test_job(opened, batch_size)
        return api.evaluate_fields(
            job, self._require_params(), layers[0], client=cluster, by=by, against=against, data=data
        )

    def _test_job(self, records: PhaseRecords, batch_size: int | None) -> tuple[Job, dict[str, Any] | None]:
        """Return the job that tests ``records``, and its data."""
        job = self.make_job({"train": records, "test": records}, batch_size, {})
        return job, {"test": records.sources} if records.sources else None

    @checked
    def predict(
        self,
        x: Any = None,
        *,
        batch_size: int | None = None,
        client: Client | None = None,
        leads: int | None = None,
        members: int | None = None,
    ) -> Any:
        """Return the outputs for all records, (n, ...) numpy; a list for several outputs.

        A numpy array is computed in this process unless a client is given. For an xarray Dataset or DataArray, or the
        path of one, the output of a model that was trained from windows is a lazy Dataset of their targets, which Dask
        computes, for so many ``leads`` as are given: see :func:`dsinga.predict_lazily`. With ``members`` the result has
        a first dimension "member", for nets that are drawn from those which the model's dropout trains, (members, n,
        ...). Raises UserError for bad input.
        """
        check_whole_numbers(batch_size=batch_size, members=members)
        (x, _, _), _ = read_iterable(x)
        is_dataset = is_a(x, "xarray", "Dataset", "DataArray") or isinstance(x, (str, os.PathLike))
        if is_dataset and self.is_of_windows():
            return self._predict_dataset(x, leads, members)
        if leads is not None:
            raise UserError("leads are those of a Dataset, for a model that was trained from windows of one")
        pairs = self._as_codes(pair_up(x, None, self.input_names(), self.input_names()[:1]))
        if not self.record_shapes and are_numpy(pairs):  # a model whose inputs say no shape, before its first fit
            self.record_shapes = describe_arrays(pairs).shapes
        if members is not None:
            return self._predict_members(pairs, members, batch_size, client)
        outputs = self.features(x, self.output_layers(), batch_size=batch_size, client=client)
        return outputs_last(outputs) if self.has_channels_last() else outputs

    def _predict_members(self, pairs: Any, members: int, batch_size: int | None, client: Client | None) -> Any:
        """Return the outputs of each member of an ensemble by dropout, (members, n, ...); a list for several."""
        job, data = self._job_of_features(pairs, batch_size)
        jobs = [with_member(job, member) for member in range(1, members + 1)]
        format_of = outputs_last if self.has_channels_last() else np.asarray
        outputs = [
            np.stack(
                [
                    format_of(api.predict(of_member, self._require_params(), name, client=client, data=data))
                    for of_member in jobs
                ]
            )
            for name in self.output_layers()
        ]
        return outputs[0] if len(outputs) == 1 else outputs

    def __call__(self, inputs: Any, *further: Any, training: bool | None = None) -> Any:
        """Return what the model makes of features, as a layer does, or of arrays, as :meth:`predict` does.

        Models that have a layer share its params. Raises UserError for ``training=True``, which fit is for.
        """
        if training:
            raise UserError("model(x, training=True) is not there: fit trains, and model(x) is what predict returns")
        given = [inputs, *further] if further else inputs
        features = flatten(given.values() if isinstance(given, dict) else [given])
        if any(isinstance(feature, Symbol) for feature in features):
            return self.on_features(features)
        return self.predict(given)

    def on_features(self, features: Sequence[Any]) -> Any:
        """Return the symbols of the outputs of the model on these symbols. Raises UserError for a model of a job."""
        raise UserError(
            f"{self!r} is no layer, because its layers are in a job; model.features(x, layer) computes them"
        )

    def trained_windows(self) -> dict[str, Any]:
        """Return the settings of the windows of a Dataset of training, by input; none for other records."""
        return self._arguments.phases["train"].windows if self._arguments and "train" in self._arguments.phases else {}

    def is_of_windows(self) -> bool:
        """Return whether the records of training were windows of a Dataset."""
        return self._arguments is not None and any(records.windows for records in self._arguments.phases.values())

    def _predict_dataset(self, dataset: Any, leads: int | None, members: int | None) -> Any:
        """Return the output for a Dataset as a lazy Dataset."""
        job = self.make_job(self._arguments.phases if self._arguments else {}, None, {})
        layers = self.output_layers()
        if len(layers) != 1:
            raise UserError(f"predict takes a Dataset for a model with one output, not {len(layers)}")
        return api.predict_lazily(job, self._require_params(), layers[0], dataset, leads=leads, members=members)

    @checked
    def features(
        self, x: Any, layers: str | Sequence[str], *, batch_size: int | None = None, client: Client | None = None
    ) -> Any:
        """Return the feature of a layer for all records, (n, ...) numpy; a list for several layers."""
        check_whole_numbers(batch_size=batch_size)
        names = [layers] if isinstance(layers, str) else list(layers)
        pairs = self._as_codes(pair_up(x, None, self.input_names(), self.label_inputs()))
        if is_empty := has_no_rows(tuple(records for records, _ in pairs.values())):  # also dask arrays
            pairs = {name: (row_of_zeros(records)[:0], None) for name, (records, _) in pairs.items()}
        if are_numpy(pairs) and (client is None or is_empty):
            with self._explained(pairs):
                net, records, _ = self._local(pairs, labelled=True)
                features = [net.predict(self._known_params(net), records, name, batchsize=batch_size) for name in names]
        else:
            cluster: Any = api.find_cluster(client, waits=True)
            job, data = self._job_of_features(pairs, batch_size)
            features = [api.predict(job, self._require_params(), name, client=cluster, data=data) for name in names]
        return features[0] if len(names) == 1 else features

    def _job_of_features(self, pairs: Any, batch_size: int | None) -> tuple[Job, dict[str, Any] | None]:
        """Return the job that computes features of records, and its data."""
        opened = open_inputs(pairs, self.record_names())
        opened.check_order(self.trained_windows())
        opened.assume_labels()
        return self._test_job(opened, batch_size)
