"""Collector: steps environments by the actions of an agent, and keeps what happens as rollouts or in a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from dsinga.rl.episodes import Episode, EpisodeStatistics
from dsinga.rl.experience import Rollout, Sampled
from dsinga.rl.recurrence import HiddenStates
from dsinga.rl.vector_environment import EnvironmentStep, VectorEnvironment

# Of an agent with hidden states they take these as a second argument.
Sample = Callable[..., Sampled]
Values = Callable[..., np.ndarray]


class TransitionStore(Protocol):
    """Where transitions are kept, such as a replay memory."""

    def add(self, observations: np.ndarray, actions: np.ndarray, step: EnvironmentStep) -> None:
        """Keep a step of N environments: the observations before it, the actions, and what followed."""


class Collector:
    """Steps environments by the actions of a policy.

    Args:
        environments: the environments; they are reset.
        hidden: the hidden states of the agent, as ``agent.hidden_states(count)`` returns them; they are reset where an
            episode ends.

    Attributes:
        observations: (N, ...), those before the next step.
        statistics: returns and lengths of the episodes so far.
        ended: the episodes that ended in the last call of :meth:`rollout` or :meth:`fill`.
    """

    def __init__(self, environments: VectorEnvironment, hidden: HiddenStates | None = None):
        self.environments = environments
        self.statistics = EpisodeStatistics(environments.count)
        self.observations = environments.reset()
        self.ended: list[Episode] = []
        self.hidden = hidden

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
        endings: list[tuple[int, EnvironmentStep, HiddenStates | None]] = []
        hidden = None if self.hidden is None else self.hidden.copy()
        self.ended = []
        for t in range(steps):
            sampled = self._sample(sample)
            observations[t], actions[t] = self.observations, sampled.actions
            for name, array in sampled.extras.items():
                if t == 0:
                    extras[name] = np.empty((steps, *np.shape(array)), np.float32)
                extras[name][t] = array
            step = self._step(sampled.actions)
            rewards[t], terminated[t], truncated[t] = step.rewards, step.terminated, step.truncated
            if len(step.ended):
                endings.append((t, step, self._end_states(step)))
        bootstrap = np.zeros(shape, np.float32)
        if values is not None:
            _bootstrap(bootstrap, endings, values)
        last = self.observations.copy()
        return Rollout(observations, actions, rewards, terminated, truncated, bootstrap, last, extras, hidden or {})

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

    def _sample(self, sample: Sample) -> Sampled:
        return sample(self.observations) if self.hidden is None else sample(self.observations, self.hidden)

    def _end_states(self, step: EnvironmentStep) -> HiddenStates | None:
        """Reset the hidden states of the episodes that have ended; return those at their ends."""
        if self.hidden is None:
            return None
        states = self.hidden.of_rows(step.ended)
        self.hidden.reset(step.ended)
        return states

    def _step(self, actions: np.ndarray) -> EnvironmentStep:
        step = self.environments.step(actions)
        self.observations = step.observations
        self.ended += self.statistics.add(step)
        return step

    def state(self) -> dict[str, Any]:
        """Return what collecting goes on from: nested dicts of arrays and plain values."""
        state = {"environments": self.environments.state(), "statistics": self.statistics.state()}
        return state if self.hidden is None else {**state, "hidden": self.hidden.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state."""
        self.observations = self.environments.restore(state["environments"])
        self.statistics.restore(state["statistics"])
        if self.hidden is not None:
            self.hidden.update({name: np.array(array, np.float32) for name, array in state["hidden"].items()})


def _bootstrap(
    bootstrap: np.ndarray, endings: list[tuple[int, EnvironmentStep, HiddenStates | None]], values: Values
) -> None:
    """Write the values of the final observations of episodes that were cut off and did not end by themselves."""
    steps, environments, finals, states = [], [], [], []
    for t, step, hidden in endings:
        cut = step.truncated[step.ended] & ~step.terminated[step.ended]
        if cut.any():
            environments.append(step.ended[cut])
            steps.append(np.full(len(environments[-1]), t))
            finals.append(step.final_observations[cut])
            if hidden is not None:
                states.append(hidden.of_rows(cut))
    if finals:
        arguments: list[Any] = [np.concatenate(finals)]
        if states:
            arguments.append(HiddenStates({name: np.concatenate([s[name] for s in states]) for name in states[0]}))
        found = np.asarray(values(*arguments), np.float32)
        bootstrap[np.concatenate(steps), np.concatenate(environments)] = found.reshape(-1)
