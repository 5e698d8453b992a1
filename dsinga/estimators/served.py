"""Exports a fitted estimator for servers, with its computations before and after the net."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.utils.validation import check_is_fitted

from dsinga.base.registry import implements, register
from dsinga.estimators import jobs
from dsinga.estimators.saving import load
from dsinga.net.layer_classes import forecast_form
from dsinga.nn.model.from_job import JobModel, OpenSaved


class EstimatorModel(JobModel):
    """The net of a fitted estimator as a model for ``export``, with the estimator's predictions.

    ``served`` has the column ``names`` of a frame, or the ``cells`` of an array with learnt columns, and the
    ``scaling`` of numbers, limited to [0, 1] if it ``clips``. For classes it has ``classes``, ``multilabel`` and
    ``temperature``. For numbers it has the number of ``targets``, 0 for features, with ``target_scaling`` and ``form``.
    """

    def __init__(self, estimator: Any):
        check_is_fitted(estimator, "params_")
        super().__init__(estimator.job_)
        self.estimator, self.params = estimator.to_local(), estimator.params_
        self.record_shapes = {jobs.input_name(self.base): estimator._record_shape}
        names = getattr(estimator, "feature_names_in_", None)
        self.served = SimpleNamespace(
            names=None if names is None else [*map(str, names)],
            cells=estimator._column_names() if names is None and estimator.columns_ is not None else None,
            scaling=estimator._scaling,
            clips=getattr(estimator, "method", "") == "rbm" and estimator.net is None,
            classes=estimator.classes_ if is_classifier(estimator) else None,
            multilabel=getattr(estimator, "_multilabel", False),
            temperature=getattr(estimator, "temperature_", 1.0),
            targets=int(np.prod(getattr(estimator, "_target_shape", 0))),
            target_scaling=getattr(estimator, "_target_scaling", None),
            form=forecast_form(jobs.losses(self.base)[-1]) if is_regressor(estimator) else None,
        )

    def output_layers(self) -> list[str]:
        """Return the name of the layer that gives predictions."""
        return [self.estimator._output]

    def predict(self, x: Any = None, **options: Any) -> Any:
        """Return what a server should return: labels and probabilities, or numbers (n, k)."""
        if is_classifier(self.estimator):
            return [self.estimator.predict(x), self.estimator.predict_proba(x)]
        of = self.estimator.predict if is_regressor(self.estimator) else self.estimator.transform
        return (result := np.asarray(of(x))).reshape(len(result), -1)


@register("saved", "estimator.json")
@implements(OpenSaved)
def estimator_model(folder: Path) -> EstimatorModel:
    """Read the estimator saved in a folder as a model, for ``dsinga export``."""
    return EstimatorModel(load(folder))
