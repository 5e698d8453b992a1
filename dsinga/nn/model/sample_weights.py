"""Weights of records: those given, and those of classes. A loss with weights w is Σ w·l / n over n records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.base.arguments import check_range, value_text
from dsinga.base.errors import UserError
from dsinga.data import open_records
from dsinga.data.array_kinds import is_dask_collection
from dsinga.job import Phase
from dsinga.job.enums import PHASES
from dsinga.net.layer_classes import SAMPLE_WEIGHT
from dsinga.nn.model.records import PhaseRecords
from dsinga.nn.words.losses import compares, loss_kind
from dsinga.nn.writing.symbol import LayerBuilder, Symbol


def weighted_phases(phases: Mapping[str, PhaseRecords]) -> list[Phase]:
    """Return the phases whose records have weights."""
    return [PHASES[name] for name, records in phases.items() if SAMPLE_WEIGHT in records.shapes]


def add_weights(records: PhaseRecords, weights: Any) -> np.ndarray:
    """Add the weights of records as those of the input layer "sample_weight", and return them as its records.

    They are (n,), or (n, steps) and (n, *space) for labels of each step or point. Raises UserError for other shapes.
    """
    if SAMPLE_WEIGHT in records.sources:
        raise UserError("the records have weights, and sample_weight gives others; leave one of the two out")
    array = as_weights(weights)
    lengths = [len(source) for source in records.sources.values()]
    if any(length != len(array) for length in lengths):
        raise UserError(f"sample_weight has {len(array)} numbers for {lengths[0]} records; give one for each")
    labels = [shape for shape in records.label_shapes.values() if shape]
    if array.ndim > 1 and not any(array.shape[1:] in (shape, shape[1:], shape[:1]) for shape in labels):
        by_step = "" if not labels else ", or for each step or point that has labels"
        raise UserError(f"sample_weight has a number for each record, (n,){by_step}, not the shape {array.shape}")
    array = array[:, None] if array.ndim == 1 else array
    records.sources[SAMPLE_WEIGHT] = open_records(array)
    records.shapes[SAMPLE_WEIGHT] = array.shape[1:]
    return array


def as_weights(sample_weight: Any) -> np.ndarray:
    """Return weights as (n, ...) float32. Raises UserError for what is no array, and for NaN, infinity and < 0."""
    try:
        array = np.asarray(sample_weight, np.float32)
    except (TypeError, ValueError):
        array = None
    if array is None or not array.ndim:
        raise UserError(f"sample_weight has a number for each record, (n,), not {value_text(sample_weight)}")
    if array.size == len(array):
        array = array.reshape(-1)
    wrong = np.argwhere(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        raise UserError(
            f"sample_weight of record {wrong[0][0]} is {array[tuple(wrong[0])]:g}; give a number of at least 0, and 0 "
            "to leave a record out"
        )
    return array


def without_missing(y: Any, weights: Any, loss: Any) -> tuple[Any, Any]:
    """Return labels (n, k) with 0 in place of NaN, and the weights (n, k), which are 0 there.

    So of a ``loss`` that is masked, and where such weights are given; other labels are returned as they are. Raises
    UserError for NaN among labels (n, k) otherwise.
    """
    if not (isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind == "f"):
        return y, weights
    missing = np.isnan(y)
    if not missing.any():
        return y, weights
    given = None if weights is None else as_weights(weights)
    if isinstance(loss, LayerBuilder) and loss.settings.get("masked"):
        given = np.ones(y.shape, np.float32) if given is None else given.reshape(len(given), -1)
        given = np.where(missing, 0, given).astype(np.float32)
    if given is None or given.shape != y.shape or given[missing].any():
        row, column = np.argwhere(missing)[0]
        raise UserError(
            f"y has NaN in record {row}, column {column}; where some of several targets are missing, give "
            "sample_weight=~np.isnan(y), a weight for each, or loss=nn.MeanSquaredError(masked=True) or its like"
        )
    return np.where(missing, 0, y).astype(y.dtype), given


def weights_of_classes(class_weight: Any, labels: Any, loss: Any, sample_weight: Any = None) -> np.ndarray:
    """Return weights of the shape of the labels, float32: those of their classes, times ``sample_weight``.

    ``class_weight`` has a factor for some classes, by label; it is 1 for the others. "balanced" stands for n / (k·n_c)
    of a class with n_c of n labels of k classes, as in scikit-learn. Labels of a step or point that is left out, -1,
    do not count. Raises UserError for factors that are no numbers of at least 0, and for labels that are no classes in
    memory.
    """
    if not isinstance(class_weight, Mapping) and not (isinstance(class_weight, str) and class_weight == "balanced"):
        raise UserError(
            "class_weight has a factor for each class, as in {0: 1.0, 1: 5.0}, or is 'balanced', not "
            f"{class_weight!r}"
        )
    classes = _classes(labels, loss)
    weights = np.ones(classes.shape, np.float32)
    if not isinstance(class_weight, Mapping):
        present, counts = np.unique(classes[classes >= 0], return_counts=True)
        class_weight = dict(zip(present.tolist(), (counts.sum() / (len(present) * counts)).tolist(), strict=True))
    for label, factor in class_weight.items():
        check_range(f"class_weight[{label!r}]", factor, 0)
        weights[classes == label] = factor
    if class_weight and not set(np.unique(classes).tolist()) & set(class_weight):
        raise UserError(f"class_weight has a factor for {next(iter(class_weight))!r}, which is the class of no record")
    if sample_weight is None:
        return weights
    given = as_weights(sample_weight)
    if len(given) != len(weights):
        raise UserError(f"sample_weight has {len(given)} numbers for {len(weights)} records; give one for each")
    axes = max(given.ndim, weights.ndim)
    given, weights = (array.reshape(*array.shape, *[1] * (axes - array.ndim)) for array in (given, weights))
    return weights * given


def _classes(labels: Any, loss: Any) -> np.ndarray:
    """Return labels that are classes: (n,), or (n, ...) of each step or point where the loss takes those."""
    if isinstance(labels, (list, tuple)) or (hasattr(labels, "__array__") and not is_dask_collection(labels)):
        labels = np.asarray(labels)  # a list or a data frame's column
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "biuf" and labels.ndim:
        labels = labels.reshape(-1) if labels.size == len(labels) else labels
        compares_numbers = loss is not None and not isinstance(loss, Symbol) and compares(loss_kind(loss))
        is_whole, is_one_hot = True, False
        if labels.dtype.kind == "f":
            labels = np.where(np.isnan(labels), -1, labels)  # a point that is left out
            is_whole = bool((labels == np.round(labels)).all())
            is_one_hot = labels.ndim == 2 and bool(np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all())
        if is_whole and (labels.ndim == 1 or not compares_numbers):
            return labels.argmax(axis=1) if is_one_hot else labels
    raise UserError("class_weight needs y, an array with the class of each record; else give sample_weight")
