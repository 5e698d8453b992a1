"""Checks that records and targets match those in ``fit``, scales them, and merges equal records."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import (
    _check_n_features,
    _check_sample_weight,
    _check_y,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from dsinga.api.trained import Trained
from dsinga.base.errors import UserError
from dsinga.base.registry import listed
from dsinga.data import RecordSource
from dsinga.data.array_kinds import (
    ArrayOrder,
    distinct_names,
    frame_columns,
    in_order,
    is_dask_collection,
    is_data_array,
    is_frame,
    is_path,
    is_table,
    order_of,
)
from dsinga.data.conversion import record_dtype
from dsinga.data.missing_values import with_nan
from dsinga.data.sources.dask_arrays import in_chunks
from dsinga.estimators.lazy import compute, open_collection
from dsinga.estimators.scaled_records import ScaledRecords
from dsinga.estimators.scaling import Scaling, find_scaling
from dsinga.estimators.sparse_records import SparseRecords, by_block, small_as_dense
from dsinga.estimators.tables import (
    check_no_gaps,
    check_numbers,
    encode,
    learn_columns,
    needs_columns,
    with_store,
)
from dsinga.job import Job
from dsinga.monitor import History

if TYPE_CHECKING:  # an add-on, which arrays and frames of numbers do not need
    from dsinga.addons.tables.definition import TableDefinition
    from dsinga.addons.tables.frames import Frame


@contextlib.contextmanager
def _explained(X: Any) -> Iterator[None]:
    """Replace errors of scikit-learn's checks by shorter ones that say what to write for dsinga."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        if text.startswith("Input X contains NaN") and isinstance(X, np.ndarray):
            text = "Input X contains NaN; give a data frame, which may have gaps, as in fit(pandas.DataFrame(X), y)"
        elif text.startswith("Expected 2D array, got 1D array"):
            text = (
                f"Expected 2D array, got 1D array of the shape {np.shape(X)}. Reshape your data: X.reshape(-1, 1) is "
                "one column, X.reshape(1, -1) one record"
            )
        raise UserError(text) from None


class TrainingSet(NamedTuple):
    """What ``fit`` trains on: records (n, ...), targets (n, ...) or None, and weights, float64 or None for equal ones.

    Weights are (n,), or (n, k) if each of k targets has its own.
    """

    x: Any
    y: Any = None
    weights: Any = None


def canonical(records: TrainingSet) -> TrainingSet:
    """Sort records and merge equal ones, adding up their weights, so that their order does not change results.

    Otherwise float32 sums of a batch of all records differ in their last bits. Records of weight 0 are left out.
    """
    x, y = np.asarray(records.x), None if records.y is None else np.asarray(records.y)
    weights = np.ones(len(x)) if records.weights is None else records.weights
    columns = [array.reshape(len(x), -1).astype(np.float64) for array in (x, y) if array is not None]
    table = np.concatenate([*columns, weights[:, None]], axis=1)[weights > 0]
    order = np.lexsort(table.T[::-1])  # weights last, so that equal records' weights are summed in one order, too
    table, rows = table[order], np.flatnonzero(weights > 0)[order]
    is_new = np.ones(len(table), bool)
    is_new[1:] = (table[1:, :-1] != table[:-1, :-1]).any(axis=1)
    first = np.flatnonzero(is_new)
    sums = np.add.reduceat(table[:, -1], first)
    kept = rows[first]
    return TrainingSet(x[kept], None if y is None else y[kept], sums)


def mean_one(weights: np.ndarray | None) -> np.ndarray | None:
    """Return weights divided by their mean, None if all are equal."""
    if weights is None or np.all(weights == weights.flat[0]):
        return None
    return weights / weights.mean()


class EstimatorRecords(BaseEstimator, ABC):
    """Base of the estimators that opens, checks and scales their records."""

    columns_: TableDefinition | None = None
    _has_number_codes = True  # whether whole numbers next to columns of other kinds are categories, too

    net: Any
    job_: Job
    history_: History
    best_epoch_: int | None
    classes_: np.ndarray
    n_features_in_: int
    feature_names_in_: np.ndarray
    _record_shape: tuple[int, ...]
    _order: ArrayOrder
    _scaling: Scaling | None
    _trained: Trained

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @abstractmethod
    def _validate(self, X: Any, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, Any]:
        """Return checked records and targets as arrays; the first call sets ``n_features_in_`` and so on."""

    @abstractmethod
    def _open_lazy_targets(self, y: Any, first: bool, classes: Any, client: Any) -> Any:
        """Return targets of a collection as a dask array (n, ...), checked as in :meth:`_validate`."""

    @abstractmethod
    def _targets(self, y: Any) -> Any:
        """Convert validated targets to the labels of the net."""

    def as_trained(self, X: Any) -> Any:
        """Bring records into the form of those in ``fit``: order of axes, chunks of large zarr arrays, encoded tables.

        Small scipy.sparse matrices become dense.
        """
        X = small_as_dense(X)
        if self.columns_ is not None and is_table(X):
            return encode(self.columns_, X, ())
        check_numbers(X, "X")
        check_no_gaps(X)
        order = getattr(self, "_order", ())
        if not order and is_data_array(X) and hasattr(self, "feature_names_in_"):  # those of frames checks scikit-learn
            order = (("row",), ("column", *map(str, self.feature_names_in_)))
        X = in_chunks(in_order(X, order))
        return X if self.columns_ is None else encode(self.columns_, self._validate_cells(X), self._column_names())

    @property
    def _is_strong(self) -> bool:
        """Whether the estimator has the preset "strong", which learns columns of arrays, too."""
        return getattr(self, "preset", None) is not None

    def _learn_columns(self, X: Any, client: Any) -> Frame | None:
        """Learn the columns of a data frame, or of an array with the preset; return the frame.

        None for a frame of numbers without gaps, which is used as it is.
        """
        self.columns_ = None
        self.__dict__.pop("feature_names_in_", None)  # from an earlier fit
        names = distinct_names(frame_columns(X), "X") if is_table(X) else []
        if names and (self._is_strong or needs_columns(X, client)):
            self.columns_, frame = learn_columns(X, names, client, self._has_number_codes)
            self.feature_names_in_, self.n_features_in_ = np.array(names, object), len(names)
            return frame
        if self._is_strong:
            X = self._validate_cells(in_chunks(in_order(small_as_dense(X), self._order)), first=True)
            self.columns_, _ = learn_columns(X, self._column_names(), client, self._has_number_codes)
        return None

    def _column_names(self) -> list[str]:
        """Return a table's column names: the frame's, or scikit-learn's x0, x1 and so on."""
        return [*getattr(self, "feature_names_in_", (f"x{number}" for number in range(self.n_features_in_)))]

    def _validate_cells(self, X: Any, first: bool = False) -> Any:
        """Return a table's numbers as an array (n, columns), or dask array, in which NaN marks gaps."""
        if is_dask_collection(X):
            array = open_collection(X, lengths=first).array
            if array.ndim != 2:
                raise ValueError(f"X has {array.ndim} axes; give a table of records (n, columns)")
            _check_n_features(self, array, reset=first)
            return array
        X, names = with_nan(X, "X"), getattr(self, "feature_names_in_", ())
        if not first and len(names) and getattr(X, "dtype", np.asarray(X).dtype).kind not in "biuf":
            raise UserError(
                f"X is a {type(X).__name__}, but {type(self).__name__} was fitted to a data frame; give a data frame "
                f"with the columns {listed(names)}"
            )
        return validate_data(self, X, reset=first, dtype="numeric", ensure_all_finite="allow-nan")

    def _validate_both(self, X: Any, y: Any, first: bool, **options: Any) -> tuple[np.ndarray, Any]:
        """Check records and targets as scikit-learn does; return them as arrays."""
        X, y = with_nan(X, "X"), with_nan(y, "y")
        if self.columns_ is not None:
            if y is None:
                raise ValueError(f"requires y to be passed, but the target y of {type(self).__name__} is None")
            options.pop("allow_nd", None)
            y = _check_y(y, estimator=self, **options)
            check_consistent_length(X, y)
            return X, y
        with _explained(X):
            x, y = validate_data(self, X, y, reset=first, dtype="numeric", accept_sparse="csr", **options)
        return by_block(x), y

    def _validate_records(self, X: Any, first: bool) -> Any:
        """Check records; return an array, or a sparse matrix that becomes dense block by block."""
        if self.columns_ is None:
            X, allow_nd = with_nan(X, "X"), self.net is not None
            with _explained(X):
                X = validate_data(self, X, reset=first, dtype="numeric", allow_nd=allow_nd, accept_sparse="csr")
        return by_block(X)

    def _open(self, X: Any, y: Any, sample_weight: Any, first: bool, classes: Any, client: Any) -> TrainingSet:
        """Return records, targets and weights as arrays, or as dask arrays."""
        if is_path(X) or isinstance(X, RecordSource):
            what = f"{X!r}, a path" if is_path(X) else "a source of records"
            raise UserError(f"X is {what}; give an array or a data frame, such as dask.dataframe.read_parquet(path)")
        if is_path(y):
            raise UserError(f"y is {y!r}; give the labels of all records, such as frame[{y!r}]")
        lengths = None
        if first:
            self._order = () if is_frame(X) else order_of(X)  # scikit-learn checks the columns of frames
            self._label_order = order_of(y)
            frame = self._learn_columns(X, client)
            if frame is not None and is_dask_collection(X):
                X, lengths = frame.collection, frame.lengths
        X, y = self.as_trained(X), in_order(y, getattr(self, "_label_order", ()))
        if lengths is not None:  # do not encode only to count the records
            X = X.to_dask_array(lengths=lengths)
        if is_dask_collection(X):
            return self._open_lazy(X, y, sample_weight, first, classes, client)
        records = TrainingSet(*self._validate(X, y, first, classes))
        if first:
            self._record_shape = records.x.shape[1:]
        if sample_weight is None:
            return records
        sample_weight = with_nan(sample_weight, "sample_weight")
        weights = _check_sample_weight(sample_weight, records.x, dtype=np.float64, ensure_non_negative=True)
        return records._replace(weights=weights)

    def _open_lazy(self, X: Any, y: Any, sample_weight: Any, first: bool, classes: Any, client: Any) -> TrainingSet:
        """Return collections of records as dask arrays of known lengths."""
        collection = open_collection(X, lengths=True)
        x, weights = collection.array, None
        if x.ndim < 2:
            raise ValueError("X has one axis; give records (n, features), as X.reshape(-1, 1) has one feature")
        if not len(x):
            raise ValueError("X has no records")
        if x.dtype.kind not in "biuf":
            raise ValueError(f"X has the dtype {x.dtype}; give numbers")
        if self.columns_ is None:
            _check_n_features(self, x, reset=first)
        if first:
            self._record_shape = x.shape[1:]
            if collection.names is not None and self.columns_ is None:
                self.feature_names_in_ = np.array(collection.names, object)
        self.check_shape(x.shape[1:], collection.names)
        if y is not None:
            y = open_collection(y, lengths=True).array
            y = self._open_lazy_targets(y, first, classes, client)
        if sample_weight is not None:
            weights = open_collection(sample_weight, lengths=True).array.astype(np.float64)
            least, most = compute((weights.min(), weights.max()), client)
            if not (least >= 0 and 0 < most < np.inf):
                raise ValueError(
                    f"sample_weight has numbers from {least:g} to {most:g}; give finite ones from 0 on, some above 0"
                )
        for name, array in (("y", y), ("sample_weight", weights)):
            if array is not None and len(array) != len(x):
                raise ValueError(f"X has {len(x)} records, but {name} has {len(array)}; give both as many")
        return TrainingSet(x, y, weights)

    def _open_validation(self, data: Any, client: Any) -> TrainingSet | None:
        """Open the records of ``validation_data`` in the form of ``fit``."""
        if data is None:
            return None
        x, y, *weights = data if isinstance(data, tuple) else (data, None)
        if len(weights) > 1:
            raise ValueError(f"validation_data is (X, y) or (X, y, sample_weight), not {len(data)} things")
        return self._open(x, y, weights[0] if weights else None, False, None, client)

    def check_shape(self, shape: tuple[int, ...], names: Sequence[str] | None = None) -> None:
        """Raise ValueError unless records have the shape and the column names of ``fit``."""
        check_is_fitted(self, "_record_shape")
        cls = type(self).__name__
        if len(shape) == 1 == len(self._record_shape) and shape != self._record_shape:
            expected = self._record_shape[0]
            raise ValueError(f"X has {shape[0]} features, but {cls} is expecting {expected} features as input")
        if shape != self._record_shape:
            raise ValueError(f"X has records of shape {shape}, but {cls} was fitted to shape {self._record_shape}")
        trained = getattr(self, "feature_names_in_", None) if self.columns_ is None else None
        if names is not None and trained is not None and list(names) != list(trained):
            raise ValueError(f"X has the columns {list(names)}, but {cls} was fitted to {list(trained)}")

    def _find_scaling(self, records: TrainingSet, client: Any) -> None:
        """Find the means and deviations with which the default net's records are scaled."""
        weights = records.weights
        if weights is not None and weights.ndim > 1:
            weights = weights.max(axis=1)
        has_scaling = self.net is None and self.columns_ is None
        self._scaling = find_scaling(records.x, weights, client) if has_scaling else None

    def _marked(self, job: Job) -> Job:
        """Mark the net's job as useless without the estimator if that scales its inputs or outputs."""
        scales = self._scaling is not None or getattr(self, "_target_scaling", None) is not None
        return with_store(job, scaled=ScaledRecords(by=type(self).__name__) if scales else None)

    def _prepare(self, records: TrainingSet, client: Any) -> TrainingSet:
        """Convert records, targets and weights to the form that the net is trained on."""
        y = None if records.y is None else self._targets(records.y)
        if is_dask_collection(records.weights):
            weights = records.weights / compute(records.weights.mean(), client)
        else:
            weights = mean_one(records.weights)
        return TrainingSet(self._scaled(records.x), y, weights)

    def _scaled(self, x: Any) -> Any:
        """Scale records, numpy or dask arrays, for the net."""
        if self._scaling is not None:
            return x.scaled(self._scaling) if isinstance(x, SparseRecords) else self._scaling.apply(x)
        return x if isinstance(x, SparseRecords) else x.astype(record_dtype(x.dtype), copy=False)
