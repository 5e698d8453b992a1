"""The spaces of observations and actions, and actions drawn from a net's outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.errors import UserError


@dataclass(frozen=True)
class DiscreteSpace:
    """A space of integers 0 to ``n`` - 1, such as discrete actions."""

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
    """A space of arrays of one shape, with bounds for each element.

    Attributes:
        low: smallest value of each element, an array of ``shape``; -inf for no bound.
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
    """The observation space and the action space of an environment."""

    observation: Space
    action: Space


def box(shape: tuple[int, ...], low: float = -np.inf, high: float = np.inf, dtype: Any = np.float32) -> BoxSpace:
    """Return a space of arrays of one shape, with the same bounds for each element."""
    return BoxSpace(np.full(shape, low, dtype), np.full(shape, high, dtype), np.dtype(dtype))


def space_of(space: Any, what: str) -> Space:
    """Convert Gymnasium's observation or action space to dsinga's; return dsinga's spaces unchanged."""
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


LOG_TWO_PI = math.log(2 * math.pi)


def sample_actions(policy: np.ndarray, space: Space, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw an action from each row of a policy's outputs; return actions and log probabilities (N,).

    ``policy`` is (N, K) logits of K discrete actions. For a box of n numbers it is (N, 2n): means, then logs of
    standard deviations.
    """
    if isinstance(space, DiscreteSpace):  # the largest of scores with Gumbel noise is distributed as their softmax
        noise = rng.random(policy.shape, np.float32)
        actions = np.argmax(policy - np.log(-np.log(noise + np.float32(1e-20)) + np.float32(1e-20)), axis=1)
        return actions, log_probabilities(policy, actions, space)
    means, logs = np.split(policy, 2, axis=1)
    actions = means + np.exp(logs) * rng.standard_normal(means.shape, np.float32)
    return actions.reshape(-1, *space.shape), log_probabilities(policy, actions, space)


def best_actions(policy: np.ndarray, space: Space) -> np.ndarray:
    """Return the most probable action for each row of a policy head's outputs."""
    if isinstance(space, DiscreteSpace):
        return np.argmax(policy, axis=1)
    return policy[:, : policy.shape[1] // 2].reshape(-1, *space.shape)


def log_probabilities(policy: np.ndarray, actions: np.ndarray, space: Space) -> np.ndarray:
    """Return the log probability (or density) of each action under a policy's outputs, (N,) float32."""
    if isinstance(space, DiscreteSpace):
        shifted = policy - policy.max(axis=1, keepdims=True)
        chosen = shifted[np.arange(len(actions)), actions]
        return chosen - np.log(np.exp(shifted).sum(axis=1))
    means, logs = np.split(policy, 2, axis=1)
    return -(0.5 * ((actions.reshape(means.shape) - means) / np.exp(logs)) ** 2 + logs + 0.5 * LOG_TWO_PI).sum(axis=1)


def policy_size(space: Space) -> int:
    """Return how many outputs a policy head needs for the actions of a space."""
    return space.n if isinstance(space, DiscreteSpace) else 2 * math.prod(space.shape)
