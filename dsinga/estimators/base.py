"""NetEstimator, the base of the estimators: parameters, training here or on a cluster, and predicting."""

from __future__ import annotations

import copy
import math
import os
from abc import abstractmethod
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypeVar, dataclass_transform

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dsinga.api.jobs_with_data import roots
from dsinga.api.trained import Trained
from dsinga.base.arguments import Remedies, check_range, check_settings, check_whole, checked, fail_for_name
from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.data.array_kinds import is_dask_collection
from dsinga.data.sendable import naming_unsendable
from dsinga.data.sources.dask_arrays import in_chunks
from dsinga.estimators import jobs
from dsinga.estimators.lazy import running_client
from dsinga.estimators.records import EstimatorRecords, TrainingSet, canonical
from dsinga.estimators.saving import loadable, save
from dsinga.estimators.strong import check_net_settings
from dsinga.estimators.tables import with_messages
from dsinga.estimators.training import best_epoch, epoch_rows, train_net
from dsinga.estimators.validation import check_stopping, create_stopping, split_records
from dsinga.extensions.extension import RescuedParams
from dsinga.job import Job
from dsinga.monitor import History
from dsinga.net.layer_classes import takes_weights
from dsinga.nn import LocalNet
from dsinga.reading.bind_records import with_batchsize
from dsinga.reading.checked_job import CheckedJob

T = TypeVar("T")

LEAST_EPOCHS = 10  # the default number of epochs where training does not stop early
MOST_EPOCHS = 100  # the default number of epochs where training stops early
STOPS_ABOVE = 10_000  # records above which training stops early by default, as of scikit-learn's HistGradientBoosting
SMALL = 2000  # records up to which a table is small
NETS = ("_local", "_output")  # what is made anew of the job
NOT_FOR_BLOCKS = ("_trained", "history_", "feature_names_in_")

# What to write in place of arguments and attributes of scikit-learn's nets, skorch and XGBoost.
INSTEAD, OF_FIT, ATTRIBUTES = (
    Remedies(Path(__file__).with_name("libraries.toml"), table) for table in ("arguments", "fit", "attributes")
)
named_fit = partial(checked, instead=ChainMap(OF_FIT, INSTEAD))


@dataclass_transform(kw_only_default=True, eq_default=False)
def estimator(cls: type[T]) -> type[T]:
    """Give a class a constructor of its fields, whose error for an unknown argument says what to write instead.

    :func:`dsinga.estimators.load` then makes estimators of the class.
    """
    return loadable(check_settings(dataclass(eq=False, repr=False, kw_only=True)(cls), instead=INSTEAD))


@dataclass(eq=False, repr=False, kw_only=True)
class NetEstimator(EstimatorRecords):
    """Base of the estimators, with the parameters that all of them have; see :class:`dsinga.estimators.Classifier`."""

    net: Any = field(default=None, kw_only=False)
    hidden: int | Sequence[int] | None = None
    activation: str = "relu"
    epochs: int | None = None
    batchsize: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    warm_start: bool = False
    random_state: Any = None
    early_stopping: bool | str = "auto"
    validation_fraction: float = 0.1
    validation_split: Any = None
    n_iter_no_change: int | None = None
    tol: float = 1e-7
    workers: int | None = None

    is_eager = False  # whether results for dask arrays are computed at once
    _weighs = True  # whether ``fit`` takes weights
    _threads: int | None = None  # of the net, by default all
    _is_small = False  # whether ``fit`` has seen no more than :data:`SMALL` records
    _has_classes = False  # whether each record has one class, of which each gives its share of records for validation

    # -- what a subclass defines ------------------------------------------------------------------------------

    @abstractmethod
    def _default_job(self, x: np.ndarray, **fields: Any) -> Job:
        """Return the job of the small net for records like ``x``."""

    @cached_property
    def _output(self) -> str:
        """The name of the layer whose feature predictions are made from."""
        return jobs.output_name(self.job_)

    @cached_property
    def _local(self) -> LocalNet:
        """The net that computes predictions in this process."""
        example, folders = np.empty((1, *self._record_shape), np.float32), roots(self.job_, None)
        return LocalNet(CheckedJob(self.job_, folders), example, workers=1, threads=self._threads, roots=folders)

    @property
    def params_(self) -> ParamArrays:
        """The params of the net, float32 by name."""
        assert self._trained.params is not None
        return self._trained.params

    @params_.setter
    def params_(self, params: ParamArrays) -> None:
        self._trained = replace(self._trained, params=params)

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, for the names of other libraries with what to write instead."""
        if name in ATTRIBUTES:
            fail_for_name(type(self).__name__, name, (), ATTRIBUTES)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # -- training ---------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, *, client: Any = None, **options: Any) -> Self:
        """Train on the cluster of ``client`` if there is one, dask arrays on that of the call, others here."""
        check_net_settings(self)
        if self.workers is not None:
            check_whole("workers", self.workers, 1)
        X = in_chunks(X)
        if not is_dask_collection(X) and client is None and (self.workers or 1) == 1:
            return self._fit_on(None, False, X, y, **options)
        with running_client(client) as running, naming_unsendable({"X": X, "y": y, **options}):
            return self._fit_on(running, True, X, y, **options)

    def _fit_on(
        self, client: Any, on_cluster: bool, X: Any, y: Any, *, go_on: bool, validation_data: Any = None,
        sample_weight: Any = None, groups: Any = None, classes: Any = None, epochs: int | None = None,
    ) -> Self:  # fmt: skip
        """Train from the beginning or, with ``go_on``, from the present params: here, or on a cluster.

        ``epochs`` are those of a part of the records.
        """
        go_on = go_on and hasattr(self, "params_")
        records = self._open(X, y, sample_weight, not go_on, classes, client)
        records = self._with_class_weights(records, client, is_part=epochs is not None)
        if not go_on:
            self._is_small = epochs is None and len(records.x) <= SMALL
        size, seed = self._batchsize(), self.job_.seed if go_on else self._seed()
        is_part = epochs is not None
        stops, calibrates = self._stops_early(len(records.x), is_part), self._calibrates(is_part)
        held_out = self._open_validation(validation_data, client)
        if held_out is None and (stops or calibrates):
            records, held_out = self._split(records, seed, groups, client)
        if len(records.x) <= size and isinstance(records.x, np.ndarray) and self._merges_records(records.weights):
            records = canonical(records)
        job = self._job_to_go_on(records) if go_on else self._make_job(records, seed, client)
        trained = self._trained if go_on else Trained(params=jobs.first_params(job))
        job = job.with_params({}).replace(checkpoint_path=[])
        job = self._with_epochs(job, epochs, size, len(records.x), MOST_EPOCHS if stops else LEAST_EPOCHS)
        self.job_ = self._marked(with_batchsize(job, min(size, len(records.x))))
        self.__dict__.pop("_output", None)
        self._output  # noqa: B018  raises UserError for a net without
        records = self._prepare(records, client)
        validation = None if held_out is None else self._prepare(held_out, client)
        patience = self._defaults.patience if self.n_iter_no_change is None else self.n_iter_no_change
        stopping = create_stopping(self.job_, patience, self.tol) if stops else None
        rescued, history = RescuedParams("the estimator"), [*self.history_] if go_on else []
        try:
            train_net(
                self.job_, records, validation, trained, client, on_cluster=on_cluster, goes_on=is_part,
                workers=self.workers, extensions=[rescued] if stopping is None else [stopping, rescued],
            )  # fmt: skip
        finally:  # an interrupt leaves what was trained until then
            if rescued.params is not None:
                after = trained.after(rescued, self.job_, trained.steps)
                self._trained = replace(after, before=trained.before) if trained.steps else after
                self.__dict__.pop("_local", None)
                rows = epoch_rows(rescued.history, len(history), trained.steps)
                self.history_, self.best_epoch_ = History([*history, *rows]), best_epoch(stopping, rows, trained.steps)
        if calibrates and held_out is not None:
            self._calibrate(held_out, client)
        return self

    def _calibrates(self, is_part: bool) -> bool:
        """Whether validation records calibrate the probabilities after training."""
        return False

    def _calibrate(self, held_out: TrainingSet, client: Any) -> None:
        """Calibrate the probabilities by records that were not trained on."""
        raise NotImplementedError

    def _stops_early(self, length: int, is_part: bool) -> bool:
        """Whether training on so many records, or on a part of the records, ends where validation no longer improves.

        Raises UserError for another ``early_stopping`` than True, False and "auto".
        """
        early_stopping = self.early_stopping
        check_stopping(self.validation_fraction, self.n_iter_no_change, self.tol)
        if isinstance(early_stopping, str) and early_stopping == "auto":
            return self.net is None and not is_part and (self._is_strong or length > STOPS_ABOVE)
        if not isinstance(early_stopping, (bool, np.bool_)):
            raise UserError(f"early_stopping is {early_stopping!r}; give True, False or 'auto'")
        if early_stopping and is_part:
            raise UserError("partial_fit trains for one epoch and cannot stop early; use fit, or early_stopping='auto'")
        return bool(early_stopping)

    def _split(self, records: TrainingSet, seed: int, groups: Any, client: Any) -> tuple[TrainingSet, TrainingSet]:
        """Return the records to train on, and those for validation."""
        return split_records(
            records, self.validation_fraction, seed, by_class=self._has_classes, groups=groups,
            splitter=self.validation_split, client=client,
        )  # fmt: skip

    def _with_class_weights(self, records: TrainingSet, client: Any, is_part: bool) -> TrainingSet:
        """Return the records with the weights of their classes, too, where the estimator has any."""
        return records

    @property
    def n_iter_(self) -> int:
        """How many epochs it was trained for, all calls together, as of scikit-learn's MLPClassifier."""
        return len(self.history_)

    @property
    def loss_curve_(self) -> list[float]:
        """The loss of each epoch of training."""
        if losses := [row["loss"] for row in self.history_ if "loss" in row]:
            return losses
        raise AttributeError(f"the net of {type(self).__name__} reports no loss; history_ has what it reports")

    def _merges_records(self, weights: Any) -> bool:
        """Whether equal records may become one with the sum of their weights: unless these are those of targets."""
        if not self._weighs or np.ndim(weights) > 1:
            return False
        return self.net is None or all(map(takes_weights, jobs.losses(jobs.open_net(self.net, self._record_shape))))

    @property
    def _defaults(self) -> jobs.NetDefaults:
        """What the net has for arguments that are None."""
        if self._is_strong:
            return jobs.OF_STRONG
        return jobs.OF_ARRAYS if self.columns_ is None else jobs.OF_TABLES

    def _seed(self) -> int:
        """Return the seed of the job that is trained."""
        if self.net is not None and self.random_state is None:
            return jobs.open_net(self.net, self._record_shape).seed
        return int(check_random_state(self.random_state).randint(2**31))

    def _make_job(self, records: TrainingSet, seed: int, client: Any) -> Job:
        """Return the job that is trained: of the user's net, or of the small one; determine its scaling."""
        self._find_scaling(records, client)
        return self._net_job(records, seed)

    def _net_job(self, records: TrainingSet, seed: int) -> Job:
        if self.net is None:
            fields: dict[str, Any] = {"seed": seed}
            for name in ("learning_rate", "weight_decay"):
                value = getattr(self, name)
                fields[name] = getattr(self._defaults, name) if value is None else value
                check_range(name, fields[name], 0)
            return with_messages(self._default_job(records.x, **fields), table=self.columns_)
        return with_messages(jobs.open_net(self.net, self._record_shape).replace(seed=seed), table=self.columns_)

    def _job_to_go_on(self, records: TrainingSet) -> Job:
        """Return the job of the last call, with the updater of the present settings.

        Raises UserError for settings, such as ``hidden``, with which the net is another one.
        """
        job = self._net_job(records, self.job_.seed)
        if jobs.layers_text(job) != jobs.layers_text(self.job_):
            raise UserError(
                "settings of the net have changed since the last call, from which warm_start and partial_fit go on; "
                "set them back, or call fit with warm_start=False"
            )
        changed = job.updater.replace(goes_on=self.job_.updater.goes_on, earlier_steps=self.job_.updater.earlier_steps)
        return self.job_.replace(updater=changed)

    def _hidden_sizes(self) -> list[int]:
        """Return the units of each hidden layer of the small net; a number is that of one layer."""
        given: Any = self._defaults.hidden if self.hidden is None else self.hidden
        hidden = [given] if np.ndim(given) == 0 else given
        for size in hidden:
            check_whole("a size of hidden", size, 1)
        return [int(size) for size in hidden]

    def _batchsize(self) -> int:
        if self.batchsize is not None:
            check_whole("batchsize", self.batchsize, 1)
            return int(self.batchsize)
        return (
            self._defaults.batchsize
            if self.net is None
            else jobs.batchsize_of(jobs.open_net(self.net, self._record_shape))
        )

    def _with_epochs(self, job: Job, epochs: int | None, batchsize: int, length: int, least: int) -> Job:
        if self.epochs is not None:
            check_whole("epochs", self.epochs, 1)
        epochs = epochs or (None if self.epochs is None else int(self.epochs))
        if epochs is None and self.net is None:
            epochs = max(least, math.ceil(self._defaults.steps * min(batchsize, length) / length))
        return job if epochs is None else job.replace(epochs=epochs, train_steps=0)

    # -- passes over new records ------------------------------------------------------------------------------

    def _outputs(self, X: Any) -> np.ndarray:
        """Return the feature of the net's output for new records (n, ...)."""
        x = self._validate_records(X, False)
        return self._local.predict(self.params_, self._scaled(x), self._output)

    def result_columns(self, axis: str, count: int) -> Sequence[Any]:
        """Return the names of the ``count`` columns of a result that is a data frame, whose second axis is given."""
        names = self._axis_names(axis)
        return range(count) if names is None or len(names) != count else names

    def _axis_names(self, axis: str) -> Sequence[Any] | None:
        """Return the names along the second axis of results, None without."""
        return None

    def to_local(self) -> Self:
        """Return a copy whose results are numpy arrays, also for dask and xarray arrays, which it computes."""
        check_is_fitted(self, "params_")
        local = copy.copy(self)
        local.is_eager = True
        return local

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted estimator in a new folder, from which :func:`dsinga.estimators.load` reads it."""
        save(self, path)

    def export(self, path: str | os.PathLike[str], **options: Any) -> float | None:
        """Write the fitted estimator to an ONNX file for servers, as ``export`` of a model does (docs/onnx.md).

        Inputs are the columns of the data frame, or "X" for an array. Outputs are "label" and "probabilities" of a
        classifier, "variable" of others. ``check`` may be a data frame. Raises UserError for what ONNX does not have.
        """
        from dsinga.estimators.served import EstimatorModel

        difference: float | None = lookup("method", "export")(EstimatorModel(self), path, **options)
        return difference

    def for_blocks(self) -> Self:
        """Return a copy that only computes results of single blocks, in one thread, as on the workers of a cluster.

        The blocks of a table are its encoded records.
        """
        state = {name: value for name, value in self.__getstate__().items() if name not in NOT_FOR_BLOCKS}
        block = type(self).__new__(type(self))
        if self.columns_ is not None:
            state |= {"columns_": None, "n_features_in_": self._record_shape[0]}
        trained = Trained(params=self.params_)
        block.__setstate__(state | {"is_eager": True, "history_": History(), "_trained": trained, "_threads": 1})
        return block

    @property
    def nbytes(self) -> int:
        """The bytes of all params."""
        return sum(value.nbytes for value in self.params_.values())

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "params_")

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in NETS}
