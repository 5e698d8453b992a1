"""Recurrent cells for the kernel contract: one row and one step at a time, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dsinga.ops.types import CELL_ACTIVATIONS, CellActivations


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
    """Return the state of one row after one step."""
    gate, candidate, output = (FUNCTIONS[name] for name in activations)
    if cell == "rnn":
        w_x, w_h, b = (*params, 0.0)[:3]
        return np.tanh(w_x @ x + w_h @ state + b)
    if cell == "gru":
        z_x, r_x, c_x, z_h, r_h, c_h, z_b, r_b, c_b = (*params, 0.0, 0.0, 0.0)[:9]
        z, r = gate(z_x @ x + z_h @ state + z_b), gate(r_x @ x + r_h @ state + r_b)
        return z * state + (1 - z) * candidate(c_x @ x + r * (c_h @ state) + c_b)
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
    """Return the outputs and the last states of all rows."""
    size = params[1].shape[1] if cell != "gru" else params[3].shape[1]
    y, last = np.zeros((*x.shape[:2], size)), np.array(state)
    for row, length in enumerate(lengths):
        for time in reversed(range(length)) if reverse else range(length):
            last[row] = cell_step(cell, x[row, time], last[row], params, activations)
            y[row, time] = last[row, :size]
    return y, last


def param_shapes(cell: str, inputs: int, size: int, bias: bool) -> list[tuple[int, ...]]:
    """Return the shapes of the params of a cell, in their order."""
    count, gates = {"rnn": (1, 1), "gru": (3, 1), "lstm": (1, 4)}[cell]
    shapes: list[tuple[int, ...]] = [*[(gates * size, inputs)] * count, *[(gates * size, size)] * count]
    return [*shapes, *[(gates * size,)] * count] if bias else shapes
