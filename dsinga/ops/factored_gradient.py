"""Keeps gradients of a large weight as factors, so that rows are multiplied, added and applied in the caches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.ops.types import FLOAT32, Array, Shape

Multiply = Callable[[Array, Array, Array], Any]


class FactoredGradient:
    """The gradient yᵀ x of a weight (O, I), or the sum of two gradients with the same ``bounds``.

    Args:
        terms: y (n, O) and x (n, I), or two sums.
        bounds: between the rows of the weight that are computed at a time.
        multiply: writes the product of two matrices into a third.
    """

    dtype = FLOAT32

    def __init__(self, terms: tuple[Any, Any], shape: Shape, bounds: Sequence[int], multiply: Multiply):
        self.terms, self.shape, self.bounds, self.multiply = terms, shape, bounds, multiply

    def plus(self, other: FactoredGradient) -> FactoredGradient:
        """Return the sum of both, which has the bits of the computed gradients' sum."""
        return FactoredGradient((self, other), self.shape, self.bounds, self.multiply)

    def compute(self) -> np.ndarray:
        """Compute the gradient, some rows of the weight after another."""
        total, scratch = buffers.empty(self.shape), list[np.ndarray]()
        for start, stop in pairwise(self.bounds):
            self._compute(total[start:stop], start, stop, 0, scratch)
        return total

    def parts(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield parts of the flat gradient with their places; the next part overwrites the memory."""
        out, scratch = self._new_part(), list[np.ndarray]()
        for start, stop in pairwise(self.bounds):
            part = out[: stop - start]
            self._compute(part, start, stop, 0, scratch)
            yield slice(start * self.shape[1], stop * self.shape[1]), part.reshape(-1)

    def bound(self) -> float:
        """Return a bound of the gradient's absolute values: the product of the factors' Euclidean norms.

        It is NaN or infinite if a factor has such a number.
        """
        left, right = self.terms
        if isinstance(left, FactoredGradient):
            return left.bound() + right.bound()
        flat = (np.ravel(factor).astype(FLOAT32, copy=False) for factor in self.terms)
        with np.errstate(over="ignore", invalid="ignore"):
            return math.prod(float(np.sqrt(np.dot(numbers, numbers))) for numbers in flat)

    def _compute(self, out: np.ndarray, start: int, stop: int, depth: int, scratch: list[np.ndarray]) -> None:
        left, right = self.terms
        if not isinstance(left, FactoredGradient):
            self.multiply(left.T[start:stop], right, out)
            return
        if depth == len(scratch):
            scratch.append(self._new_part())
        left._compute(out, start, stop, depth + 1, scratch)
        second = scratch[depth][: stop - start]
        right._compute(second, start, stop, depth + 1, scratch)
        np.add(out, second, out=out)

    def _new_part(self) -> np.ndarray:
        return buffers.empty((max(stop - start for start, stop in pairwise(self.bounds)), self.shape[1]))


def to_dense(gradient: Any) -> Any:
    """Compute a gradient that is kept as factors; return others unchanged."""
    return gradient.compute() if isinstance(gradient, FactoredGradient) else gradient
