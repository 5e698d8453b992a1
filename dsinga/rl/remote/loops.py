"""Loops that learn from the rollouts of remote actors: all of them in each iteration, or each one as it comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

import numpy as np

from dsinga.rl.agent import Agent
from dsinga.rl.episodes import EpisodeStatistics
from dsinga.rl.experience import join_rollouts
from dsinga.rl.remote.actor_pool import ActorPool, Call
from dsinga.rl.remote.rollout_actor import ActorRollout, pack_params


class GatheringLoop:
    """Learns from the rollouts of all actors together, which act by the newest params meanwhile no update is made.

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

    An actor gets the newest params with each rollout. A rollout is at most ``max_staleness`` updates old when it is
    learnt: where an actor is slower than that, the learner waits for it, and where the learner is, actors wait.

    Args:
        agent: the agent, whose algorithm corrects for actions of older params, such as IMPALA; it learns here.
        actors: the actors.
        batch: rollouts in an update; 0 for as many as keep all actors at work.
        max_staleness: how many updates may be made between the params of a rollout and the update by it.

    Attributes:
        statistics: of the episodes of all actors.
        staleness: the mean over the rollouts of the last :meth:`advance`.
    """

    def __init__(self, agent: Agent, actors: ActorPool, *, batch: int = 0, max_staleness: int = 8):
        self.agent, self.actors = agent, actors
        # The rollouts on their way are those of the updates in which they may be learnt.
        self.batch, self.max_staleness = batch or -(-actors.count // (max_staleness + 1)), max_staleness
        self.statistics = EpisodeStatistics(1)
        self.staleness = 0.0
        self._version = 0
        self._packed = b""  # the params of this version, once they are needed
        self._rollouts = [0] * actors.count
        self._idle = deque(range(actors.count))
        self._running: dict[Call, tuple[int, int]] = {}  # the actor and the version of each call
        self._ended: SimpleQueue[Call] = SimpleQueue()
        self._arrived: list[ActorRollout] = []

    def advance(self, steps: int) -> Mapping[str, float]:
        """Learn from as many rollouts of ``steps`` steps as there are actors, at least one batch; return metrics."""
        updates: list[Mapping[str, float]] = []
        staleness: list[int] = []
        while len(updates) * self.batch < max(self.actors.count, self.batch):
            self._start_idle(steps)
            self._collect()
            if len(self._arrived) < self.batch or self._must_wait():
                continue
            part, self._arrived = self._arrived[: self.batch], self._arrived[self.batch :]
            staleness += [self._version - result.version for result in part]
            updates.append(self.agent.learn(join_rollouts([result.rollout for result in part])))
            self._version, self._packed = self._version + 1, b""
        self.staleness = float(np.mean(staleness))
        means = {name: float(np.mean([metrics[name] for metrics in updates])) for name in updates[0]}
        return {**means, "staleness": self.staleness}

    def _start_idle(self, steps: int) -> None:
        """Start the actors that are idle, as far as their rollouts can be learnt in time after those before them."""
        while self._idle and len(self._running) + len(self._arrived) < self.batch * (self.max_staleness + 1):
            number = self._idle.popleft()
            self._packed = self._packed or pack_params(self.agent.algorithm.params)
            call = self.actors.start(number, "rollout", self._packed, self._version, self._rollouts[number], steps)
            self._rollouts[number] += 1
            self._running[call] = (number, self._version)
            call.add_done_callback(self._ended.put)

    def _collect(self) -> None:
        """Take the rollouts that have come, the oldest first; wait for one where an update cannot be made."""
        waits = len(self._arrived) < self.batch or self._must_wait()
        while waits or not self._ended.empty():
            call, waits = self._ended.get(), False
            number, _ = self._running.pop(call)
            self._idle.append(number)
            result = call.result()
            self._arrived.append(result)
            self.statistics.extend(result.rollout.steps, result.episodes)
        self._arrived.sort(key=lambda result: result.version)

    def _must_wait(self) -> bool:
        """Whether an update now would make a rollout that is on its way too old before it can be learnt."""
        versions = [result.version for result in self._arrived[self.batch :]]
        versions += [version for _, version in self._running.values()]
        following = self._version + 1
        return any(
            following + place // self.batch - version > self.max_staleness
            for place, version in enumerate(sorted(versions))
        )

    def state(self) -> dict[str, Any]:
        """Return what training goes on from; rollouts that are not yet learnt are left out."""
        return {
            "agent": self.agent.state(),
            "actors": self.actors.states(),
            "statistics": self.statistics.state(),
            "version": self._version,
            "rollouts": list(self._rollouts),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of another net or environment."""
        self.agent.set_state(state["agent"])
        self.actors.restore(state["actors"])
        self.statistics.restore(state["statistics"])
        self._version, self._packed = int(state["version"]), b""
        # Of another number of actors, the new ones draw their first random numbers.
        self._rollouts[: len(state["rollouts"])] = map(int, state["rollouts"][: self.actors.count])

    def close(self) -> None:
        """End the calls on their way, and let go of the actors."""
        for call in self._running:
            call.cancel()
        self.actors.close()
