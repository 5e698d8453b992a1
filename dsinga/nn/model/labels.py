"""Converts labels to the form for a loss, and applies sample weights: the loss is Σ w·l / n over n records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.base.arguments import check_range
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest_or_listed
from dsinga.data import RecordSource
from dsinga.data.array_kinds import is_dask_collection
from dsinga.nn.words.losses import compares, loss_kind
from dsinga.nn.writing.symbol import LayerBuilder, Symbol
from dsinga.reading.given import as_weights

IMAGE_AXES = (4, 5)  # the axes of a batch of images, or of volumes
COLUMN_LOSSES = "sparse_categorical_crossentropy categorical_crossentropy hinge binary_crossentropy focal".split()


def loss_of_labels(model: Any) -> Any:
    """Return the loss given to ``compile`` for the model's first output, or None."""
    return next(iter(vars(model)["objective"].losses), None) if "objective" in vars(model) else None


def labels_for_loss(loss: Any, y: Any) -> Any:
    """Convert labels to the form for a loss: (n, 1) to (n,), one-hot (n, K) to classes (n,)."""
    if isinstance(y, np.ndarray) and y.size and y.dtype.kind in "biuf":
        _check_labels(loss, y)
    if not (isinstance(y, np.ndarray) and y.ndim == 2):
        return y
    if y.shape[1] == 1 and loss in COLUMN_LOSSES:
        return y[:, 0]
    if loss == "categorical_crossentropy":
        return y.argmax(axis=1) if _is_one_hot(y) else y.astype(np.float32)
    return y


def _check_labels(loss: Any, y: np.ndarray) -> None:
    """Raise UserError for numbers that a loss does not accept as labels."""
    kind = loss_kind(loss) if not isinstance(loss, Symbol) else ""
    if kind in ("SigmoidCrossEntropyLoss", "FocalLoss") and (y.min() < 0 or y.max() > 1):
        name = loss if isinstance(loss, str) else f"nn.{kind}"
        remedy = 'for several classes use "sparse_categorical_crossentropy"'
        if np.isin(y, (-1, 1)).all():
            remedy = "for answers of -1 and 1 give (y + 1) // 2"
        elif np.isin(y, (0, y.max())).all() and y.max() == round(y.max()):
            remedy = f"for answers of 0 and {y.max():g} give y // {y.max():g}"
        raise UserError(f"{name} takes labels from 0 to 1, but y has {y.min():g} to {y.max():g}; {remedy}")
    if loss == "sparse_categorical_crossentropy" and y.dtype.kind == "f":
        _check_classes(loss, y)
    are_shares = kind == "KLDivergenceLoss" or loss == "categorical_crossentropy" or y.dtype.kind == "f"
    if y.ndim == 2 and y.shape[1] > 1 and kind in ("SoftmaxLoss", "KLDivergenceLoss") and are_shares:
        wrong = np.flatnonzero((y < 0).any(axis=1) | (np.abs(y.sum(axis=1, dtype=np.float64) - 1) > 1e-3))
        if wrong.size:
            raise UserError(
                f"{loss if isinstance(loss, str) else f'nn.{kind}'} takes the share of each class, numbers of at least "
                f"0 that add up to 1 in a row, but row {wrong[0]} of y has the sum {y[wrong[0]].sum():g}"
            )


def _check_classes(loss: str, y: np.ndarray) -> None:
    """Raise UserError for float labels if the loss expects classes; suggest a loss or a dtype."""
    if _is_one_hot(y) and y.shape[1] > 1:
        raise UserError(f'{loss} takes classes, but y is one-hot; use "categorical_crossentropy"')
    if np.array_equal(y, np.round(y)):
        raise UserError(f"{loss} takes classes, but y has the dtype {y.dtype}; give y.astype(int)")
    raise UserError(
        f"{loss} takes classes, but y has numbers such as {y.flat[0]:g}; for shares of classes use "
        '"categorical_crossentropy", for numbers to predict "mse"'
    )


def _is_one_hot(y: np.ndarray) -> bool:
    """Whether labels are one-hot rows (n, K): a 1 and zeros."""
    return y.ndim == 2 and bool(np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all())


def labels_first(y: Any) -> Any:
    """Move the channels of image or volume labels (n, H, W, C) to axis 1; other labels are unchanged."""
    if isinstance(y, dict):
        return {name: labels_first(labels) for name, labels in y.items()}
    if isinstance(y, list) and y and all(hasattr(labels, "ndim") for labels in y):
        return [labels_first(labels) for labels in y]
    if getattr(y, "ndim", 0) not in IMAGE_AXES:
        return y
    return np.moveaxis(y if is_dask_collection(y) else np.asarray(y), -1, 1)


def outputs_last(output: Any, axis: int) -> Any:
    """Move the channels of predicted images to the last axis, for models with channels last."""
    return np.moveaxis(output, axis + 1, -1) if output.ndim - axis in IMAGE_AXES else output


def without_missing(y: Any, weights: Any, loss: Any) -> tuple[Any, Any]:
    """Replace NaN in labels (n, k) by 0, and return weights (n, k) that are 0 there.

    Raises UserError for NaN unless the ``loss`` is masked or there are such weights.
    """
    if not (isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind == "f"):
        return y, weights
    missing = np.isnan(y)
    if not missing.any():
        return y, weights
    factors = None if weights is None else as_weights(weights)
    if isinstance(loss, LayerBuilder) and loss.settings.get("masked"):
        factors = np.ones(y.shape, np.float32) if factors is None else factors.reshape(len(factors), -1)
        factors = np.where(missing, 0, factors).astype(np.float32)
    if factors is None or factors.shape != y.shape or factors[missing].any():
        row, column = np.argwhere(missing)[0]
        raise UserError(
            f"y has NaN in record {row}, column {column}; where some of several targets are missing, give "
            "sample_weight=~np.isnan(y), a weight for each, or loss=nn.MeanSquaredError(masked=True) or its like"
        )
    return np.where(missing, 0, y).astype(y.dtype), factors


def weights_of_classes(class_weight: Any, labels: Any, loss: Any, sample_weight: Any = None) -> np.ndarray:
    """Return a weight for each label from ``class_weight``, times ``sample_weight``: float32 shaped as the labels.

    ``class_weight`` maps labels, or class names of a record source, to factors, by default 1. "balanced" gives n /
    (k·n_c) to a class with n_c of n labels, for k classes, as in scikit-learn, and ignores the label -1. Raises
    UserError for a key that is a text, but no class name. See :func:`check_class_weight` for other keys.
    """
    if not isinstance(class_weight, Mapping) and not (isinstance(class_weight, str) and class_weight == "balanced"):
        raise UserError(
            "class_weight has a factor for each class, as in {0: 1.0, 1: 5.0}, or is 'balanced', not "
            f"{class_weight!r}"
        )
    if isinstance(labels, RecordSource):
        class_weight, labels = _factors_and_labels(class_weight, labels)
    classes = _classes(labels, loss)
    weights = np.ones(classes.shape, np.float32)
    if not isinstance(class_weight, Mapping):
        present, counts = np.unique(classes[classes >= 0], return_counts=True)
        class_weight = dict(zip(present.tolist(), (counts.sum() / (len(present) * counts)).tolist(), strict=True))
    for label, factor in class_weight.items():
        check_range(f"class_weight[{label!r}]", factor, 0)
        if isinstance(label, str):
            raise _no_class(label, np.unique(classes).tolist())
        weights[classes == label] = factor
    if sample_weight is None:
        return weights
    factors = as_weights(sample_weight)
    if len(factors) != len(weights):
        raise UserError(f"sample_weight has {len(factors)} numbers for {len(weights)} records; give one for each")
    axes = max(factors.ndim, weights.ndim)
    factors, weights = (array.reshape(*array.shape, *[1] * (axes - array.ndim)) for array in (factors, weights))
    return weights * factors


def check_class_weight(class_weight: Any, labels: Any, loss: Any) -> None:
    """Raise UserError if a key of ``class_weight`` is no label of the data, and a label of the data has no factor."""
    if not isinstance(class_weight, Mapping) or (isinstance(labels, RecordSource) and labels.classes):
        return
    if isinstance(labels, RecordSource):
        class_weight, labels = _factors_and_labels(class_weight, labels)
    present = np.unique(_classes(labels, loss)).tolist()
    unknown = [key for key in class_weight if key not in present]
    if unknown and set(present) - {-1, *class_weight}:
        raise _no_class(unknown[0], present)


def _no_class(key: Any, present: list[Any]) -> UserError:
    remedy = ""
    if isinstance(key, str) and key in map(str, present):
        remedy = f"; {key!r} is a text: write {{int(k): v for k, v in class_weight.items()}}"
    text = f"class_weight has a factor for {key!r}, which is the class of no record; the classes are "
    return UserError(f"{text}{listed(map(str, present))}{remedy}")


def _factors_and_labels(class_weight: Any, source: RecordSource) -> tuple[Any, np.ndarray | None]:
    """Convert factors by class name to factors by code, and return all labels, None unless each record has one."""
    if not source.has_labels or source.label_shape:
        return class_weight, None
    if isinstance(class_weight, Mapping) and source.classes:
        codes: dict[Any, int] = {str(name): code for code, name in enumerate(source.classes)}
        for name in class_weight:
            if isinstance(name, str) and name not in codes:
                hint = nearest_or_listed(name, codes, "the classes are")
                raise UserError(f"class_weight has a factor for {name!r}, which is no class{hint}")
        class_weight = {codes.get(str(name), name): factor for name, factor in class_weight.items()}
    return class_weight, np.concatenate(list(source.label_parts()))


def _classes(labels: Any, loss: Any) -> np.ndarray:
    """Return labels as class indices: (n,), or (n, ...) for each step or point if the loss allows it."""
    if isinstance(labels, (list, tuple)) or (hasattr(labels, "__array__") and not is_dask_collection(labels)):
        labels = np.asarray(labels)  # a list or a data frame's column
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "biuf" and labels.ndim:
        labels = labels.reshape(-1) if labels.size == len(labels) else labels
        compares_numbers = loss is not None and not isinstance(loss, Symbol) and compares(loss_kind(loss))
        is_whole, is_one_hot = True, False
        if labels.dtype.kind == "f":
            labels = np.where(np.isnan(labels), -1, labels)  # -1: a point that is left out
            is_whole = bool((labels == np.round(labels)).all())
            is_one_hot = _is_one_hot(labels)
        if is_whole and (labels.ndim == 1 or not compares_numbers):
            return labels.argmax(axis=1) if is_one_hot else labels
    raise UserError("class_weight needs y, an array with the class of each record; else give sample_weight")
