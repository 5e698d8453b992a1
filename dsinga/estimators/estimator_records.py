"""EstimatorRecords, a base of the estimators: records and targets, checked against those of ``fit``, and scaled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_n_features, _check_sample_weight, check_is_fitted, validate_data

from dsinga.data.array_kinds import is_dask_collection
from dsinga.data.array_order import in_order, is_frame, order_of
from dsinga.data.conversion import record_dtype
from dsinga.data.missing_values import with_nan
from dsinga.data.sources.dask_arrays import in_chunks
from dsinga.estimators.lazy import open_collection
from dsinga.estimators.records import Scaling, TrainingSet, compute, find_scaling, mean_one


class EstimatorRecords(BaseEstimator, ABC):
    """Base of the estimators that opens, checks and scales their records.

    Its attributes are those of the records of ``fit``: their shape, the names of their columns, their scaling.
    """

    net: Any
    n_features_in_: int
    feature_names_in_: np.ndarray
    _record_shape: tuple[int, ...]
    _scaling: Scaling | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @abstractmethod
    def _validate(self, X: Any, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, Any]:
        """Return records and targets as arrays; set what they determine (``classes_``, ``n_features_in_``) if first."""

    @abstractmethod
    def _open_lazy_targets(self, y: Any, first: bool, classes: Any, client: Any) -> Any:
        """Return targets (n, ...), a dask array, as :meth:`_validate` does."""

    @abstractmethod
    def _targets(self, y: Any) -> Any:
        """Return validated targets as the labels of the net."""

    def as_trained(self, X: Any) -> Any:
        """Return records as those of ``fit`` lay: xarray objects in their order, large zarr arrays by chunks.

        Those of scipy.sparse become dense.
        """
        X = X.toarray() if issparse(X) else X
        return in_chunks(in_order(X, getattr(self, "_order", ())))

    def _validate_records(self, X: Any, first: bool) -> np.ndarray:
        x = validate_data(self, with_nan(X, "X"), reset=first, dtype="numeric", allow_nd=self.net is not None)
        if first:
            self._record_shape = x.shape[1:]
        return x

    def _open(self, X: Any, y: Any, sample_weight: Any, first: bool, classes: Any, client: Any) -> TrainingSet:
        """Return records, targets and weights as arrays, or as dask arrays."""
        if first:
            self._order = () if is_frame(X) else order_of(X)  # scikit-learn checks the columns of frames
            self._label_order = order_of(y)
        X, y = self.as_trained(X), in_order(y, getattr(self, "_label_order", ()))
        if is_dask_collection(X):
            return self._open_lazy(X, y, sample_weight, first, classes, client)
        records = TrainingSet(*self._validate(X, y, first, classes))
        if sample_weight is None:
            return records
        weights = _check_sample_weight(sample_weight, records.x, dtype=np.float64, ensure_non_negative=True)
        return records._replace(weights=weights)

    def _open_lazy(self, X: Any, y: Any, sample_weight: Any, first: bool, classes: Any, client: Any) -> TrainingSet:
        """Return collections of records as dask arrays, with their lengths."""
        collection = open_collection(X, lengths=True)
        x, weights = collection.array, None
        if x.ndim < 2:
            raise ValueError("X has one axis; give records (n, features), as X.reshape(-1, 1) has one feature")
        if not len(x):
            raise ValueError("X has no records")
        if x.dtype.kind not in "biuf":
            raise ValueError(f"X has the dtype {x.dtype}; give numbers")
        _check_n_features(self, x, reset=first)
        if first:
            self._record_shape = x.shape[1:]
            if collection.names is not None:
                self.feature_names_in_ = np.array(collection.names, object)
        self.check_shape(x.shape[1:], collection.names)
        if y is not None:
            y = open_collection(y, lengths=True).array
            y = self._open_lazy_targets(y, first, classes, client)
        if sample_weight is not None:
            weights = open_collection(sample_weight, lengths=True).array.astype(np.float64)
        for name, array in (("y", y), ("sample_weight", weights)):
            if array is not None and len(array) != len(x):
                raise ValueError(f"X has {len(x)} records, but {name} has {len(array)}; give both as many")
        return TrainingSet(x, y, weights)

    def _open_validation(self, data: Any, client: Any) -> TrainingSet | None:
        if data is None:
            return None
        x, y, *weights = data if isinstance(data, tuple) else (data, None)
        if len(weights) > 1:
            raise ValueError(f"validation_data is (X, y) or (X, y, sample_weight), not {len(data)} things")
        return self._prepare(self._open(x, y, weights[0] if weights else None, False, None, client), client)

    def check_shape(self, shape: tuple[int, ...], names: Sequence[str] | None = None) -> None:
        """Raise ValueError unless records of this shape, with these names of columns, are like those of ``fit``."""
        check_is_fitted(self, "_record_shape")
        cls = type(self).__name__
        if len(shape) == 1 == len(self._record_shape) and shape != self._record_shape:
            expected = self._record_shape[0]
            raise ValueError(f"X has {shape[0]} features, but {cls} is expecting {expected} features as input")
        if shape != self._record_shape:
            raise ValueError(f"X has records of shape {shape}, but {cls} was fitted to shape {self._record_shape}")
        known = getattr(self, "feature_names_in_", None)
        if names is not None and known is not None and list(names) != list(known):
            raise ValueError(f"X has the columns {list(names)}, but {cls} was fitted to {list(known)}")

    def _find_scaling(self, records: TrainingSet, client: Any) -> None:
        """Determine how the records of the default net are scaled."""
        self._scaling = None if self.net is not None else find_scaling(records.x, records.weights, client)

    def _prepare(self, records: TrainingSet, client: Any) -> TrainingSet:
        """Return records, targets and weights as the net takes them."""
        y = None if records.y is None else self._targets(records.y)
        if is_dask_collection(records.weights):
            weights = records.weights / compute(records.weights.mean(), client)
        else:
            weights = mean_one(records.weights)
        return TrainingSet(self._scaled(records.x), y, weights)

    def _scaled(self, x: Any) -> Any:
        """Return records, numpy or dask arrays, as the net takes them."""
        if self._scaling is not None:
            return self._scaling.apply(x)
        return x.astype(record_dtype(x.dtype), copy=False)
