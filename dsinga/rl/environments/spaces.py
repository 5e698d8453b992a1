"""Spaces: what observations and actions of an environment are, without depending on Gymnasium."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.errors import UserError


@dataclass(frozen=True)
class DiscreteSpace:
    """Actions, or observations, that are integers 0 to ``n`` - 1."""

    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value: ()."""
        return ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of values: int64."""
        return np.dtype(np.int64)

    def __str__(self) -> str:
        return f"{self.n} discrete values"


@dataclass(frozen=True, eq=False)
class BoxSpace:
    """Arrays of one shape between bounds.

    Attributes:
        low: smallest value of each element, an array of ``shape``; -inf where there is no bound.
        high: largest value of each element.
        dtype: uint8 for images and bits, else float32.
    """

    low: np.ndarray
    high: np.ndarray
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return self.low.shape

    def __str__(self) -> str:
        return f"{self.dtype} arrays of shape {self.shape}"


Space = DiscreteSpace | BoxSpace


class Spaces(NamedTuple):
    """The spaces of an environment."""

    observation: Space
    action: Space


def box(shape: tuple[int, ...], low: float = -np.inf, high: float = np.inf, dtype: Any = np.float32) -> BoxSpace:
    """Return a space of arrays with the same bounds for each element."""
    return BoxSpace(np.full(shape, low, dtype), np.full(shape, high, dtype), np.dtype(dtype))


def space_of(space: Any, what: str) -> Space:
    """Return the space here for a space of Gymnasium; one from here is returned unchanged.

    ``what`` is "observation" or "action".

    Raises UserError for a kind of space that has no counterpart, such as Dict, or actions in a box of integers.
    """
    if isinstance(space, DiscreteSpace | BoxSpace):
        return space
    kind = type(space).__name__
    if kind == "Discrete" and not int(space.start):
        return DiscreteSpace(int(space.n))
    is_action = what == "action"
    if kind == "Box" and not (is_action and space.dtype.kind != "f"):
        dtype = np.dtype(np.uint8 if space.dtype in (np.uint8, np.bool_) else np.float32)
        return BoxSpace(np.asarray(space.low, dtype), np.asarray(space.high, dtype), dtype)
    boxes, wrapper = ("Box of floats", "TransformAction") if is_action else ("Box", "FlattenObservation")
    raise UserError(
        f"the environment has the {what} space {space}; use {boxes}, or Discrete that starts at 0: wrap the "
        f"environment by gymnasium.wrappers.{wrapper}"
    )
