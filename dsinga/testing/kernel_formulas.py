"""The expected results of kernels: plain loops in float64 that share no code with the backends.

Gradients have no formula: :func:`assert_gradient` differentiates the forward formula numerically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dsinga.ops.types import CELL_ACTIVATIONS, CellActivations


def windows(
    x: np.ndarray, kernel: tuple, stride: tuple, pad: tuple, fill: float
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yield (place, window (B, C, kh, kw)) for every place (row, column) where a window fits the padded image."""
    padded = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in pad)), constant_values=fill)
    counts = [(size - k) // s + 1 for size, k, s in zip(padded.shape[2:], kernel, stride, strict=True)]
    for place in np.ndindex(*counts):
        corner = [at * s for at, s in zip(place, stride, strict=True)]
        inside: Any = (..., *(slice(first, first + k) for first, k in zip(corner, kernel, strict=True)))
        yield place, padded[inside]


def by_window(x: np.ndarray, channels: int, places: list[tuple[tuple[int, ...], np.ndarray]]) -> np.ndarray:
    """Assemble an image (B, channels, H', W') from values (B, channels) by place."""
    y = np.empty((x.shape[0], channels, *(last + 1 for last in places[-1][0])))
    for place, value in places:
        at: Any = (..., *place)
        y[at] = value
    return y


def convolution(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, stride: tuple, pad: tuple) -> np.ndarray:
    """Compute a cross-correlation, window by window."""
    bias = 0 if b is None else b
    axes = range(1, w.ndim)
    places = [
        (place, np.tensordot(window, w, (axes, axes)) + bias)
        for place, window in windows(x, w.shape[2:], stride, pad, 0)
    ]
    return by_window(x, w.shape[0], places)


def max_pool(x: np.ndarray, kernel: tuple, stride: tuple, pad: tuple) -> np.ndarray:
    """Return the largest value of each window."""
    places = [(at, window.max(axis=tuple(range(2, x.ndim)))) for at, window in windows(x, kernel, stride, pad, -np.inf)]
    return by_window(x, x.shape[1], places)


def avg_pool(x: np.ndarray, kernel: tuple, stride: tuple, pad: tuple) -> np.ndarray:
    """Return the mean of each window, with padding counted as zeros."""
    places = [(at, window.mean(axis=tuple(range(2, x.ndim)))) for at, window in windows(x, kernel, stride, pad, 0)]
    return by_window(x, x.shape[1], places)


def lrn(x: np.ndarray, size: int, alpha: float, beta: float, k: float) -> np.ndarray:
    """Divide each channel by the norm of its neighbours (local response normalisation)."""
    y = np.empty_like(x)
    for channel in range(x.shape[1]):
        near = x[:, max(channel - size // 2, 0) : channel + size // 2 + 1]
        y[:, channel] = x[:, channel] * (k + alpha / size * (near**2).sum(axis=1)) ** -beta
    return y


def layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, epsilon: float) -> np.ndarray:
    """Scale each row to mean 0 and variance 1, then multiply by ``scale`` and shift."""
    rows = [scale * (row - row.mean()) / np.sqrt(row.var() + epsilon) + shift for row in x]
    return np.array(rows).reshape(x.shape)


def rms_norm(x: np.ndarray, scale: np.ndarray, epsilon: float) -> np.ndarray:
    """Divide each row by the root of its mean square, then multiply by ``scale``."""
    rows = [scale * row / np.sqrt((row**2).mean() + epsilon) for row in x]
    return np.array(rows).reshape(x.shape)


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the exponentials of each row, divided by their sum."""
    e = np.exp(x - x.max(axis=1)[:, None])
    return e / e.sum(axis=1)[:, None]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "identity": np.array,
}


def cell_step(
    cell: str,
    x: np.ndarray,
    state: np.ndarray,
    params: Sequence[np.ndarray],
    activations: CellActivations = CELL_ACTIVATIONS,
) -> np.ndarray:
    """Compute the state of a recurrent cell after one step, for one row."""
    gate, candidate, output = (FUNCTIONS[name] for name in activations)
    if cell == "rnn":
        w_x, w_h, b = (*params, 0.0)[:3]
        return np.tanh(w_x @ x + w_h @ state + b)
    if cell == "gru":
        z_x, r_x, c_x, z_h, r_h, c_h, z_b, r_b, c_b, s_b = (*params, 0.0, 0.0, 0.0, 0.0)[:10]
        z, r = gate(z_x @ x + z_h @ state + z_b), gate(r_x @ x + r_h @ state + r_b)
        return z * state + (1 - z) * candidate(c_x @ x + r * (c_h @ state + s_b) + c_b)
    w_x, w_h, b = (*params, 0.0)[:3]
    h, c = np.split(state, 2)
    i, f, g, o = np.split(w_x @ x + w_h @ h + b, 4)
    c = gate(f) * c + gate(i) * candidate(g)
    return np.concatenate([gate(o) * output(c), c])


def recurrent(
    cell: str,
    x: np.ndarray,
    params: Sequence[np.ndarray],
    state: np.ndarray,
    lengths: Sequence[int],
    reverse: bool,
    activations: CellActivations = CELL_ACTIVATIONS,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the outputs and last states of a recurrent cell for all rows."""
    size = params[1].shape[1] if cell != "gru" else params[3].shape[1]
    y, last = np.zeros((*x.shape[:2], size)), np.array(state)
    for row, length in enumerate(lengths):
        for time in reversed(range(length)) if reverse else range(length):
            last[row] = cell_step(cell, x[row, time], last[row], params, activations)
            y[row, time] = last[row, :size]
    return y, last


def param_shapes(cell: str, inputs: int, size: int, bias: bool, reset_bias: bool = False) -> list[tuple[int, ...]]:
    """Return the shapes of a recurrent cell's params, in order; ``reset_bias`` is a GRU's fourth bias."""
    count, gates = {"rnn": (1, 1), "gru": (3, 1), "lstm": (1, 4)}[cell]
    shapes: list[tuple[int, ...]] = [*[(gates * size, inputs)] * count, *[(gates * size, size)] * count]
    more = 1 if cell == "gru" and reset_bias else 0
    return [*shapes, *[(gates * size,)] * (count + more)] if bias else shapes


def assert_close(actual: Any, expected: np.ndarray, dtype: Any, scale: float | None = None) -> None:
    """Assert that shape, dtype and values are as expected, to rounding.

    ``scale``, the largest magnitude among a sum's terms (by default, among its results), bounds the error. In float32,
    a sum of n products (n <= 500 here) is within n·6e-8 = 3e-5 of its largest term, in any order.
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
    """Assert that ``gradient`` is the derivative of ``loss``, compared in several random directions.

    The difference quotient is exact to about step² = 1e-10, so tolerances are relative to the gradient's norm.
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
