"""Calibration of classes by a temperature: one number that scores are divided by, found on the validation records.

Guo, Pleiss, Sun and Weinberger, On Calibration of Modern Neural Networks (2017).
"""

from __future__ import annotations

import numpy as np

COLDEST, HOTTEST = 1 / 16, 16.0  # the temperatures that are tried
HALVINGS = 60  # of the bracket of the logarithm of the temperature, which is then exact to a float64


def find_temperature(scores: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the temperature by which divided scores (n, k) have the smallest log loss for the targets.

    Targets (n,) are codes of classes, and those (n, k) zeros and ones of labels of which each is predicted by itself.
    The log loss is convex in 1 / temperature, so that the sign of its derivative says on which side of a temperature
    the best one lies. It is 1 where the loss falls to the end of the bracket, as with scores that make no mistake: such
    records do not say how sure the others may be.
    """
    scores = np.asarray(scores, np.float64)
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    slope = _slope_of_labels if targets.ndim == 2 else _slope_of_classes
    low, high = np.log(COLDEST), np.log(HOTTEST)
    if not slope(scores, targets, weights, 1 / COLDEST) > 0 or not slope(scores, targets, weights, 1 / HOTTEST) < 0:
        return 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if slope(scores, targets, weights, float(np.exp(-middle))) > 0:  # a lower 1 / temperature is better
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


def _slope_of_classes(scores: np.ndarray, codes: np.ndarray, weights: np.ndarray, sharpness: float) -> float:
    """Return the derivative by ``sharpness``, 1 / temperature, of the summed log loss of classes."""
    powers = sharpness * (scores - scores.max(axis=1, keepdims=True))
    np.exp(powers, out=powers)
    expected = (powers * scores).sum(axis=1) / powers.sum(axis=1)
    return float(weights @ (expected - scores[np.arange(len(scores)), codes]))


def _slope_of_labels(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray, sharpness: float) -> float:
    """Return the derivative by ``sharpness`` of the summed log loss of labels, each by itself."""
    probabilities = np.exp(-np.logaddexp(0, -sharpness * scores))
    return float(weights @ (scores * (probabilities - labels)).sum(axis=1))
