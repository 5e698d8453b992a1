"""Makes a classifier's probabilities realistic: finds a temperature, a divisor of its scores, on held-out records.

Guo, Pleiss, Sun and Weinberger, On Calibration of Modern Neural Networks (2017).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Expect = Callable[[np.ndarray, float], np.ndarray]

COLDEST, HOTTEST = 1 / 16, 16.0  # the range of temperatures
HALVINGS = 60  # halvings of the bracket of the log temperature: exact to a float64


def find_temperature(scores: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the divisor of scores (n, k) that gives the most realistic probabilities, with the least log loss.

    Targets are class codes (n,), or zeros and ones (n, k) of independent labels. A temperature below 1 makes scores
    more confident. About one mistake is added to the targets, because few records without a mistake do not show how
    confident others may be (Platt, 1999). The loss is never worse than without a divisor.
    """
    scores = np.asarray(scores, np.float64)
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    if targets.ndim == 1 and scores.shape[1] == 1:  # a single class is certain
        return 1.0
    mistakes = 1 / (len(scores) + 2)
    if targets.ndim == 2:
        expect, shares = _expected_of_labels, targets * (1 - 2 * mistakes) + mistakes
        given, doubted = (scores * targets).sum(axis=1), (scores * shares).sum(axis=1)
    else:
        expect, given = _expected_of_classes, scores[np.arange(len(scores)), targets]
        others = (scores.sum(axis=1) - given) / (scores.shape[1] - 1)
        doubted = (1 - mistakes) * given + mistakes * others
    best = _solve(scores, given, weights, expect)
    return best if best >= 1 else min(1.0, max(best, _solve(scores, doubted, weights, expect)))


def _solve(scores: np.ndarray, given: np.ndarray, weights: np.ndarray, expect: Expect) -> float:
    """Return the temperature with the least log loss, where the mean expected score equals the mean of ``given`` (n,).

    The log loss is convex in 1 / temperature, so the derivative's sign says on which side the best temperature lies.
    """
    low, high = np.log(COLDEST), np.log(HOTTEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if weights @ (expect(scores, float(np.exp(-middle))) - given) > 0:  # a higher temperature is better
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


def _expected_of_classes(scores: np.ndarray, sharpness: float) -> np.ndarray:
    """Return each record's expected score (n,) under the class probabilities at 1 / temperature."""
    powers = sharpness * (scores - scores.max(axis=1, keepdims=True))
    np.exp(powers, out=powers)
    expected: np.ndarray = (powers * scores).sum(axis=1) / powers.sum(axis=1)
    return expected


def _expected_of_labels(scores: np.ndarray, sharpness: float) -> np.ndarray:
    """Return each record's expected sum (n,) of scores under the label probabilities at 1 / temperature."""
    probabilities = np.exp(-np.logaddexp(0, -sharpness * scores))
    expected: np.ndarray = (scores * probabilities).sum(axis=1)
    return expected
