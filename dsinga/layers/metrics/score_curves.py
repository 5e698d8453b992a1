"""Metrics of scores over all thresholds: ROC AUC and average precision; also accuracy for losses without it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import register

TIE_UNITS = 64  # units in the last place by which scores of equal records may differ, in a net of some layers


def binary_columns(metric: str, labels: np.ndarray, predictions: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split labels and predictions into yes-or-no questions: a pair (answers, scores), each (n,), for each question.

    Predictions (n, 1), or (n, 2) for two classes, are one question with labels 0 and 1. With labels (n,) of k classes,
    k columns are k questions, one class against the others. With labels (n, k) of 0 and 1, each column is a question.
    """
    if labels.dtype.kind not in "biuf":
        raise UserError(f"the metric {metric!r} takes labels that are numbers, such as 0 and 1, not {labels.flat[0]!s}")
    predictions = predictions[:, None] if predictions.ndim == 1 else predictions
    n, k = predictions.shape
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and labels.shape[1] == k:
        answers = labels
    elif labels.ndim == 1 and k == 1:
        answers = labels[:, None]
    elif labels.ndim == 1:
        if n and not (labels == np.floor(labels)).all() or labels.min(initial=0) < 0 or labels.max(initial=0) >= k:
            raise UserError(f"the metric {metric!r} takes classes 0 to {k - 1}, one for each column of the predictions")
        columns = [1] if k == 2 else range(k)
        return [(labels == column, predictions[:, column]) for column in columns]
    else:
        raise UserError(
            f"the metric {metric!r} compares {k} predictions a record with labels {labels.shape[1:]}; give it "
            "a score for each class, or for each label"
        )
    if not np.isin(answers, (0, 1)).all():
        raise UserError(
            f"the metric {metric!r} takes labels 0 and 1, but there is {answers[~np.isin(answers, (0, 1))][0]:g}; for "
            "numbers to predict use r2, rmse or mae"
        )
    return [(answers[:, column] == 1, predictions[:, column]) for column in range(answers.shape[1])]


def _mean_over_questions(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there is none."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def counts_by_score(answers: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the different scores, highest first, and how many yes and no answers are at or above each."""
    values, places = np.unique(-scores, return_inverse=True)
    ties = _ties(values, TIE_UNITS * np.finfo(scores.dtype).eps if scores.dtype.kind == "f" else 0.0)
    groups = ties[places] if len(values) else places
    first = np.unique(ties, return_index=True)[1]
    yes = np.bincount(groups, answers, len(first)).cumsum()
    no = np.bincount(groups, ~answers, len(first)).cumsum()
    return -values[first], yes, no


def _ties(values: np.ndarray, tolerance: float) -> np.ndarray:
    """Number the ties, from 0, of the sorted, different ``values`` (n,), so that rounding errors do not count."""
    if not tolerance or len(values) < 2:
        return np.arange(len(values))
    low, high = values[:-1].astype(np.float64), values[1:].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = (high - low) / (tolerance * np.maximum(np.abs(low), np.abs(high)))
    gaps = np.minimum(np.where(np.isfinite(gaps), gaps, 2.0), 2.0)  # in tolerances; two or more are not told apart
    distance = np.concatenate([[0.0], gaps.cumsum()])
    begins = np.concatenate([[True], gaps > 1])  # a value far from the one before it
    tolerances = np.floor(distance - np.maximum.accumulate(np.where(begins, distance, 0.0)))
    return (begins | np.concatenate([[False], np.diff(tolerances) != 0])).cumsum() - 1


@register("metric", "accuracy")
def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of right predictions, for losses that do not report it.

    One prediction a record is the probability of the answer 1; of several, the highest wins. Labels are the answers 0
    and 1, classes, or a number for each class, with the largest for the right class.
    """
    scores = predictions.reshape(len(predictions), -1)
    count = max(2, scores.shape[1])
    right = labels.argmax(axis=1) if labels.ndim > 1 and labels.shape[1:] == scores.shape[1:] != (1,) else labels
    if right.size != len(scores) or ((right < 0) | (right >= count) | (np.floor(right) != right)).any():
        raise UserError(
            f"the metric 'accuracy' compares {scores.shape[1]} predictions a record with the labels 0 to {count - 1}; "
            "for numbers to predict there are rmse, mae and r2"
        )
    predicted = scores.argmax(axis=1) if scores.shape[1] > 1 else scores[:, 0] > 0.5
    return float((predicted == right.reshape(-1)).mean())


@register("metric", "roc_auc")
def roc_auc(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the area under the ROC curve: the share of yes-no pairs in which the yes has the higher score.

    A tie counts half (Mann and Whitney); scores that differ only by rounding are ties. For several classes or labels it
    is the mean, one against the others, over classes that have both answers. It is NaN if none has both. It is exact,
    as scikit-learn's roc_auc_score; Keras's AUC has 200 thresholds.
    """
    areas = []
    for answers, scores in binary_columns("roc_auc", labels, predictions):
        _, yes, no = counts_by_score(answers, scores)
        if not len(yes) or not yes[-1] or not no[-1] or np.isnan(scores).any():
            areas.append(math.nan)
            continue
        steps = np.diff(no, prepend=0)
        doubled = (steps * (2 * yes - np.diff(yes, prepend=0))).sum()  # whole numbers: exact below 2^53
        areas.append(float(doubled / (2 * yes[-1] * no[-1])))
    return _mean_over_questions(areas)


@register("metric", "average_precision")
def average_precision(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the area under precision and recall: Σ (recall - previous recall)·precision over falling scores.

    It is scikit-learn's average_precision_score. For several classes or labels it is the mean over all.
    """
    means = []
    for answers, scores in binary_columns("average_precision", labels, predictions):
        _, yes, no = counts_by_score(answers, scores)
        if not len(yes) or np.isnan(scores).any():
            return math.nan
        precisions = np.diff(yes, prepend=0) * yes / (yes + no)
        means.append(float(precisions.sum() / max(yes[-1], 1)))
    return math.fsum(means) / len(means) if means else math.nan
