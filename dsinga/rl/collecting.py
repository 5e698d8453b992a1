"""Steps environments with an agent's actions, and collects the steps as rollouts or in a replay memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from dsinga.rl.environments.spaces import Spaces
from dsinga.rl.environments.vector_environment import EnvironmentStep, VectorEnvironment
from dsinga.rl.experience import Episode, EpisodeStatistics, Rollout, Sampled
from dsinga.rl.recurrence import HiddenStates

# For an agent with hidden states, these are the second argument.
Sample = Callable[..., Sampled]
Values = Callable[..., np.ndarray]


class TransitionStore(Protocol):
    """Interface of an object that stores the steps of environments, such as a replay memory."""

    def add(self, observations: np.ndarray, actions: np.ndarray, step: EnvironmentStep) -> None:
        """Store a step of N environments: observations before the step, actions, and results."""


class Collector:
    """Steps environments with a policy's actions, to produce rollouts or fill a replay memory.

    Args:
        hidden: the agent's hidden states, ``agent.hidden_states(count)``; they are reset at an episode's end.

    Attributes:
        ended: the episodes that ended in the last call of :meth:`rollout` or :meth:`fill`.
    """

    def __init__(self, environments: VectorEnvironment, hidden: HiddenStates | None = None):
        self.environments = environments
        self.statistics = EpisodeStatistics(environments.count)
        self.observations = environments.reset()
        self.ended: list[Episode] = []
        self.hidden = hidden

    def rollout(self, sample: Sample, steps: int, values: Values | None = None) -> Rollout:
        """Step each environment ``steps`` times; return the steps as a rollout to learn from.

        Args:
            sample: returns actions for observations (N, ...), like ``agent.sample``.
            steps: T.
            values: returns the values (K,) of observations (K, ...), for rewards after a cut-off episode.

        Raises RunError if an environment fails.
        """
        recorder = RolloutRecorder(self.environments.spaces, steps, self.environments.count)
        hidden = None if self.hidden is None else self.hidden.copy()
        self.ended = []
        for _ in range(steps):
            sampled = sample(self.observations) if self.hidden is None else sample(self.observations, self.hidden)
            recorder.begin(self.observations, sampled)
            step = self._step(sampled.actions)
            recorder.add(step, self._end_states(step) if len(step.ended) else None)
        return recorder.finish(self.observations, values, hidden)

    def fill(self, memory: TransitionStore, sample: Sample, steps: int) -> None:
        """Step each environment ``steps`` times, and store the steps in a replay memory."""
        self.ended = []
        for _ in range(steps):
            observations, actions = self.observations, sample(self.observations).actions
            memory.add(observations, actions, self._step(actions))

    def step(self, actions: np.ndarray) -> EnvironmentStep:
        """Step each environment with actions that another process has chosen; count the episodes that end."""
        self.ended = []
        return self._step(actions)

    def _end_states(self, step: EnvironmentStep) -> HiddenStates | None:
        """Return the last hidden states of ended episodes, and reset them."""
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
        """Return environments, statistics and hidden states, to continue bit for bit."""
        state = {"environments": self.environments.state(), "statistics": self.statistics.state()}
        return state if self.hidden is None else {**state, "hidden": self.hidden.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state`."""
        self.observations = self.environments.restore(state["environments"])
        self.statistics.restore(state["statistics"])
        if self.hidden is not None:
            self.hidden.update({name: np.array(array, np.float32) for name, array in state["hidden"].items()})


class RolloutRecorder:
    """Builds a rollout of ``steps`` steps of ``count`` environments, step by step."""

    def __init__(self, spaces: Spaces, steps: int, count: int):
        shape = (steps, count)
        self._observations = np.empty((*shape, *spaces.observation.shape), spaces.observation.dtype)
        self._actions = np.empty((*shape, *spaces.action.shape), spaces.action.dtype)
        self._rewards = np.empty(shape, np.float32)
        self._terminated, self._truncated = np.empty(shape, np.bool_), np.empty(shape, np.bool_)
        self._extras: dict[str, np.ndarray] = {}
        self._endings: list[tuple[int, EnvironmentStep, HiddenStates | None]] = []
        self._recorded = 0

    @property
    def is_complete(self) -> bool:
        """Whether all steps of the rollout are recorded."""
        return self._recorded == len(self._rewards)

    def begin(self, observations: np.ndarray, sampled: Sampled) -> None:
        """Record the observations (N, ...) before the next step, and the actions chosen for them."""
        t = self._recorded
        self._observations[t], self._actions[t] = observations, sampled.actions
        for name, array in sampled.extras.items():
            if t == 0:
                self._extras[name] = np.empty((len(self._rewards), *np.shape(array)), np.float32)
            self._extras[name][t] = array

    def add(self, step: EnvironmentStep, hidden: HiddenStates | None = None) -> None:
        """Record the result of a step; ``hidden`` has the hidden states of ended episodes."""
        t = self._recorded
        self._rewards[t], self._terminated[t], self._truncated[t] = step.rewards, step.terminated, step.truncated
        if len(step.ended):
            self._endings.append((t, step, hidden))
        self._recorded += 1

    def finish(self, last: np.ndarray, values: Values | None, hidden: HiddenStates | None = None) -> Rollout:
        """Return the rollout; ``last`` are the observations after it, ``hidden`` the states before it."""
        bootstrap = np.zeros_like(self._rewards)
        if values is not None:
            _bootstrap(bootstrap, self._endings, values)
        return Rollout(
            self._observations, self._actions, self._rewards, self._terminated, self._truncated, bootstrap, last.copy(),
            self._extras, hidden or {},
        )  # fmt: skip


def _bootstrap(
    bootstrap: np.ndarray, endings: list[tuple[int, EnvironmentStep, HiddenStates | None]], values: Values
) -> None:
    """Write the values of cut-off episodes' final observations, in place of later rewards."""
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
