"""Loops that learn from the rollouts of remote actors: all of them in each iteration, or each one as it comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.rl.agent import Agent
from dsinga.rl.episodes import EpisodeStatistics
from dsinga.rl.experience import join_rollouts
from dsinga.rl.remote.actor_pool import ActorPool
from dsinga.rl.remote.rollout_actor import pack_params
from dsinga.rl.remote.rollout_stream import RolloutStream


class GatheringLoop:
    """Learns from the rollouts of all actors together, whose params do not change while they collect.

    Rollouts are joined in the order of the actors, so that a seed and a number of actors give the same bits wherever
    the actors are, lost ones included.

    Args:
        agent: the agent; it learns in this process.
        actors: the actors.

    Attributes:
        statistics: of the episodes of all actors.
        staleness: how many updates were made between the params of a rollout and the update by it: 0.
    """

    def __init__(self, agent: Agent, actors: ActorPool):
        self.agent, self.actors = agent, actors
        self.statistics = EpisodeStatistics(1)
        self.staleness = 0.0
        self._iteration = 0

    def advance(self, steps: int) -> Mapping[str, float]:
        """Let each actor take ``steps`` steps of each environment, and learn from all of them; return metrics."""
        params, iteration = pack_params(self.agent.algorithm.params), self._iteration
        calls = [
            self.actors.start(number, "rollout", params, iteration, iteration, steps)
            for number in range(self.actors.count)
        ]
        results = [call.result() for call in calls]
        self._iteration += 1
        rollout = join_rollouts([result.rollout for result in results])
        self.statistics.extend(rollout.steps, [episode for result in results for episode in result.episodes])
        return self.agent.learn(rollout)

    def state(self) -> dict[str, Any]:
        """Return what training goes on from, bit for bit: nested dicts of arrays and plain values."""
        return {
            "agent": self.agent.state(),
            "actors": self.actors.states(),
            "statistics": self.statistics.state(),
            "iteration": self._iteration,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of another net or environment."""
        self.agent.set_state(state["agent"])
        self.actors.restore(state["actors"])
        self.statistics.restore(state["statistics"])
        self._iteration = int(state["iteration"])

    def close(self) -> None:
        """Let go of the actors."""
        self.actors.close()


class StreamingLoop:
    """Learns from the rollouts of actors as they come, while the other actors go on with older params (IMPALA).

    Args:
        agent: the agent, whose algorithm corrects for actions of older params, such as IMPALA; it learns here.
        actors: the actors.
        batch: as for :class:`RolloutStream`.
        max_staleness: as for :class:`RolloutStream`.

    Attributes:
        statistics: of the episodes of all actors.
        staleness: the mean over the rollouts of the last :meth:`advance`.
    """

    def __init__(self, agent: Agent, actors: ActorPool, *, batch: int = 0, max_staleness: int = 8):
        self.agent, self.actors = agent, actors
        self.statistics = EpisodeStatistics(1)
        self.staleness = 0.0
        self.stream = RolloutStream(actors, batch=batch, max_staleness=max_staleness)

    def advance(self, steps: int) -> Mapping[str, float]:
        """Learn from as many rollouts of ``steps`` steps as there are actors, at least one batch; return metrics."""
        updates: list[Mapping[str, float]] = []
        staleness: list[int] = []
        batch = self.stream.batch
        while len(updates) * batch < max(self.actors.count, batch):
            version = self.stream.version
            results = self.stream.take(steps, self.agent.algorithm.params)
            staleness += [version - result.version for result in results]
            for result in results:
                self.statistics.extend(result.rollout.steps, result.episodes)
            updates.append(self.agent.learn(join_rollouts([result.rollout for result in results])))
        self.staleness = float(np.mean(staleness))
        means = {name: float(np.mean([metrics[name] for metrics in updates])) for name in updates[0]}
        return {**means, "staleness": self.staleness}

    def state(self) -> dict[str, Any]:
        """Return what training goes on from; rollouts that are not yet learnt are left out."""
        return {
            "agent": self.agent.state(),
            "actors": self.actors.states(),
            "statistics": self.statistics.state(),
            **self.stream.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of another net or environment."""
        self.agent.set_state(state["agent"])
        self.actors.restore(state["actors"])
        self.statistics.restore(state["statistics"])
        self.stream.restore(state)

    def close(self) -> None:
        """End the calls on their way, and let go of the actors."""
        self.stream.close()
