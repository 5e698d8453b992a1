"""The activations of recurrent cells and their slopes, in place and without temporaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dsinga.ops.types import Array


class CellFunction(NamedTuple):
    """An activation: ``apply(x, out)`` computes y = f(x), ``slope(y, out)`` f'(x) from y; out and x may be one array.

    Arrays are contiguous.
    """

    apply: Callable[[Array, Array], Any]
    slope: Callable[[Array, Array], Any]


class CellFunctions(NamedTuple):
    """The functions of a cell, as in :class:`~dsinga.ops.types.CellActivations`."""

    gate: CellFunction
    candidate: CellFunction
    cell: CellFunction


def sigmoid(x: Array, out: Array) -> None:
    """Compute 1/(1 + exp(-x)); exp may overflow to infinity, whose inverse is 0."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


def sigmoid_slope(y: Array, out: Array) -> None:
    """Compute (1 - y)·y."""
    np.subtract(1, y, out=out)
    np.multiply(out, y, out=out)


def tanh_slope(y: Array, out: Array) -> None:
    """Compute 1 - y²."""
    np.multiply(y, y, out=out)
    np.subtract(1, out, out=out)


FUNCTIONS: dict[str, CellFunction] = {
    "sigmoid": CellFunction(sigmoid, sigmoid_slope),
    "tanh": CellFunction(lambda x, out: np.tanh(x, out=out), tanh_slope),
    "relu": CellFunction(lambda x, out: np.maximum(x, 0, out=out), lambda y, out: np.greater(y, 0, out=out)),
    "identity": CellFunction(lambda x, out: np.copyto(out, x), lambda y, out: out.fill(1)),
}
