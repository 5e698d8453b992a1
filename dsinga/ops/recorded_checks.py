"""Checks that a replay makes, because numbers decided what the recorded pass did."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Deviated(Exception):
    """Error: a batch's numbers would make Python branch unlike the recorded pass."""


class Check:
    """Checks that a number decides a branch in Python as it did in the recording."""

    def __init__(self, array: np.ndarray, kind: Callable[[Any], Any]):
        self.array, self._kind, self.decided = array, kind, kind(array)
        self.expected = array.copy()

    def __call__(self) -> None:
        """Raise Deviated if another number would decide differently."""
        if self._kind(self.array) != self.decided:
            raise Deviated

    @property
    def is_of_bytes(self) -> bool:
        """Whether other bytes of the number always decide differently."""
        return self.array.dtype == bool or self._kind is operator.index


class FiniteCheck:
    """Checks that all numbers of vectors are finite, as most sums of their squares show."""

    def __init__(self, vectors: Sequence[np.ndarray]):
        self.vectors = vectors

    def __call__(self) -> None:
        """Raise Deviated unless all numbers are finite."""
        for vector in self.vectors:
            if not (math.isfinite(vector.dot(vector)) or np.isfinite(vector).all()):
                raise Deviated
