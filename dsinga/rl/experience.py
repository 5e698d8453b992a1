"""What an agent learns from: rollouts of successive steps, transitions, and returns of episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dsinga.rl.environments.vector_environment import EnvironmentStep


class Sampled(NamedTuple):
    """Actions (N, ...) that a policy has drawn for N observations.

    ``extras`` has arrays (N, ...) float32 by name, such as "value" and "log_probability".
    """

    actions: np.ndarray
    extras: Mapping[str, np.ndarray]


@dataclass
class Rollout:
    """T successive steps of N environments, in arrays with time as the first axis.

    Attributes:
        observations: (T, N, ...), before each step.
        actions: (T, N) int64, or (T, N, n) float32.
        terminated: (T, N) bool, whether the episode ended by itself in the step; no reward follows.
        truncated: (T, N) bool, whether it was cut off, as by a time limit; ``bootstrap`` replaces the missing rewards.
        bootstrap: (T, N) float32, the final observation's value if the step was cut off, else 0.
        last_observations: (N, ...), after the last step.
        extras: arrays (T, N, ...) float32 by name, as in :class:`Sampled`.
        hidden: hidden states (N, H) before the first step, by recurrent layer, if any.
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
        """The number of environment steps, T times N."""
        return self.rewards.size


@dataclass
class Transitions:
    """A batch of B environment steps in random order, drawn from a replay memory.

    Attributes:
        actions: (B,) int64, or (B, n) float32.
        rewards: (B,) float32; for n steps, the discounted sum.
        next_observations: (B, ...), after the step; the final one of a cut-off episode.
        weights: (B,) float32, a factor of each loss; 1 without priorities.
        discounts: (B,) float32, the factor of ``next_observations``' value: the discount to the power of the steps.
        targets: (B,) float32, the action values' targets, if already computed for errors.
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
        """Return the targets, stored or computed, and forget them: the next update makes them outdated."""
        targets, self.targets = self.targets, None
        return compute(self) if targets is None else targets


def join_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Join several actors' rollouts to one with all their environments, (T, sum of N, ...)."""
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
    """An ended episode: its return (sum of rewards), length in steps, and environment number."""

    total_reward: float
    length: int
    environment: int


class EpisodeStatistics:
    """Counts environment steps and episodes, and keeps the latest returns and lengths.

    Attributes:
        latest: the latest ended episodes, at most :data:`LATEST`.
    """

    def __init__(self, count: int):
        self.steps = 0
        self.episodes = 0
        self.latest: deque[Episode] = deque(maxlen=LATEST)
        self._rewards = np.zeros(count)
        self._passes = 0
        self._starts = np.zeros(count, np.int64)

    def begin(self) -> None:
        """Forget the sums of unfinished episodes, after all environments were reset."""
        self._rewards[:] = 0
        self._starts[:] = self._passes

    def add(self, step: EnvironmentStep) -> Sequence[Episode]:
        """Count a step of all environments; return the episodes that ended in it."""
        self._rewards += step.rewards
        self._passes += 1
        self.steps += len(self._rewards)
        return self._end(step.ended) if len(step.ended) else ()

    def extend(self, steps: int, episodes: Sequence[Episode]) -> None:
        """Add steps and ended episodes that other processes report."""
        self.steps += steps
        self.episodes += len(episodes)
        self.latest.extend(episodes)

    def summary(self) -> dict[str, float]:
        """Return the mean ``episode_return`` and ``episode_length`` of the latest episodes; {} without any."""
        if not self.latest:
            return {}
        rewards, lengths, _ = zip(*self.latest, strict=True)
        return {"episode_return": float(np.mean(rewards)), "episode_length": float(np.mean(lengths))}

    def state(self) -> dict[str, Any]:
        """Return steps, latest episodes and unfinished sums, for :meth:`restore`."""
        return {
            "steps": self.steps,
            "episodes": self.episodes,
            "latest": np.array(self.latest, np.float64).reshape(-1, 3),
            "rewards": self._rewards.copy(),
            "lengths": self._passes - self._starts,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state`."""
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
