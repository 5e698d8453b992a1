"""The base of the estimators, with their training and predictions."""

from __future__ import annotations

import copy
import math
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dsinga.api.jobs_with_data import roots
from dsinga.api.trained import Trained, rescuing
from dsinga.base.arguments import check_names, check_range, check_whole, fail_for_name, with_types
from dsinga.base.arrays import ParamArrays
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.data.array_kinds import is_dask_collection
from dsinga.data.sendable import naming_unsendable
from dsinga.data.sources.dask_arrays import in_chunks
from dsinga.estimators import jobs
from dsinga.estimators.lazy import running_client
from dsinga.estimators.records import EstimatorRecords, TrainingSet, canonical
from dsinga.estimators.saving import save
from dsinga.estimators.settings import ATTRIBUTES, INSTEAD, check_estimator, named_fit, resolve_auto
from dsinga.estimators.tables import with_store
from dsinga.estimators.training import best_epoch, epoch_rows, train_net
from dsinga.estimators.validation import create_stopping, split_records
from dsinga.extensions.extension import Extension, RescuedParams
from dsinga.job import Job
from dsinga.monitor import History, Row
from dsinga.net.layer_classes import takes_weights
from dsinga.nn import LocalNet
from dsinga.nn.writing.symbol import LayerBuilder
from dsinga.reading.bind_records import with_batchsize
from dsinga.reading.checked_job import CheckedJob

LEAST_EPOCHS = 10  # default epochs without early stopping
MOST_EPOCHS = 100  # default epochs with early stopping
STOPS_ABOVE = 10_000  # records above which training stops early by default, as in scikit-learn's HistGradientBoosting
SMALL = 2000  # records up to which a table is small
NETS = ("_local", "_output")  # made from the job when first used
NOT_FOR_BLOCKS = ("_trained", "history_", "feature_names_in_")


@dataclass(eq=False, repr=False, kw_only=True)
class NetEstimator(EstimatorRecords):
    """Base of the estimators: trains a net with ``fit``, and computes predictions here or on a cluster."""

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
    blocks: int | None = None

    is_eager = False  # whether results for dask arrays are computed at once
    _weighs = True  # whether ``fit`` accepts weights
    _threads: int | None = None  # threads of the net, by default all
    _is_small = False  # whether ``fit`` saw at most :data:`SMALL` records
    _has_classes = False  # whether each record has one class, so that each class gives its share for validation

    # -- what a subclass defines ------------------------------------------------------------------------------

    @abstractmethod
    def _default_job(self, width: int, **fields: Any) -> Job:
        """Return the job of the net that is used without ``net=``, for records of ``width`` numbers."""

    @cached_property
    def _output(self) -> str:
        """The name of the layer that gives the predictions."""
        return jobs.output_name(self.job_)

    @cached_property
    def _local(self) -> LocalNet:
        """The net that computes predictions in this process."""
        example, folders = np.empty((1, *self._record_shape), np.float32), roots(self.job_, None)
        whole = CheckedJob(self.job_.replace(blocks=0), folders)
        return LocalNet(whole, example, workers=1, threads=self._threads, roots=folders)

    @property
    def params_(self) -> ParamArrays:
        """The trained params of the net, float32 by name."""
        assert self._trained.params is not None
        return self._trained.params

    @params_.setter
    def params_(self, params: ParamArrays) -> None:
        self._trained = replace(self._trained, params=params)

    @public
    def set_params(self, **params: Any) -> Self:
        """Change parameters by name and return the estimator. Raises UserError for an unknown name."""
        known = [name for name in self.get_params(deep=False) if not name.startswith("_")]
        given = {name.partition("__")[0]: value for name, value in params.items() if not name.startswith("_")}
        check_names(type(self).__name__, known, given, INSTEAD)
        return super().set_params(**params)

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError; for names of other libraries, it says what to write instead."""
        if name in ATTRIBUTES:
            fail_for_name(type(self).__name__, name, (), ATTRIBUTES)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # -- training ---------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, *, client: Any = None, **options: Any) -> Self:
        """Train in this process, or on a cluster for dask arrays, a ``client`` or several ``workers``."""
        check_estimator(self)
        X = in_chunks(X)
        if not is_dask_collection(X) and client is None and (self.workers or 1) == 1:
            return self._fit_on(None, False, X, y, **options)
        with running_client(client) as running, naming_unsendable({"X": X, "y": y, **options}):
            return self._fit_on(running, True, X, y, **options)

    def _fit_on(
        self, client: Any, on_cluster: bool, X: Any, y: Any, *, go_on: bool, validation_data: Any = None,
        sample_weight: Any = None, groups: Any = None, classes: Any = None, epochs: int | None = None,
    ) -> Self:  # fmt: skip
        """Train from new params, or with ``go_on`` from the present ones; ``epochs`` is for a part of the records."""
        go_on, is_part = go_on and hasattr(self, "params_"), epochs is not None
        records = self._open(X, y, sample_weight, not go_on, classes, client)
        records = self._with_class_weights(records, client, is_part)
        if not go_on:
            self._is_small = not is_part and len(records.x) <= SMALL
        net = None if self.net is None else jobs.open_net(self.net, self._record_shape)
        size = self.batchsize or (self._defaults.batchsize if net is None else jobs.batchsize_of(net))
        seed = self.job_.seed if go_on else self._seed(net)
        stops, calibrates = self._stops_early(len(records.x), is_part), self._calibrates(is_part)
        held_out = self._open_validation(validation_data, client)
        if held_out is None and (stops or calibrates):
            records, held_out = split_records(
                records, self.validation_fraction, seed, by_class=self._has_classes, groups=groups,
                splitter=self.validation_split, client=client,
            )  # fmt: skip
        if len(records.x) <= size and isinstance(records.x, np.ndarray) and self._merges_records(net, records.weights):
            records = canonical(records)
        if not go_on:
            self._find_scaling(records, client)
        job = self._net_job(net, seed, records.x.shape[1])
        job = self._continued(job) if go_on else job
        trained = self._trained if go_on else Trained(params=jobs.first_params(job))
        self.job_ = self._marked(self._job_of_fit(job, size, len(records.x), epochs, stops))
        self.__dict__.pop("_output", None)
        self._output  # noqa: B018  raises UserError for a net without
        patience = self.n_iter_no_change or self._defaults.patience
        stopping = create_stopping(self.job_, patience, self.tol) if stops else None
        keep = partial(self._keep, trained=trained, rows=[*self.history_] if go_on else [], stopping=stopping)
        records = self._prepare(records, client)
        validation = None if held_out is None else self._prepare(held_out, client)
        with rescuing("the estimator", keep) as rescued:
            train_net(
                self.job_, records, validation, trained, client, on_cluster=on_cluster, goes_on=is_part,
                workers=self.workers, extensions=[rescued] if stopping is None else [stopping, rescued],
            )  # fmt: skip
        if calibrates and held_out is not None:
            self._calibrate(held_out, client)
        return self

    def _job_of_fit(self, job: Job, size: int, length: int, epochs: int | None, stops: bool) -> Job:
        """Return the job to train on ``length`` records, with batch size and number of epochs."""
        batchsize, epochs = min(size, length), epochs or self.epochs
        if epochs is None and self.net is None:
            least, steps = MOST_EPOCHS if stops else LEAST_EPOCHS, self._defaults.steps
            epochs = max(least, math.ceil(steps * batchsize / length))
        times = {} if epochs is None else {"epochs": int(epochs), "train_steps": 0}
        times |= {} if self.blocks is None else {"blocks": self.blocks}
        return with_batchsize(job.with_params({}).replace(checkpoint_path=[], **times), batchsize)

    def _keep(self, rescued: RescuedParams, trained: Trained, rows: list[Row], stopping: Extension | None) -> None:
        """Store trained params and metrics, even after an interrupt; ``rows`` are the metrics of earlier calls."""
        steps = trained.steps
        after = trained.after(rescued, self.job_, steps)
        self._trained = replace(after, before=trained.before) if steps else after
        self.__dict__.pop("_local", None)
        self._local  # noqa: B018  is made now, since scikit-learn wants predict to change no attribute
        new = epoch_rows(rescued.history, len(rows), steps)
        self.history_, self.best_epoch_ = History([*rows, *new]), best_epoch(stopping, new, steps)

    def _calibrates(self, is_part: bool) -> bool:
        """Whether held-out records calibrate the probabilities after training."""
        return False

    def _calibrate(self, held_out: TrainingSet, client: Any) -> None:
        raise NotImplementedError

    def _stops_early(self, length: int, is_part: bool) -> bool:
        """Whether training on ``length`` records, or on a part, stops if validation no longer improves."""
        by_default = self.net is None and not is_part and (self._is_strong or length > STOPS_ABOVE)
        stops = resolve_auto("early_stopping", self.early_stopping, by_default)
        if stops and is_part:
            raise UserError("partial_fit trains for one epoch and cannot stop early; use fit, or early_stopping='auto'")
        return stops

    def _with_class_weights(self, records: TrainingSet, client: Any, is_part: bool) -> TrainingSet:
        return records

    @property
    def n_iter_(self) -> int:
        """The number of trained epochs over all calls, as in scikit-learn's MLPClassifier."""
        return len(self.history_)

    @property
    def loss_curve_(self) -> list[float]:
        """The loss of each epoch of training."""
        if losses := [row["loss"] for row in self.history_ if "loss" in row]:
            return losses
        raise AttributeError(f"the net of {type(self).__name__} reports no loss; history_ has what it reports")

    def _merges_records(self, net: Job | None, weights: Any) -> bool:
        """Whether equal records may become one with summed weights, which each target's own weight forbids."""
        return self._weighs and np.ndim(weights) < 2 and (net is None or all(map(takes_weights, jobs.losses(net))))

    @property
    def _defaults(self) -> jobs.NetDefaults:
        """The values of arguments that are None, which differ for tables and the preset."""
        if self._is_strong:
            return jobs.OF_STRONG
        return jobs.OF_ARRAYS if self.columns_ is None else jobs.OF_TABLES

    def _seed(self, net: Job | None) -> int:
        if net is not None and self.random_state is None:
            return net.seed
        return int(check_random_state(self.random_state).randint(2**31))

    def _net_job(self, net: Job | None, seed: int, width: int) -> Job:
        """Return the job to train: of the user's net, or of the default net for ``width`` numbers."""
        if net is not None:
            return with_store(net.replace(seed=seed), table=self.columns_)
        fields: dict[str, Any] = {"seed": seed}
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            fields[name] = getattr(self._defaults, name) if value is None else value
            check_range(name, fields[name], 0)
        return with_store(self._default_job(width, **fields), table=self.columns_)

    def _continued(self, job: Job) -> Job:
        """Return the last call's job with new settings of the updater, to train further."""
        if jobs.layers_text(job) != jobs.layers_text(self.job_):
            raise UserError(
                "settings of the net have changed since the last call, from which warm_start and partial_fit go on; "
                "set them back, or call fit with warm_start=False"
            )
        return self.job_.replace(updater=job.updater)

    def _fully_connected_job(self, outputs: int, loss: LayerBuilder, distribution: str | None, **fields: Any) -> Job:
        """Return the job of the default net with ``outputs`` outputs and a loss."""
        hidden, defaults = self._hidden_sizes(), self._defaults
        return jobs.fully_connected_job(
            hidden, self.activation, outputs, loss, self.columns_, defaults, distribution, **fields
        )

    def _hidden_sizes(self) -> list[int]:
        """Return the units of the default net's hidden layers; a single number means one layer."""
        given: Any = self._defaults.hidden if self.hidden is None else self.hidden
        hidden = [given] if np.ndim(given) == 0 else given
        for size in hidden:
            check_whole("a size of hidden", size, 1)
        return [int(size) for size in hidden]

    # -- passes over new records ------------------------------------------------------------------------------

    def _outputs(self, X: Any) -> np.ndarray:
        x = self._validate_records(X, False)
        return self._local.predict(self.params_, self._scaled(x), self._output)

    def result_columns(self, axis: str, count: int) -> Sequence[Any]:
        """Return the names of the ``count`` columns of a data frame of results."""
        names = self._axis_names(axis)
        return range(count) if names is None or len(names) != count else names

    def _axis_names(self, axis: str) -> Sequence[Any] | None:
        """Return the names along the second axis of results, such as classes, or None."""
        return None

    def to_local(self) -> Self:
        """Return a copy that computes dask and xarray arrays at once, and returns numpy arrays."""
        check_is_fitted(self, "params_")
        local = copy.copy(self)
        local.is_eager = True
        return local

    @with_types
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a new folder, for :func:`dsinga.estimators.load`."""
        save(self, path)

    def export(self, path: str | os.PathLike[str], **options: Any) -> float | None:
        """Write the fitted estimator to an ONNX file for servers, as a model's ``export`` (docs/howto/onnx.md).

        Inputs are the columns of the data frame, or "X" for an array. Outputs are "label" and "probabilities" for a
        classifier, "variable" for others. ``check`` may be a data frame. Raises UserError for anything that ONNX does
        not support.
        """
        from dsinga.estimators.served import EstimatorModel

        difference: float | None = lookup("method", "export")(EstimatorModel(self), path, **options)
        return difference

    def for_blocks(self) -> Self:
        """Return a copy for Dask tasks, which only computes the results of single blocks, in one thread."""
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


class Supervised(NetEstimator):
    """Base of the estimators that predict targets, with sample weights and groups of records."""

    @named_fit
    def fit(
        self, X: Any, y: Any, *, validation_data: Any = None, sample_weight: Any = None, groups: Any = None,
        client: Any = None,
    ) -> Self:  # fmt: skip
        """Train on records X (n, ...), or a data frame, and targets y.

        Targets of a Classifier are classes (n,), or a matrix (n, k) of zeros and ones. Targets of a Regressor are
        numbers (n,) or (n, k); the loss ignores NaN among several targets.

        ``validation_data`` is (X, y), evaluated after each epoch, or (X, y, sample_weight). ``sample_weight`` (n,)
        weighs the records: the loss is Σ w·l / Σ w. With early stopping, all records of one of the ``groups`` (n,) are
        either trained on or validated. Ctrl-C ends training after the current round, and the estimator keeps what was
        trained. Raises ValueError for bad input.
        """
        return self._fit(
            X, y, go_on=self.warm_start, validation_data=validation_data, sample_weight=sample_weight, groups=groups,
            client=client,
        )  # fmt: skip
