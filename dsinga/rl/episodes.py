"""Returns and lengths of the episodes of environments, and their means over the latest ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.rl.environments.vector_environment import EnvironmentStep

LATEST = 100  # episodes over which means are taken


class Episode(NamedTuple):
    """An episode that has ended: the sum of its rewards, its length in steps, and its environment's number."""

    total_reward: float
    length: int
    environment: int


class EpisodeStatistics:
    """Adds up rewards and lengths of the episodes of N environments.

    Attributes:
        steps: the steps of all environments so far.
        episodes: how many episodes have ended.
        latest: the latest episodes that have ended, at most :data:`LATEST`.
    """

    def __init__(self, count: int):
        self.steps = 0
        self.episodes = 0
        self.latest: deque[Episode] = deque(maxlen=LATEST)
        self._rewards = np.zeros(count)
        self._passes = 0
        self._starts = np.zeros(count, np.int64)

    def begin(self) -> None:
        """Forget the episodes that have not ended, as after a reset of all environments."""
        self._rewards[:] = 0
        self._starts[:] = self._passes

    def add(self, step: EnvironmentStep) -> Sequence[Episode]:
        """Count a step of all environments; return the episodes that ended in it."""
        self._rewards += step.rewards
        self._passes += 1
        self.steps += len(self._rewards)
        return self._end(step.ended) if len(step.ended) else ()

    def extend(self, steps: int, episodes: Sequence[Episode]) -> None:
        """Count steps that others have taken, and episodes that ended in them."""
        self.steps += steps
        self.episodes += len(episodes)
        self.latest.extend(episodes)

    def summary(self) -> dict[str, float]:
        """Return the means of ``episode_return`` and ``episode_length`` over the latest episodes; {} without any."""
        if not self.latest:
            return {}
        rewards, lengths, _ = zip(*self.latest, strict=True)
        return {"episode_return": float(np.mean(rewards)), "episode_length": float(np.mean(lengths))}

    def state(self) -> dict[str, Any]:
        """Return what counting goes on from: a dict of arrays and plain values."""
        return {
            "steps": self.steps,
            "episodes": self.episodes,
            "latest": np.array(self.latest, np.float64).reshape(-1, 3),
            "rewards": self._rewards.copy(),
            "lengths": self._passes - self._starts,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state."""
        self.steps, self.episodes = int(state["steps"]), int(state["episodes"])
        self.latest.clear()
        self.latest.extend(Episode(float(total), int(length), int(i)) for total, length, i in state["latest"])
        self._rewards = np.array(state["rewards"], np.float64)
        self._passes = 0
        self._starts = -np.array(state["lengths"], np.int64)

    def _end(self, ended: np.ndarray) -> list[Episode]:
        totals, lengths = self._rewards[ended].tolist(), (self._passes - self._starts[ended]).tolist()
        episodes = list(map(Episode, totals, lengths, ended.tolist()))
        self._rewards[ended] = 0
        self._starts[ended] = self._passes
        self.episodes += len(episodes)
        self.latest.extend(episodes)
        return episodes
