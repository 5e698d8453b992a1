"""Regressor: a neural net that predicts one number of each record, or several."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from dsinga.data.array_kinds import is_dask_collection
from dsinga.data.missing_values import with_nan
from dsinga.data.sendable import naming_unsendable
from dsinga.estimators import jobs
from dsinga.estimators.base import NetEstimator
from dsinga.estimators.lazy import average, lazily, predicted
from dsinga.estimators.records import TrainingSet, compute, find_scaling
from dsinga.estimators.saving import loadable
from dsinga.job import Job


@loadable
class Regressor(RegressorMixin, NetEstimator):
    """A neural net that predicts one number of each record, or several.

    The parameters are those of :class:`dsinga.estimators.Classifier`. With the default net, targets are scaled to mean
    0 and deviation 1, too.
    """

    def fit(
        self, X: Any, y: Any, *, validation_data: Any = None, sample_weight: Any = None, client: Any = None
    ) -> Self:
        """Train on records X (n, ...) and targets y (n,) or (n, k).

        ``validation_data`` is (X, y), tested after each epoch, or (X, y, sample_weight). ``sample_weight`` (n,) weighs
        the loss of each record: the loss is Σ w·l / Σ w. Ctrl-C ends training after the round in flight, and the
        estimator keeps what was trained. Raises ValueError for bad input.
        """
        return self._fit(
            X, y, go_on=self.warm_start, validation_data=validation_data, sample_weight=sample_weight, client=client
        )

    def partial_fit(self, X: Any, y: Any, *, sample_weight: Any = None, client: Any = None) -> Self:
        """Train on for one epoch of these records. The first call determines how records and targets are scaled."""
        return self._fit(X, y, go_on=True, sample_weight=sample_weight, client=client, epochs=1)

    @lazily("output")
    def predict(self, X: Any) -> np.ndarray:
        """Return the prediction for each record, float64 (n,) or (n, k)."""
        outputs = self._outputs(X).astype(np.float64)
        if self._target_scaling is not None:
            outputs = self._target_scaling.undo(outputs)
        return outputs.reshape(len(outputs), *self._target_shape)

    def _validate(self, X: Any, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, Any]:
        X, y = with_nan(X, "X"), with_nan(y, "y")
        x, y = validate_data(
            self, X, y, reset=first, dtype="numeric", multi_output=True, y_numeric=True, allow_nd=self.net is not None
        )
        if first:
            self._record_shape, self._target_shape = x.shape[1:], y.shape[1:]
        if y.shape[1:] != self._target_shape:
            raise ValueError(f"y has the shape {y.shape}, but had {('n', *self._target_shape)} in the first call")
        return x, y

    def _open_lazy_targets(self, y: Any, first: bool, classes: Any, client: Any) -> Any:
        if first:
            self._target_shape = y.shape[1:]
        if y.shape[1:] != self._target_shape:
            raise ValueError(f"y has the shape {y.shape}, but had {('n', *self._target_shape)} in the first call")
        return y

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R², averaged over targets; of collections, block by block."""
        if not is_dask_collection(X):
            return super().score(X, y, sample_weight)
        with naming_unsendable({"X": X, "y": y, "sample_weight": sample_weight}):
            targets, outputs = predicted(self, X, y)
            targets = targets.astype(float)
            mean = compute(average(targets, sample_weight), None)
            errors = compute([average((targets - of) ** 2, sample_weight) for of in (outputs, mean)], None)
        return float(np.mean(1 - errors[0] / errors[1]))

    def _find_scaling(self, records: TrainingSet, client: Any) -> None:
        super()._find_scaling(records, client)
        self._target_scaling = None if self.net is not None else find_scaling(records.y, records.weights, client, "y")

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return y.astype(np.float32) if self._target_scaling is None else self._target_scaling.apply(y)

    def _default_job(self, x: np.ndarray, **fields: Any) -> Job:
        outputs = self._target_shape[0] if self._target_shape else 1
        return jobs.regressor_job(self._hidden_sizes(), self.activation, outputs, **fields)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
