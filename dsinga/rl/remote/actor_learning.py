"""Lets an agent learn from remote actors: from their rollouts, a replay memory, or with central inference."""

from __future__ import annotations

import concurrent.futures
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.rl.agent import Agent
from dsinga.rl.collecting import RolloutRecorder
from dsinga.rl.experience import EpisodeStatistics, Rollout, Sampled, join_rollouts
from dsinga.rl.learning import ReplayUpdates, mean_metrics
from dsinga.rl.reinforcement_conf import ReinforcementConf
from dsinga.rl.remote.actor_pool import ActorPool, Call
from dsinga.rl.remote.rollout_actor import Acting, ActorRollout, ActorStep, ActorTransitions, pack
from dsinga.rl.remote.rollout_stream import RolloutStream
from dsinga.rl.replay_memory import PrioritizedReplay, ReplayMemory


class RemoteLearning(ABC):
    """Base of the loops in which remote actors step the environments and this process learns."""

    def __init__(self, agent: Agent, actors: ActorPool):
        self.agent, self.actors = agent, actors
        self.statistics = EpisodeStatistics(1)

    @abstractmethod
    def advance(self, steps: int) -> Mapping[str, float]:
        """Step each environment ``steps`` times and learn from it; return metrics."""

    def state(self) -> dict[str, Any]:
        """Return the state of learning, without rollouts that are not learnt yet."""
        return {"agent": self.agent.state(), "actors": self.actors.states(), "statistics": self.statistics.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state`. Raises UserError if it is for another net or environment."""
        self.agent.set_state(state["agent"])
        self.actors.restore(state["actors"])
        self.statistics.restore(state["statistics"])

    def close(self) -> None:
        """Cancel the pending calls, and release the actors."""
        self.actors.close()


class RemoteRolloutLearning(RemoteLearning):
    """Learns from each actor's rollout on arrival, while other actors go on with older params (IMPALA).

    With ``max_staleness`` 0 or None all actors wait for the update. Seed and number of actors then determine the bits,
    even if actors are lost.

    Args:
        batch: as for :class:`RolloutStream`.
        max_staleness: as for :class:`RolloutStream`. With None, for algorithms that require the newest params, no
            staleness is reported.
    """

    def __init__(self, agent: Agent, actors: ActorPool, *, batch: int = 0, max_staleness: int | None = None):
        super().__init__(agent, actors)
        self.stream = RolloutStream(actors, batch=batch, max_staleness=max_staleness or 0)
        self._reports_staleness = max_staleness is not None

    def advance(self, steps: int) -> Mapping[str, float]:
        """Learn from as many rollouts as there are actors, at least one batch; return metrics.

        "staleness" is the mean number of updates between a rollout's params and its update.
        """
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
        means = {name: float(np.mean([metrics[name] for metrics in updates])) for name in updates[0]}
        return {**means, "staleness": float(np.mean(staleness))} if self._reports_staleness else means

    def state(self) -> dict[str, Any]:
        """Return the state of learning, without rollouts that are not learnt yet."""
        return {**super().state(), **self.stream.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state, as in :meth:`RemoteLearning.restore`."""
        super().restore(state)
        self.stream.restore(state)


class CentralInferenceLearning(RemoteLearning):
    """Chooses the actions of all actors in this process, as in GA3C (Babaeizadeh et al. 2017).

    Only this process computes the net, in one batch for the observations of all waiting actors. The agent learns from
    as many rollouts as there are actors.
    """

    def __init__(self, agent: Agent, actors: ActorPool):
        super().__init__(agent, actors)
        self._waiting: dict[Call, int] = {}  # the actor of each call
        self._answered: dict[int, ActorStep] = {}  # by actor, what it has sent since its last actions
        self._recorders: dict[int, RolloutRecorder] = {}  # by actor, the rollout that it has begun

    def advance(self, steps: int) -> Mapping[str, float]:
        """Learn from a rollout of ``steps`` steps for each actor; return metrics.

        "actors_in_batch" is the mean number of actors in a batch of observations.
        """
        ready: list[Rollout] = []
        batches: list[int] = []
        if not self._waiting and not self._answered:
            self._waiting = {self.actors.start(n, "step", None, ""): n for n in range(self.actors.count)}
        while len(ready) < self.actors.count:
            if self._answered:
                batches.append(len(self._answered))
                self._act(steps)
            done, _ = concurrent.futures.wait(self._waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            self._answered = {self._waiting.pop(call): call.result() for call in done}
            for number, result in self._answered.items():
                ready += self._record(number, result)
        return {**self.agent.learn(join_rollouts(ready)), "actors_in_batch": float(np.mean(batches))}

    def _record(self, number: int, result: ActorStep) -> list[Rollout]:
        """Add an actor's step to its rollout; return the rollout if it is complete."""
        if result.step is None:  # a new actor: drop the lost actor's unfinished rollout
            self._recorders.pop(number, None)
            return []
        recorder = self._recorders[number]
        recorder.add(result.step)
        self.statistics.extend(len(result.observations), result.episodes)
        if not recorder.is_complete:
            return []
        del self._recorders[number]
        return [recorder.finish(result.observations, getattr(self.agent.algorithm, "values", None))]

    def _act(self, steps: int) -> None:
        """Choose actions for the actors that have answered, and start their next step."""
        results, self._answered = self._answered, {}
        sampled = self.agent.sample(np.concatenate([result.observations for result in results.values()]))
        start = 0
        for number, result in results.items():
            rows = slice(start, start := start + len(result.observations))
            part = Sampled(sampled.actions[rows], {name: array[rows] for name, array in sampled.extras.items()})
            if number not in self._recorders:
                spaces = self.agent.algorithm.spaces
                self._recorders[number] = RolloutRecorder(spaces, steps, len(result.observations))
            self._recorders[number].begin(result.observations, part)
            self._waiting[self.actors.start(number, "step", part.actions, result.actor)] = number

    def state(self) -> dict[str, Any]:
        """Return the state of learning, without unfinished rollouts."""
        calls = [self.actors.start(number, "state") for number in range(self.actors.count)]
        return {**super().state(), "actors": {str(number): call.result() for number, call in enumerate(calls)}}


def create_remote_learning(agent: Agent, actors: ActorPool, conf: ReinforcementConf) -> RemoteLearning:
    """Return the loop in which an agent without replay memory learns from actors."""
    if conf.central_inference:
        return CentralInferenceLearning(agent, actors)
    return RemoteRolloutLearning(
        agent, actors, max_staleness=conf.max_staleness if agent.algorithm.corrects_older_actions else None
    )


class RemoteReplayLearning(RemoteLearning):
    """Learns from a replay memory in this process, filled by remote actors (Ape-X, Horgan et al. 2018).

    Each actor explores in its own way. After each rollout the updates due for its steps are made. At most
    ``max_staleness`` such rounds are made between a rollout's params and its arrival. Transitions of several steps end
    with their rollout.

    With ``max_staleness`` 0 actors wait, and seed and number of actors determine the bits.

    Args:
        actors: the actors, each with as many environments as the memory.
    """

    def __init__(self, agent: Agent, actors: ActorPool, updates: ReplayUpdates, *, max_staleness: int = 8):
        super().__init__(agent, actors)
        self.updates, self.memory = updates, updates.memory
        self.stream = RolloutStream(actors, max_staleness=max_staleness, method="transitions", pack=self._pack)

    def advance(self, steps: int) -> Mapping[str, float]:
        """Learn from as many rollouts as there are actors; return the updates' mean metrics.

        "staleness" is the mean number of params versions sent to actors since a rollout's params.
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
        """Put an actor's transitions into the memory, and count them; return their number."""
        part = result.rollout
        indices = self.memory.extend(part.memory)
        if isinstance(self.memory, PrioritizedReplay) and part.errors is not None:
            self.memory.update_priorities(indices, part.errors)
        self.statistics.extend(part.steps, result.episodes)
        self.agent.algorithm.sampled += part.steps
        return part.steps

    def _pack(self, params: Mapping[str, np.ndarray]) -> bytes:
        """Return params and settings as bytes, as :meth:`RolloutActor.transitions` requires."""
        memory: ReplayMemory = self.memory
        is_prioritized = isinstance(memory, PrioritizedReplay)
        sampled = self.agent.algorithm.sampled
        return pack(Acting(dict(params), sampled, self.actors.count, memory.n, memory.discount, is_prioritized))

    def state(self) -> dict[str, Any]:
        """Return the state of learning, with the memory but without rollouts on their way."""
        return {**super().state(), **self.stream.state(), **self.updates.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state`. Raises UserError for another net, environment or memory."""
        super().restore(state)
        self.stream.restore(state)
        self.updates.restore(state)
