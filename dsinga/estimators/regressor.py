"""The regressor: a neural net that predicts one or several numbers for each record."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import frame_columns, in_order, is_dask_collection, is_table
from dsinga.data.missing_values import with_nan
from dsinga.data.sendable import naming_unsendable
from dsinga.estimators import jobs
from dsinga.estimators.base import Supervised
from dsinga.estimators.known_targets import NOT_SCORED, check_known_targets, fill_missing, weigh_known_targets
from dsinga.estimators.lazy import average, compute, lazily, predicted
from dsinga.estimators.records import TrainingSet
from dsinga.estimators.scaling import Scaling, find_scaling
from dsinga.estimators.settings import estimator
from dsinga.estimators.strong import strong_job
from dsinga.estimators.tables import check_numbers
from dsinga.job import Job
from dsinga.net.layer_classes import forecast_form

if TYPE_CHECKING:  # an add-on, which plain regression does not need
    from dsinga.addons.probabilities.forecast_forms import ForecastForm

LOGNORMAL = "lognormal"  # its targets are divided by their mean, and stay positive


def _remedy_of_text(text: str) -> str:
    """Say what to write in place of targets that are texts."""
    try:
        float(text.replace(",", ".", 1))
    except ValueError:
        return "dsinga.estimators.Classifier is for classes"
    return "read them with pandas.read_csv(path, decimal=',')" if "," in text else "give numbers: y.astype(float)"


@estimator
class Regressor(RegressorMixin, Supervised):
    """A neural net that predicts one or several numbers for each record.

    :class:`dsinga.estimators.Classifier` explains the other parameters, except ``class_weight`` and ``calibrate``. The
    two below are for the default net; a ``net`` has its own loss. With the default net, targets are scaled to mean 0
    and deviation 1, too. Counts are not scaled, and targets of "lognormal" are divided by their mean. For a data frame
    of at most 2,000 records the default net is as small as for arrays.

    Args:
        loss: what to predict: "squared_error" (the mean), "absolute_error" (the median), "quantile" (the
            ``quantiles``), or a distribution of each target, by its likelihood: "normal", "laplace", "lognormal" for
            positive numbers, "poisson" and "negative_binomial" for counts.
        quantiles: the levels that are predicted with the loss "quantile", in (0, 1) and increasing.

    Examples:
        >>> import numpy as np
        >>> from dsinga.estimators import Regressor
        >>> X = np.random.default_rng(0).normal(size=(200, 4))
        >>> Regressor().fit(X, X[:, 0]).predict(X[:2]).shape
        (2,)
    """

    loss: str = "squared_error"
    quantiles: Sequence[float] = (0.05, 0.5, 0.95)
    preset: str | None = None
    _levels: tuple[float, ...] = field(default=(), init=False)  # the quantiles that a copy predicts

    @public
    def partial_fit(self, X: Any, y: Any, *, sample_weight: Any = None, client: Any = None) -> Self:
        """Train one more epoch on the records X, such as the next part of a large data set.

        The first call determines the scaling of records and targets.
        """
        return self._fit(X, y, go_on=True, sample_weight=sample_weight, client=client, epochs=1)

    @public
    def predict(self, X: Any, quantiles: Sequence[float] | None = None) -> np.ndarray:
        """Return the prediction for each record, float64 (n,) or (n, k).

        For a distribution or an ensemble it is the mean, for quantiles the level nearest to 0.5. With ``quantiles``,
        levels in (0, 1), it is these quantiles of each target, (n, levels) or (n, k, levels). After training with the
        loss "quantile", these must be among the trained levels. Raises ValueError for bad input.
        """
        if quantiles is None:
            result: np.ndarray = self._predict(X)
            return result
        for level in (levels := tuple(map(float, np.ravel(quantiles)))):
            if not 0 < level < 1:
                raise UserError(f"quantiles must be in (0, 1), not {level:g}")
        check_is_fitted(self, "params_")
        self._known_form().quantiles(np.zeros((1, self._known_form().count)) + 0.5, levels)  # raises for unknown levels
        asked = copy.copy(self)
        asked._levels = levels
        return asked._predict_quantiles(X)

    @public
    def predict_interval(self, X: Any, coverage: float | None = None) -> np.ndarray:
        """Return each target's central interval with the probability ``coverage``, (n, 2) or (n, k, 2).

        By default it reaches from the lowest to the highest predicted quantile, or with probability 0.9 for a
        distribution or an ensemble. Raises ValueError for bad input.
        """
        if coverage is not None and not 0 < coverage < 1:
            raise UserError(f"coverage must be in (0, 1), not {coverage:g}")
        check_is_fitted(self, "params_")
        form = self._known_form()
        from dsinga.addons.probabilities.forecast_forms import QuantileForm

        levels = form.points if isinstance(form, QuantileForm) and coverage is None else ()
        if len(levels) == 1:
            raise UserError("an interval needs two quantiles, as in Regressor(loss='quantile', quantiles=(0.05, 0.95))")
        tail = (1 - (0.9 if coverage is None else coverage)) / 2
        return self.predict(X, (levels[0], levels[-1]) if levels else (tail, 1 - tail))

    @lazily("output")
    def _predict(self, X: Any) -> np.ndarray:
        form = self._form()
        outputs = self._outputs(X).astype(np.float64)
        if form is not None:
            outputs = form.point(outputs.reshape(len(outputs), -1, form.count))
        if self._target_scaling is not None:
            outputs = self._target_scaling.undo(outputs.reshape(len(outputs), *self._target_shape))
        return outputs.reshape(len(outputs), *self._target_shape)

    @lazily("quantile")
    def _predict_quantiles(self, X: Any) -> np.ndarray:
        form, outputs = self._known_form(), self._outputs(X).astype(np.float64)
        quantiles = form.quantiles(outputs.reshape(len(outputs), -1, form.count), self._levels)
        by_level = np.moveaxis(quantiles, -1, 0).reshape(-1, len(outputs), *self._target_shape)
        if self._target_scaling is not None:
            by_level = self._target_scaling.undo(by_level)
        return np.moveaxis(by_level, 0, -1)

    def _axis_names(self, axis: str) -> Sequence[Any] | None:
        return self._levels if axis == "quantile" else getattr(self, "_target_names", None)

    def _form(self) -> ForecastForm | None:
        """Return what several outputs for each target mean, such as quantiles; None for single outputs."""
        return forecast_form(jobs.losses(self.job_)[-1])

    def _known_form(self) -> ForecastForm:
        """Return what the outputs for each target mean; raise UserError for single outputs, without quantiles."""
        if (form := self._form()) is None:
            raise UserError(
                "the net predicts one number for each target, without quantiles; train "
                'Regressor(loss="quantile", quantiles=(0.05, 0.5, 0.95)) or Regressor(loss="normal")'
            )
        return form

    def _validate(self, X: Any, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, Any]:
        if isinstance(y, np.ndarray) and y.dtype.kind == "U":
            raise UserError(f"y has texts, such as {str(y.flat[0])!r}; {_remedy_of_text(str(y.flat[0]))}")
        check_numbers(y, "y")
        y, missing = fill_missing(with_nan(y, "y"))
        x, y = self._validate_both(X, y, first, multi_output=True, y_numeric=True, allow_nd=self.net is not None)
        if missing is not None:
            y = np.where(missing, np.nan, y)
        return x, self._open_lazy_targets(y, first, classes, None)

    def _open(self, X: Any, y: Any, sample_weight: Any, first: bool, classes: Any, client: Any) -> TrainingSet:
        if first:
            self._target_names = [str(name) for name in frame_columns(y)] if is_table(y) else None
        return weigh_known_targets(super()._open(X, y, sample_weight, first, classes, client), client)

    def _open_lazy_targets(self, y: Any, first: bool, classes: Any, client: Any) -> Any:
        if first:
            self._target_shape = y.shape[1:]
        if y.shape[1:] != self._target_shape:
            raise ValueError(f"y has the shape {y.shape}, but had {('n', *self._target_shape)} in the first call")
        return y

    @public
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R², averaged over targets; block by block for collections."""
        y = in_order(y, getattr(self, "_label_order", ()))
        if not is_dask_collection(X):
            if fill_missing(y)[1] is not None:
                raise UserError(NOT_SCORED)
            return super().score(X, y, sample_weight)
        with naming_unsendable({"X": X, "y": y, "sample_weight": sample_weight}):
            targets, outputs = predicted(self, X, y)
            targets = targets.astype(float)
            mean = compute(average(targets, sample_weight), None)
            errors = compute([average((targets - of) ** 2, sample_weight) for of in (outputs, mean)], None)
        if np.isnan(errors[0]).any():
            raise UserError(NOT_SCORED)
        return float(np.mean(1 - errors[0] / errors[1]))

    def _find_scaling(self, records: TrainingSet, client: Any) -> None:
        check_known_targets(records.weights, self._target_names, client)
        super()._find_scaling(records, client)
        self._target_scaling = None
        if self.net is None and not jobs.predicts_counts(self.loss):
            scaling = find_scaling(records.y, records.weights, client, "y")
            self._target_scaling = (
                Scaling(0 * scaling.offset, abs(scaling.offset)) if self.loss == LOGNORMAL else scaling
            )

    @property
    def _defaults(self) -> jobs.NetDefaults:
        is_small_table = self._is_small and self.columns_ is not None and not self._is_strong
        return jobs.OF_SMALL_TABLES if is_small_table else super()._defaults

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return y.astype(np.float32) if self._target_scaling is None else self._target_scaling.apply(y)

    def _default_job(self, width: int, **fields: Any) -> Job:
        outputs = self._target_shape[0] if self._target_shape else 1
        if self._is_strong:
            return strong_job(self.columns_, outputs, "numbers", **fields)
        loss, count, distribution = jobs.regressor_loss(self.loss, self.quantiles, outputs)
        return self._fully_connected_job(outputs * count, loss, distribution, **fields)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
