"""The loops in which an agent learns in this process: from rollouts, a replay memory, or evolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dsinga.base.arrays import ParamArrays
from dsinga.rl.agent import Agent
from dsinga.rl.algorithms.es import ES
from dsinga.rl.collecting import Collector
from dsinga.rl.evaluation import check_length
from dsinga.rl.experience import EpisodeStatistics
from dsinga.rl.replay_memory import PrioritizedReplay, ReplayMemory


class Learning(Protocol):
    """Interface of the loops in which an agent learns, in this process or with actors."""

    agent: Agent

    @property
    def statistics(self) -> EpisodeStatistics:
        """The environment steps and episodes so far."""

    def advance(self, steps: int) -> Mapping[str, float]:
        """Step each environment ``steps`` times and learn; return metrics, {} if nothing was learnt."""

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs to continue bit for bit: nested dicts of arrays and plain values."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state`. Raises UserError for another net, environment or memory."""

    def close(self) -> None:
        """Free the resources of the environments."""


class CollectingLearning:
    """Base of the loops in which this process steps the environments."""

    def __init__(self, agent: Agent, collector: Collector):
        agent.check_environments(collector.environments)
        self.agent, self.collector = agent, collector

    @property
    def statistics(self) -> EpisodeStatistics:
        """The environment steps and episodes so far."""
        return self.collector.statistics

    def state(self) -> dict[str, Any]:
        """Return the state for a bit-exact continuation."""
        return {"agent": self.agent.state(), "collector": self.collector.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state, as in :meth:`Learning.restore`."""
        self.agent.set_state(state["agent"])
        self.collector.restore(state["collector"])

    def close(self) -> None:
        """Free the resources of the environments."""
        self.collector.environments.close()


class OnPolicyLearning(CollectingLearning):
    """Learns once from each rollout, with the params that chose its actions (PPO, A2C, REINFORCE)."""

    def advance(self, steps: int) -> Mapping[str, float]:
        """Collect a rollout of ``steps`` steps of each environment, and learn from it; return metrics."""
        values = getattr(self.agent.algorithm, "values", None)
        return self.agent.learn(self.collector.rollout(self.agent.sample, steps, values))


class OffPolicyLearning(CollectingLearning):
    """Learns from transitions of a replay memory, at regular intervals (DQN, DDPG, TD3)."""

    def __init__(self, agent: Agent, collector: Collector, memory: ReplayMemory, **settings: int):
        super().__init__(agent, collector)
        self.memory, self.updates = memory, ReplayUpdates(agent, memory, **settings)

    def advance(self, steps: int) -> dict[str, float]:
        """Step each environment ``steps`` times, and do the updates that are due; return mean metrics."""
        updates: list[dict[str, float]] = []
        for _ in range(steps):
            self.collector.fill(self.memory, self.agent.sample, 1)
            updates += self.updates.learn(self.memory.count, self.statistics.steps)
        return mean_metrics(updates)

    def state(self) -> dict[str, Any]:
        """Return the state of learning, including the memory."""
        return {**super().state(), **self.updates.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state, as in :meth:`Learning.restore`."""
        super().restore(state)
        self.updates.restore(state)


class EvolutionLearning(CollectingLearning):
    """Learns by evolution (ES): each candidate acts in all environments for an episode."""

    def advance(self, steps: int) -> Mapping[str, float]:
        """Evaluate and learn one generation of candidates, however many steps it takes; return the metrics."""
        algorithm = self.agent.algorithm
        assert isinstance(algorithm, ES)
        return self.agent.learn([self._mean_return(algorithm, params) for params in algorithm.candidates()])

    def _mean_return(self, algorithm: ES, params: ParamArrays) -> float:
        """Return the mean return of a candidate over one episode of each environment."""
        environments, statistics = self.collector.environments, self.collector.statistics
        statistics.begin()
        observations = environments.reset()
        returns: dict[int, float] = {}
        while len(returns) < environments.count:
            check_length(environments, environments.steps)
            step = environments.step(algorithm.actions(observations, params))
            for episode in statistics.add(step):
                returns.setdefault(episode.environment, episode.total_reward)
            observations = step.observations
        return float(np.mean([returns[number] for number in range(environments.count)]))


class ReplayUpdates:
    """Decides when an agent learns from a replay memory, and updates it with random transitions.

    Args:
        memory: the replay memory; errors set the priorities, if it has any.
        batch_size: transitions of an update.
        learn_every: environment steps for each update.
        learn_after: environment steps before the first update.
    """

    def __init__(
        self,
        agent: Agent,
        memory: ReplayMemory,
        *,
        batch_size: int = 32,
        learn_every: int = 1,
        learn_after: int = 1000,
        seed: int = 0,
    ):
        self.agent, self.memory = agent, memory
        self.batch_size, self.learn_every, self.learn_after = batch_size, learn_every, learn_after
        self.rng = np.random.default_rng([seed, 1])
        self._due = 0.0

    def learn(self, steps: int, taken: int) -> list[dict[str, float]]:
        """Do the updates that are due after ``steps`` further environment steps; return each one's metrics."""
        if taken < self.learn_after:
            return []
        self._due += steps / self.learn_every
        updates = []
        while self._due >= 1:
            self._due -= 1
            updates.append(self._update())
        return updates

    def _update(self) -> dict[str, float]:
        batch = self.memory.sample(self.batch_size, self.rng)
        if isinstance(self.memory, PrioritizedReplay):
            self.memory.update_priorities(batch.indices, self.agent.algorithm.errors(batch))
        return self.agent.learn(batch)

    def state(self) -> dict[str, Any]:
        """Return the state of learning, including the memory."""
        return {"memory": self.memory.state(), "rng": self.rng.bit_generator.state, "updates_due": self._due}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state`. Raises UserError for a memory of other sizes."""
        self.memory.restore(state["memory"])
        self.rng.bit_generator.state = state["rng"]
        self._due = float(state["updates_due"])


def mean_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average each metric over the updates that report it."""
    values: dict[str, list[float]] = {}
    for metrics in updates:
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
