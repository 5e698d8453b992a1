"""Experience of environments as arrays: rollouts of successive steps, and transitions of a replay memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Sampled(NamedTuple):
    """Actions (N, ...) for N observations, and what else is kept of the choice, such as "value" and "log_probability".

    ``extras`` has arrays (N, ...) float32 by name.
    """

    actions: np.ndarray
    extras: Mapping[str, np.ndarray]


@dataclass
class Rollout:
    """T successive steps of N environments, time first.

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
        """Steps of an environment, T times N."""
        return self.rewards.size


@dataclass
class Transitions:
    """B steps of environments in no order, from a replay memory.

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
        """Return the targets, by ``compute`` where there are none, and drop them: an update makes them old."""
        targets, self.targets = self.targets, None
        return compute(self) if targets is None else targets


def join_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Return rollouts of equal length side by side, (T, sum of N, ...)."""
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
