"""How an agent with a replay memory learns from remote actors, which step environments meanwhile (Ape-X)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.rl.agent import Agent
from dsinga.rl.learning import ReplayUpdates, mean_metrics
from dsinga.rl.remote.actor_learning import RemoteLearning
from dsinga.rl.remote.actor_pool import ActorPool
from dsinga.rl.remote.rollout_actor import Acting, ActorRollout, ActorTransitions, pack
from dsinga.rl.remote.rollout_stream import RolloutStream
from dsinga.rl.replay.prioritized_replay import PrioritizedReplay
from dsinga.rl.replay.replay_memory import ReplayMemory


class RemoteReplayLearning(RemoteLearning):
    """Learns from a replay memory in this process, which remote actors fill (Ape-X, Horgan et al. 2018).

    Actors take steps by the newest params that they have got, each with an exploration of its own, and send the steps
    of a rollout at once, with the errors of its transitions where the memory has priorities. A rollout comes into the
    memory whole, then the updates due for its steps are made. Meanwhile at most ``max_staleness`` times such updates
    were made since the params of the rollout. A transition of several steps ends with its rollout.

    With ``max_staleness`` 0 actors wait for the updates, and a seed and a number of actors give the same bits, resumed
    or not; else the bits depend on which actor is faster.

    Args:
        agent: the agent; it learns here.
        actors: the actors, each with as many environments as the memory has.
        updates: the memory, and when the agent learns from it.
        max_staleness: as for :class:`RolloutStream`.
    """

    def __init__(self, agent: Agent, actors: ActorPool, updates: ReplayUpdates, *, max_staleness: int = 8):
        super().__init__(agent, actors)
        self.updates, self.memory = updates, updates.memory
        self.stream = RolloutStream(actors, max_staleness=max_staleness, method="transitions", pack=self._pack)

    def advance(self, steps: int) -> Mapping[str, float]:
        """Take as many rollouts of ``steps`` steps as there are actors, and do the updates due; return their metrics.

        "staleness" is the mean number of updates of the params, as actors get them, since those of a rollout.
        """
        metrics: list[dict[str, float]] = []
        staleness: list[int] = []
        while len(staleness) < self.actors.count:
            version = self.stream.version
            results = self.stream.take(steps, self.agent.algorithm.params)
            staleness += [version - result.version for result in results]
            taken = sum(self._keep(result) for result in results)
            late = self.statistics.steps - self.updates.learn_after
            metrics += self.updates.learn(max(0, min(taken, late)), self.statistics.steps)
        return {**mean_metrics(metrics), "staleness": float(np.mean(staleness))}

    def _keep(self, result: ActorRollout[ActorTransitions]) -> int:
        """Put the steps of a rollout into the memory; return how many there are."""
        part = result.rollout
        indices = self.memory.extend(part.memory)
        if isinstance(self.memory, PrioritizedReplay) and part.errors is not None:
            self.memory.update_priorities(indices, part.errors)
        self.statistics.extend(part.steps, result.episodes)
        self.agent.algorithm.sampled += part.steps
        return part.steps

    def _pack(self, params: Mapping[str, np.ndarray]) -> bytes:
        """Return what actors take steps by, as bytes."""
        memory: ReplayMemory = self.memory
        is_prioritized = isinstance(memory, PrioritizedReplay)
        sampled = self.agent.algorithm.sampled
        return pack(Acting(dict(params), sampled, self.actors.count, memory.n, memory.discount, is_prioritized))

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from, the memory included; rollouts that have not come are left out."""
        return {**super().state(), **self.stream.state(), **self.updates.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of another net, environment or memory."""
        super().restore(state)
        self.stream.restore(state)
        self.updates.restore(state)
