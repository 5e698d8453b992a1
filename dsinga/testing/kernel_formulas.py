"""The formulas of the kernels for the kernel contract: plain loops in float64 that share no code with the backends.

Gradients have no formula: :func:`assert_gradient` differentiates the forward formula numerically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def windows(
    x: np.ndarray, kernel: tuple, stride: tuple, pad: tuple, fill: float
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (row, column, window (B, C, kh, kw)) for every place where a window of the padded image fits."""
    (kh, kw), (sh, sw), (ph, pw) = kernel, stride, pad
    padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=fill)
    for row, top in enumerate(range(0, padded.shape[2] - kh + 1, sh)):
        for column, left in enumerate(range(0, padded.shape[3] - kw + 1, sw)):
            yield row, column, padded[:, :, top : top + kh, left : left + kw]


def by_window(x: np.ndarray, channels: int, places: list[tuple[int, int, np.ndarray]]) -> np.ndarray:
    """Gather (row, column, value (B, channels)) into (B, channels, H', W')."""
    height, width = places[-1][0] + 1, places[-1][1] + 1
    y = np.empty((x.shape[0], channels, height, width))
    for row, column, value in places:
        y[:, :, row, column] = value
    return y


def convolution(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, stride: tuple, pad: tuple) -> np.ndarray:
    """Return the cross-correlation, window by window."""
    bias = 0 if b is None else b
    places = [
        (row, column, np.einsum("bcij,fcij->bf", window, w) + bias)
        for row, column, window in windows(x, w.shape[2:], stride, pad, 0)
    ]
    return by_window(x, w.shape[0], places)


def max_pool(x: np.ndarray, kernel: tuple, stride: tuple, pad: tuple) -> np.ndarray:
    """Return the largest value of each window."""
    places = [(r, c, window.max(axis=(2, 3))) for r, c, window in windows(x, kernel, stride, pad, -np.inf)]
    return by_window(x, x.shape[1], places)


def avg_pool(x: np.ndarray, kernel: tuple, stride: tuple, pad: tuple) -> np.ndarray:
    """Return the mean of each window, with padding counted as zeros."""
    places = [(r, c, window.mean(axis=(2, 3))) for r, c, window in windows(x, kernel, stride, pad, 0)]
    return by_window(x, x.shape[1], places)


def lrn(x: np.ndarray, size: int, alpha: float, beta: float, k: float) -> np.ndarray:
    """Return each channel divided by the norm of its neighbours."""
    y = np.empty_like(x)
    for channel in range(x.shape[1]):
        near = x[:, max(channel - size // 2, 0) : channel + size // 2 + 1]
        y[:, channel] = x[:, channel] * (k + alpha / size * (near**2).sum(axis=1)) ** -beta
    return y


def layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, epsilon: float) -> np.ndarray:
    """Return each row brought to mean 0 and variance 1, then scaled and shifted."""
    rows = [scale * (row - row.mean()) / np.sqrt(row.var() + epsilon) + shift for row in x]
    return np.array(rows).reshape(x.shape)


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the exponentials of each row, divided by their sum."""
    e = np.exp(x - x.max(axis=1)[:, None])
    return e / e.sum(axis=1)[:, None]


def assert_close(actual: Any, expected: np.ndarray, dtype: Any, scale: float | None = None) -> None:
    """Assert that shape, dtype and values are as expected.

    A sum of n products of float32 (n <= 500 here) is within n·6e-8 = 3e-5 of its largest term, in whatever order it is
    taken, so ``scale``, the largest magnitude that went into a sum (by default, that came out), bounds the error.
    """
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    if expected.size:
        rtol, eps = (1e-4, 3e-5) if dtype == np.float32 else (1e-9, 1e-11)
        largest = np.abs(expected).max() if scale is None else scale
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=eps * max(largest, 1e-3))


def assert_gradient(
    loss: Callable[[np.ndarray], float], at: np.ndarray, gradient: Any, dtype: Any, step: float = 1e-5
) -> None:
    """Assert that ``gradient`` has the shape of ``at`` and is the derivative of ``loss`` in several directions.

    Directions are of norm 1. The difference quotient is exact to about step² = 1e-10, so the tolerances of float32
    and float64 are relative to the norm of the gradient.
    """
    assert gradient.dtype == dtype
    assert gradient.shape == at.shape
    if not at.size:
        return
    rng = np.random.default_rng(at.size)
    tolerance = (1e-4 if dtype == np.float32 else 1e-6) * (np.linalg.norm(gradient) + 1e-3)
    for _ in range(4):
        direction = rng.standard_normal(at.shape)
        direction /= np.linalg.norm(direction)
        slope = (loss(at + step * direction) - loss(at - step * direction)) / (2 * step)
        assert abs(slope - (gradient * direction).sum()) <= tolerance
