"""What the threshold of a score decides: the counts of right and false alarms, ROC AUC, average precision."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dsinga.base.errors import UserError


def binary_columns(metric: str, labels: np.ndarray, predictions: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (answers, scores), each (n,), of each yes-or-no question that labels and predictions ask.

    One column of predictions (n, 1), or two of two classes (n, 2), are one question, with labels 0 and 1; k columns
    with labels (n,) of k classes are k questions, one class against the others; with labels (n, k) of 0 and 1 each
    column is one. Raises UserError for other labels.
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
    """Return the mean of the values that are numbers; NaN where there is none."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def counts_by_score(answers: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the different scores, highest first, and how many answers of yes and of no are at or above each."""
    values, places = np.unique(-scores, return_inverse=True)
    yes = np.bincount(places, answers, len(values)).cumsum()
    no = np.bincount(places, ~answers, len(values)).cumsum()
    return -values, yes, no


def roc_auc(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the area under the ROC curve: the share of pairs of a yes and a no in which yes has the higher score.

    A tie counts half (Mann and Whitney). Of several classes or labels it is the mean, one against the others, of those
    that have both answers; NaN if none has, and of scores that are NaN. It is exact, as scikit-learn's roc_auc_score;
    Keras' AUC has 200 thresholds.
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


def average_precision(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Σ (recall - recall before)·precision over the scores, highest first: the area under precision and recall.

    It is scikit-learn's average_precision_score. Of several classes or labels it is the mean of those that have a yes;
    NaN if none has, and of scores that are NaN.
    """
    means = []
    for answers, scores in binary_columns("average_precision", labels, predictions):
        _, yes, no = counts_by_score(answers, scores)
        if not len(yes) or not yes[-1] or np.isnan(scores).any():
            means.append(math.nan)
            continue
        means.append(float((np.diff(yes, prepend=0) * yes / (yes + no)).sum() / yes[-1]))
    return _mean_over_questions(means)
