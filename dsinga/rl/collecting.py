"""Collector: steps environments by the actions of an agent, and keeps what happens as rollouts or in a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from dsinga.rl.episodes import Episode, EpisodeStatistics
from dsinga.rl.experience import Rollout, Sampled
from dsinga.rl.vector_environment import EnvironmentStep, VectorEnvironment

Sample = Callable[[np.ndarray], Sampled]
Values = Callable[[np.ndarray], np.ndarray]


class TransitionStore(Protocol):
    """Where transitions are kept, such as a replay memory."""

    def add(self, observations: np.ndarray, actions: np.ndarray, step: EnvironmentStep) -> None:
        """Keep a step of N environments: the observations before it, the actions, and what followed."""


class Collector:
    """Steps environments by the actions of a policy.

    Args:
        environments: the environments; they are reset.

    Attributes:
        observations: (N, ...), those before the next step.
        statistics: returns and lengths of the episodes so far.
        ended: the episodes that ended in the last call of :meth:`rollout` or :meth:`fill`.
    """

    def __init__(self, environments: VectorEnvironment):
        self.environments = environments
        self.statistics = EpisodeStatistics(environments.count)
        self.observations = environments.reset()
        self.ended: list[Episode] = []

    def rollout(self, sample: Sample, steps: int, values: Values | None = None) -> Rollout:
        """Return a rollout of ``steps`` steps of each environment.

        Args:
            sample: returns actions for observations (N, ...), as ``agent.sample`` does.
            steps: T.
            values: returns the values (K,) of observations (K, ...); they stand for the rewards after episodes that
                were cut off, without it 0.

        Raises RunError where an environment fails.
        """
        environments, spaces = self.environments, self.environments.spaces
        shape = (steps, environments.count)
        observations = np.empty((*shape, *spaces.observation.shape), spaces.observation.dtype)
        actions = np.empty((*shape, *spaces.action.shape), spaces.action.dtype)
        rewards = np.empty(shape, np.float32)
        terminated, truncated = np.empty(shape, np.bool_), np.empty(shape, np.bool_)
        extras: dict[str, np.ndarray] = {}
        endings: list[tuple[int, EnvironmentStep]] = []
        self.ended = []
        for t in range(steps):
            sampled = sample(self.observations)
            observations[t], actions[t] = self.observations, sampled.actions
            for name, array in sampled.extras.items():
                if t == 0:
                    extras[name] = np.empty((steps, *np.shape(array)), np.float32)
                extras[name][t] = array
            step = self._step(sampled.actions)
            rewards[t], terminated[t], truncated[t] = step.rewards, step.terminated, step.truncated
            if len(step.ended):
                endings.append((t, step))
        bootstrap = np.zeros(shape, np.float32)
        if values is not None:
            _bootstrap(bootstrap, endings, values)
        return Rollout(
            observations, actions, rewards, terminated, truncated, bootstrap, self.observations.copy(), extras
        )

    def fill(self, memory: TransitionStore, sample: Sample, steps: int) -> None:
        """Take ``steps`` steps of each environment and put them into a memory. Raises RunError as :meth:`rollout`."""
        self.ended = []
        for _ in range(steps):
            observations, actions = self.observations, sample(self.observations).actions
            memory.add(observations, actions, self._step(actions))

    def step(self, actions: np.ndarray) -> EnvironmentStep:
        """Take a step of each environment by actions chosen elsewhere. Raises RunError as :meth:`rollout`."""
        self.ended = []
        return self._step(actions)

    def _step(self, actions: np.ndarray) -> EnvironmentStep:
        step = self.environments.step(actions)
        self.observations = step.observations
        self.ended += self.statistics.add(step)
        return step

    def state(self) -> dict[str, Any]:
        """Return what collecting goes on from: nested dicts of arrays and plain values."""
        return {"environments": self.environments.state(), "statistics": self.statistics.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state."""
        self.observations = self.environments.restore(state["environments"])
        self.statistics.restore(state["statistics"])


def _bootstrap(bootstrap: np.ndarray, endings: list[tuple[int, EnvironmentStep]], values: Values) -> None:
    """Write the values of the final observations of episodes that were cut off and did not end by themselves."""
    steps, environments, finals = [], [], []
    for t, step in endings:
        cut = step.truncated[step.ended] & ~step.terminated[step.ended]
        if cut.any():
            environments.append(step.ended[cut])
            steps.append(np.full(len(environments[-1]), t))
            finals.append(step.final_observations[cut])
    if finals:
        found = np.asarray(values(np.concatenate(finals)), np.float32)
        bootstrap[np.concatenate(steps), np.concatenate(environments)] = found.reshape(-1)
