"""The classifier: a neural net that predicts one class of several, or several yes-or-no labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from dsinga import nn
from dsinga.base.arguments import value_text
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.registry import listed
from dsinga.data.array_kinds import in_order, is_a, is_dask_collection
from dsinga.data.sendable import naming_unsendable
from dsinga.estimators.base import Supervised
from dsinga.estimators.calibration import find_temperature
from dsinga.estimators.lazy import average, compute, lazily, predicted, raw_scores
from dsinga.estimators.records import TrainingSet
from dsinga.estimators.settings import estimator, resolve_auto
from dsinga.estimators.strong import strong_job
from dsinga.job import Job


def _is_missing(label: Any) -> bool:
    return label is None or type(label).__name__ == "NAType" or (isinstance(label, float) and label != label)


def _check_no_gaps(y: Any) -> None:
    """Raise UserError, with the record's number, if a class is missing."""
    labels = np.asarray(y, object)
    for number, row in enumerate(labels.reshape(len(labels), -1).tolist() if labels.ndim and labels.size else []):
        if any(map(_is_missing, row)):
            known = "pandas.notna(y)" if labels.ndim == 1 else "pandas.notna(y).all(axis=1)"
            raise UserError(f"y has no label in record {number}; leave such records out: X[{known}], y[{known}]")


def _known(y: np.ndarray) -> np.ndarray:
    """Return classes as they are; raise UserError if one is missing, or if they cannot be compared."""
    labels = y.ravel().tolist() if y.dtype.kind in "Of" else []
    if any(map(_is_missing, labels)):
        raise UserError("y has a record without a class; leave such records out, as by dropna()")
    kinds = {isinstance(label, str): label for label in labels}
    if len(kinds) > 1:
        raise UserError(f"y has classes of two kinds, {kinds[False]!r} and {kinds[True]!r}; give y.astype(str)")
    return y


def _unique(y: np.ndarray) -> np.ndarray:
    return np.unique(_known(y))


def _given(classes: Any) -> np.ndarray:
    """Return the distinct ``classes`` that a caller names; raise UserError if there are none."""
    if np.ndim(classes) != 1 or not len(classes):
        raise UserError(f"classes is {value_text(classes)}; list all classes that y may have, as in classes=[0, 1]")
    return _unique(column_or_1d(classes))


def _codes(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Replace classes by their positions in ``classes``, int64."""
    unknown = np.setdiff1d(_known(y), classes)
    if len(unknown):
        named = sorted({*classes.tolist(), *unknown.tolist()}, key=lambda label: (str(type(label)), label))
        raise UserError(
            f"y has the class {unknown.tolist()[0]!r}, which is none of the classes of the first call "
            f"({listed(map(repr, classes.tolist()))}); train on records of all classes, or name all in the first call: "
            f"partial_fit(X, y, classes={value_text(named)})"
        )
    return np.searchsorted(classes, y)


@estimator
class Classifier(ClassifierMixin, Supervised):
    """A neural net that predicts the class of each record, or a matrix of yes-or-no labels.

    For dask arrays, dask frames and xarray arrays of dask chunks, ``fit`` trains on the current client's cluster, or
    ``client=``, and predictions are lazy. A zarr array of more than 128 MiB is read with ``da.from_zarr`` and predicted
    chunk by chunk. Other arrays are trained on in this process; a cluster of one worker gives the same bits.

    A sparse matrix of at most 128 MiB as float32 becomes dense; a larger one becomes dense batch by batch. If a batch
    has all records, equal records count as one with the sum of their weights: weights and repeated records give the
    same bits.

    For data frames the default net learns piecewise-linear functions of each number with 47 kinks. Categories with at
    most 8 codes (400 with the preset) are one-hot, others embedded.

    Args:
        net: a Job, the path of a job file, or a model of dsinga.nn, with one input layer and one loss. The default is a
            small fully connected net; it scales arrays to mean 0 and deviation 1, or reads the columns of a data frame.
        hidden: the number of units of each hidden layer of the default net, or a number for one layer; by default
            (64,), for data frames (100,).
        activation: the function after each hidden layer of the default net: "relu", "sigmoid", "tanh" or "stanh".
        epochs: how often all records are read; the maximum with early stopping. The default is the epochs of ``net``.
            For the default net it is 10, or 100 with early stopping. Few records are read more often, for at least 200
            steps, or 500 for data frames.
        batchsize: records of one step; by default the batch size of ``net``, or 200 for the default net, 256 for the
            preset.
        learning_rate: of Adam, for the default net: 0.01, for data frames 0.001, for the preset 0.0007.
        weight_decay: for the default net: 0.01, for data frames 0.0001, for the preset 0.0003.
        warm_start: whether ``fit`` continues from the params of the last ``fit``.
        random_state: an int for the same result each time. By default it is random for the default net, and the seed of
            ``net`` otherwise.
        early_stopping: whether training stops if the loss of held-out records no longer falls; the net keeps the params
            of the best epoch. The held-out records are ``validation_data`` of ``fit``, or some of the records, which
            are then not trained on. By default the default net stops early above 10,000 records, a ``net`` only with
            True. ``partial_fit`` never does.
        validation_fraction: the share of the records that is held out, the same from each class. For dask arrays, each
            chunk gives its share. With ``groups`` of ``fit`` it is a share of the groups.
        validation_split: a scikit-learn splitter instead of ``validation_fraction``, such as TimeSeriesSplit() for
            records in order of time, or StratifiedGroupKFold(10); its last split is used.
        n_iter_no_change: training stops after this many epochs in a row without improvement: by default 10, 5 for data
            frames, 16 for the preset.
        tol: an improvement must lower the least loss by more than this.
        workers: the number of workers that train on a cluster, by default all. Set it to get the same bits on a
            cluster of any size.
        blocks: the number of parts of a batch that workers share; any number of workers then gives the same bits.
        class_weight: as in scikit-learn: a factor for the loss of each class, by class, 1 for the others. "balanced" is
            n / (k·n_c) for a class with n_c of the n records, of k classes. ``sample_weight`` multiplies it.
        preset: "strong" for TabM, an ensemble in one net, on learnt columns of a data frame or an array (n, d). By
            default it stops early for any number of records, and calibrates.
        calibrate: whether scores are divided by the temperature that fits held-out records best; by default with the
            preset. Records are held out as for ``early_stopping``.

    Attributes:
        classes_: the classes, sorted; for label matrices the numbers of the columns.
        job_: the job of the net.
        params_: the params of the net, float32 by name.
        history_: a row of metrics for each epoch, drawn by ``history_.plot()``.
        best_epoch_: the epoch of ``history_`` that gave the params, if training stopped early; else None.
        n_iter_: the number of epochs of all calls.
        loss_curve_: the loss of each of these epochs.
        n_features_in_: the number of features of a record, or of columns of a data frame.
        columns_: the learnt columns of a data frame; None for arrays, and for frames of numbers without gaps.
        temperature_: the divisor of scores for probabilities; 1 without calibration.

    Examples:
        >>> import numpy as np
        >>> from dsinga.estimators import Classifier
        >>> X = np.random.default_rng(0).normal(size=(200, 4))
        >>> y = np.where(X[:, 0] > 0, "high", "low")
        >>> Classifier().fit(X, y).predict(X[:2]).shape
        (2,)
    """

    class_weight: Mapping[Any, float] | str | None = None
    preset: str | None = None
    calibrate: bool | str = "auto"
    temperature_ = 1.0

    @property
    def _has_classes(self) -> bool:  # type: ignore[override]
        return not self._multilabel

    @public
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, *, sample_weight: Any = None, client: Any = None
    ) -> Self:
        """Train one more epoch on the records X, such as the next part of a large data set.

        The first call requires ``classes`` unless y has all of them.
        """
        return self._fit(X, y, go_on=True, sample_weight=sample_weight, client=client, classes=classes, epochs=1)

    @public
    @lazily("output")
    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each record (n,), or a matrix of labels (n, k)."""
        scores = self._outputs(X)
        if self._multilabel:
            return (scores > 0).astype(self.classes_.dtype)
        return self.classes_[np.argmax(scores, axis=1)]

    @public
    @lazily("class")
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, or of each label of label matrices, (n, k)."""
        scores = self._outputs(X).astype(np.float64) / self.temperature_
        if self._multilabel:
            return np.exp(-np.logaddexp(0, -scores))
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)

    @lazily("class")
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the log probability of each class, or of each label of label matrices, (n, k)."""
        scores = self._outputs(X).astype(np.float64) / self.temperature_
        if self._multilabel:
            return -np.logaddexp(0, -scores)
        scores -= scores.max(axis=1, keepdims=True)
        return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    @lazily("class")
    def decision_function(self, X: Any) -> np.ndarray:
        """Return the score of each class or label (n, k); of two classes, their difference (n,)."""
        scores = self._outputs(X).astype(np.float64)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 and not self._multilabel else scores

    @public
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy, the share of right predictions; block by block for collections."""
        y = in_order(y, getattr(self, "_label_order", ()))
        if not is_dask_collection(X):
            return super().score(X, _known(np.asarray(y)), sample_weight)
        with naming_unsendable({"X": X, "y": y, "sample_weight": sample_weight}):
            targets, outputs = predicted(self, X, y)
            right = outputs == targets
            if right.ndim == 2:
                right = right.all(axis=1)
            return float(compute(average(right, sample_weight), None))

    def _axis_names(self, axis: str) -> Sequence[Any]:
        return list(self.classes_)

    def _validate(self, X: Any, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, Any]:
        try:
            x, y = self._validate_both(X, y, first, multi_output=True, allow_nd=self.net is not None)
            _known(y)
        except ValueError:
            _check_no_gaps(y)
            raise
        try:
            check_classification_targets(y)
        except ValueError as error:
            raise UserError(f"{error} For numbers write dsinga.estimators.Regressor.") from None
        kind = type_of_target(y)
        if kind == "multiclass-multioutput":
            raise ValueError("y has several columns of classes; give one column, or a matrix of zeros and ones")
        multilabel = kind == "multilabel-indicator"
        y = y if multilabel else column_or_1d(y, warn=True)
        self._learn_classes(y.shape, multilabel, first, lambda: _unique(y) if classes is None else _given(classes))
        return x, y if multilabel else _codes(y, self.classes_)

    def _learn_classes(
        self, shape: Sequence[int], multilabel: bool, first: bool, find: Callable[[], np.ndarray]
    ) -> None:
        """Keep the classes of the first call. Raises ValueError if later targets do not fit them."""
        if first:
            self._multilabel = multilabel
            self.classes_ = np.arange(shape[1]) if multilabel else find()
        if multilabel != self._multilabel:
            raise ValueError("y is a matrix of labels in one call and a column of classes in another")
        if multilabel and shape[1] != len(self.classes_):
            raise ValueError(f"y has {shape[1]} columns, but had {len(self.classes_)} in the first call")

    def _with_class_weights(self, records: TrainingSet, client: Any, is_part: bool) -> TrainingSet:
        class_weight: Any = self.class_weight
        if class_weight is None:
            return records
        if is_a(class_weight, "pandas", "Series"):
            class_weight = class_weight.to_dict()
        if not (isinstance(class_weight, Mapping) or (isinstance(class_weight, str) and class_weight == "balanced")):
            raise ValueError(
                "class_weight is a factor for each class, as in {0: 1.0}, or 'balanced', not "
                f"{value_text(class_weight)}"
            )
        if self._multilabel:
            raise ValueError("class_weight is for one column of classes; give sample_weight for a matrix of labels")
        if isinstance(class_weight, Mapping):
            factors = compute_class_weight(dict(class_weight), classes=self.classes_, y=self.classes_)
        elif is_part:
            raise ValueError("class_weight='balanced' needs all records, which partial_fit does not see; give factors")
        else:
            counts = np.asarray(compute(np.bincount(records.y, minlength=len(self.classes_)), client))
            factors = counts.sum() / (len(counts) * counts)
        of_codes = np.asarray(factors, np.float64).__getitem__
        is_lazy = is_dask_collection(records.y)
        weights = records.y.map_blocks(of_codes, dtype=np.float64) if is_lazy else of_codes(records.y)
        return records._replace(weights=weights if records.weights is None else weights * records.weights)

    def _open_lazy_targets(self, y: Any, first: bool, classes: Any, client: Any) -> Any:
        column, multilabel = y.reshape(-1), y.ndim == 2 and y.shape[1] > 1

        def find() -> np.ndarray:
            if classes is not None:
                return _given(classes)
            return _unique(compute(column.map_blocks(_unique, dtype=y.dtype), client))

        self._learn_classes(y.shape, multilabel, first, find)
        if self._multilabel:
            return y
        return column.map_blocks(_codes, self.classes_, dtype=np.int64, meta=np.empty(0, np.int64))

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return y.astype(np.int64)

    def _calibrates(self, is_part: bool) -> bool:
        if not is_part:
            self.temperature_ = 1.0
        return resolve_auto("calibrate", self.calibrate, self._is_strong) and not is_part

    def _calibrate(self, held_out: TrainingSet, client: Any) -> None:
        scores = compute(raw_scores(self, held_out.x), client)
        targets, weights = compute((held_out.y, held_out.weights), client)
        self.temperature_ = find_temperature(scores, targets, weights)

    def _default_job(self, width: int, **fields: Any) -> Job:
        outputs = len(self.classes_)
        if self._is_strong:
            return strong_job(self.columns_, outputs, "answers" if self._multilabel else "classes", **fields)
        if self._multilabel:
            return self._fully_connected_job(outputs, nn.SigmoidCrossEntropyLoss(name="loss"), "", **fields)
        return self._fully_connected_job(outputs, nn.SoftmaxLoss(name="loss"), None, **fields)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
