"""The interface of several environments that are stepped together."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.errors import RunError, UserError
from dsinga.rl.environments.spaces import BoxSpace, Spaces

_MASK = 2**64 - 1


class EnvironmentStep(NamedTuple):
    """What N environments return for one step: observations, rewards, and which episodes ended.

    An environment is reset in the step that ends its episode: ``observations`` then has the next episode's first
    observation.

    Attributes:
        observations: (N, ...), in the observation space's dtype.
        rewards: (N,) float32.
        terminated: (N,) bool, whether the episode ended by itself.
        truncated: (N,) bool, whether it was cut off, as by a time limit.
        ended: (K,) int64, the environments with ended episodes, in ascending order.
        final_observations: (K, ...), these episodes' last observations.
    """

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    ended: np.ndarray
    final_observations: np.ndarray

    def next_observations(self) -> np.ndarray:
        """Return the observations (N, ...) that the actions led to, final ones for ended episodes."""
        if not len(self.ended):
            return self.observations
        observations = self.observations.copy()
        observations[self.ended] = self.final_observations
        return observations


class VectorEnvironment(ABC):
    """Base class of N environments of one kind that are stepped together.

    Attributes:
        steps: number of steps since the last reset or restore.
    """

    def __init__(self, name: str, spaces: Spaces, count: int, seed: int = 0, first: int = 0):
        self.name, self.spaces, self.count, self.seed, self.first = name, spaces, count, seed, first
        self.steps = 0
        self._action_shape = (count, *spaces.action.shape)
        self._bounds = (spaces.action.low, spaces.action.high) if isinstance(spaces.action, BoxSpace) else None

    @abstractmethod
    def reset(self) -> np.ndarray:
        """Begin an episode in each environment and return the observations (N, ...)."""

    @abstractmethod
    def _step(self, actions: np.ndarray) -> EnvironmentStep:
        """Step all environments with actions that are checked already."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return all that :meth:`restore` needs: nested dicts of arrays and plain values."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> np.ndarray:
        """Continue the episodes of a state, or begin new ones; return the observations (N, ...)."""

    def close(self) -> None:  # noqa: B027, by default there is nothing to free
        """Free the resources of the environments, such as windows."""

    def step(self, actions: np.ndarray) -> EnvironmentStep:
        """Step each environment with its action: (N,) integers, or (N, n) numbers, clipped to bounds.

        Raises RunError if an environment fails or gives a reward that is not finite.
        """
        if actions.shape != self._action_shape:
            raise UserError(
                f"{self.count} environments {self.name!r} take actions of shape {self._action_shape}; these have "
                f"{actions.shape}"
            )
        step = self._step(actions if self._bounds is None else np.clip(actions, *self._bounds))
        self.steps += 1
        if not math.isfinite(np.add.reduce(step.rewards)):
            self._check_rewards(step.rewards)
        return step

    def _check_rewards(self, rewards: np.ndarray) -> None:
        for number in np.flatnonzero(~np.isfinite(rewards)):
            raise RunError(
                f"environment {self.first + number} of {self.name!r} gave the reward {rewards[number]} in step "
                f"{self.steps} since all were reset; rewards must be finite numbers"
            )

    def __repr__(self) -> str:
        return f"<{self.count} environments {self.name!r}>"


def episode_seed(seed: int, environment: int, episode: int) -> int:
    """Return the seed for an environment's reset in an episode, less than 2**31."""
    key = seed & _MASK
    for number in (environment, episode):
        key = (key + 0x9E3779B97F4A7C15 * (number + 1)) & _MASK
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
        key ^= key >> 31
    return key >> 33
