"""The arrays that hold experience of environments: episodes' returns, rollouts of successive steps, and transitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dsinga.rl.environments.vector_environment import EnvironmentStep


class Sampled(NamedTuple):
    """Sampled actions (N, ...) for N observations, with extras such as "value" and "log_probability".

    ``extras`` has arrays (N, ...) float32 by name.
    """

    actions: np.ndarray
    extras: Mapping[str, np.ndarray]


@dataclass
class Rollout:
    """T successive steps of N environments, in arrays whose first axis is time.

    Attributes:
        observations: (T, N, ...), those before each step.
        actions: (T, N) int64, or (T, N, n) float32.
        rewards: (T, N) float32.
        terminated: (T, N) bool, whether the episode ended by itself in the step; no reward comes after it.
        truncated: (T, N) bool, whether it was cut off, as by a time limit; then the value of the final observation
            stands for the rewards that would have come.
        bootstrap: (T, N) float32, the value of the final observation where the step was cut off, else 0.
        last_observations: (N, ...), those after the last step.
        extras: arrays (T, N, ...) float32 by name, as in :class:`Sampled`.
        hidden: the hidden states (N, H) before the first step, by recurrent layer; {} of an agent without.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    bootstrap: np.ndarray
    last_observations: np.ndarray
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    hidden: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """The number of steps of environments, T times N."""
        return self.rewards.size


@dataclass
class Transitions:
    """A batch of B transitions (steps of environments, in no order) from a replay memory.

    Attributes:
        observations: (B, ...).
        actions: (B,) int64, or (B, n) float32.
        rewards: (B,) float32; of n steps, the discounted sum of their rewards.
        next_observations: (B, ...), those after the step; of an episode that was cut off, the final one.
        terminated: (B,) bool.
        weights: (B,) float32, a factor of the loss of each; 1 unless the replay is prioritised.
        indices: (B,) int64, where the memory keeps them.
        discounts: (B,) float32, the factor of the value of ``next_observations``: the discount to the power of the
            steps in between.
        targets: (B,) float32, those of the values of the actions, where the algorithm has computed them for errors.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminated: np.ndarray
    weights: np.ndarray
    indices: np.ndarray
    discounts: np.ndarray
    targets: np.ndarray | None = None

    def take_targets(self, compute: Callable[[Transitions], np.ndarray]) -> np.ndarray:
        """Return the stored targets, or compute them by ``compute``, and drop them: an update makes them outdated."""
        targets, self.targets = self.targets, None
        return compute(self) if targets is None else targets


def join_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Return rollouts of equal length concatenated along the environments, (T, sum of N, ...)."""
    if len(rollouts) == 1:
        return rollouts[0]

    def join(name: str) -> np.ndarray:
        return np.concatenate([getattr(rollout, name) for rollout in rollouts], axis=1)

    names = ("observations", "actions", "rewards", "terminated", "truncated", "bootstrap")
    last = np.concatenate([rollout.last_observations for rollout in rollouts])
    extras = {
        name: np.concatenate([rollout.extras[name] for rollout in rollouts], axis=1) for name in rollouts[0].extras
    }
    hidden = {name: np.concatenate([rollout.hidden[name] for rollout in rollouts]) for name in rollouts[0].hidden}
    return Rollout(**{name: join(name) for name in names}, last_observations=last, extras=extras, hidden=hidden)


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
        """Drop the sums of episodes that have not ended, as after a reset of all environments."""
        self._rewards[:] = 0
        self._starts[:] = self._passes

    def add(self, step: EnvironmentStep) -> Sequence[Episode]:
        """Count a step of all environments; return the episodes that ended in it."""
        self._rewards += step.rewards
        self._passes += 1
        self.steps += len(self._rewards)
        return self._end(step.ended) if len(step.ended) else ()

    def extend(self, steps: int, episodes: Sequence[Episode]) -> None:
        """Add the number of steps, and the ended episodes, that other processes report."""
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
        """Return the state of counting: a dict of arrays and plain values."""
        return {
            "steps": self.steps,
            "episodes": self.episodes,
            "latest": np.array(self.latest, np.float64).reshape(-1, 3),
            "rewards": self._rewards.copy(),
            "lengths": self._passes - self._starts,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
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
