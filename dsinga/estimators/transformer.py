"""The transformer: features from a layer of a net, by default an auto-encoder or a Boltzmann machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted

from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_dask_collection
from dsinga.estimators import jobs
from dsinga.estimators.base import NetEstimator
from dsinga.estimators.lazy import compute, lazily
from dsinga.estimators.records import TrainingSet
from dsinga.estimators.scaling import find_range
from dsinga.estimators.settings import estimator, named_fit
from dsinga.estimators.tables import columns_of_table
from dsinga.job import Job


@estimator
class Transformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, NetEstimator):
    """A neural net that computes features of each record, such as the code of an auto-encoder.

    By default it is an auto-encoder, trained to reproduce the records from ``n_components`` numbers.

    Args:
        net: a Job, the path of a job file, or a model of dsinga.nn, with one input layer.
        layer: the layer of ``net`` that gives the features.
        method: the default net: "autoencoder", or "rbm", a restricted Boltzmann machine with binary units.
        n_components: the number of features of the default net.
        hidden: the units of each hidden layer between records and code of the auto-encoder; a number for one.

    The other parameters are explained by :class:`dsinga.estimators.Classifier`.
    """

    layer: str | None = None
    method: str = "autoencoder"
    n_components: int = 8
    hidden: int | Sequence[int] = (32,)
    weight_decay: float = 0.0
    early_stopping: bool | str = False
    _weighs = False
    _has_number_codes = False

    @named_fit
    def fit(self, X: Any, y: Any = None, *, validation_data: Any = None, client: Any = None) -> Self:
        """Train on records X (n, ...). ``y`` is ignored unless a ``net`` has a loss of labels."""
        return self._fit(X, y, go_on=self.warm_start, validation_data=validation_data, client=client)

    def partial_fit(self, X: Any, y: Any = None, *, client: Any = None) -> Self:
        """Train one more epoch on the records X, such as the next part of a large data set.

        The first call determines the scaling of records.
        """
        return self._fit(X, y, go_on=True, client=client, epochs=1)

    def transform(self, X: Any) -> Any:
        """Return the features of each record (n, k), in the precision of X if it has floats.

        With ``set_output``, features of a Dask collection are computed; a data frame keeps its index.
        """
        features = self._transform(X)
        is_whole = is_dask_collection(features) and _get_output_config("transform", self)["dense"] != "default"
        return compute(features, None) if is_whole else features

    @lazily("feature")
    def _transform(self, X: Any) -> np.ndarray:
        outputs = self._outputs(X)
        outputs = outputs.reshape(len(outputs), -1)
        dtype = np.dtype(getattr(X, "dtype", np.float64))
        return outputs.astype(dtype if dtype in (np.float32, np.float64) else np.float64)

    def as_trained(self, X: Any) -> Any:
        """Return records in the form of ``fit``; a Boltzmann machine's are always dense."""
        dense = self.net is None and self.method == "rbm" and issparse(X)
        return super().as_trained(X.toarray() if dense else X)

    def _validate(self, X: Any, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, Any]:
        if self.net is None or y is None:
            return self._validate_records(X, first), None
        return self._validate_both(X, y, first, multi_output=True, y_numeric=True, allow_nd=True)

    def _open_lazy_targets(self, y: Any, first: bool, classes: Any, client: Any) -> Any:
        return y

    def _find_scaling(self, records: TrainingSet, client: Any) -> None:
        if self.net is None and self.method == "rbm":
            self._scaling = find_range(records.x, client)
        else:
            super()._find_scaling(records, client)

    def _scaled(self, x: Any) -> Any:
        scaled = super()._scaled(x)
        return scaled.clip(0, 1) if self.net is None and self.method == "rbm" else scaled

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return y

    def _default_job(self, width: int, **fields: Any) -> Job:
        if self.method not in ("autoencoder", "rbm"):
            raise UserError(f"method must be 'autoencoder' or 'rbm', not {self.method!r}")
        check_whole("n_components", self.n_components, 1)
        parts = None if self.columns_ is None else columns_of_table(self.columns_).parts
        if parts is not None and parts.sizes:
            raise UserError(
                "the default nets of Transformer take numbers, but the table has categories: "
                f"{', '.join(parts.categories)}; leave them out, or give net="
            )
        if self.method == "rbm":
            return jobs.rbm_job(width, self.n_components, **fields)
        return jobs.autoencoder_job([width, *self._hidden_sizes(), self.n_components], self.activation, **fields)

    @property
    def _output(self) -> str:
        return "code" if self.net is None or self.layer is None else self.layer

    @property
    def _n_features_out(self) -> int:
        check_is_fitted(self)
        return int(np.prod(self._local.feature_shape(self._output)))

    def _axis_names(self, axis: str) -> Sequence[Any]:
        return list(self.get_feature_names_out())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
