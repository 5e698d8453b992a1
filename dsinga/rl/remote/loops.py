"""How an agent learns from remote actors: from all together, as their rollouts come, or by actions chosen here."""

from __future__ import annotations

import concurrent.futures
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.job.reinforcementconf import ReinforcementConf
from dsinga.rl.agent import Agent
from dsinga.rl.episodes import EpisodeStatistics
from dsinga.rl.experience import Rollout, Sampled, join_rollouts
from dsinga.rl.remote.actor_pool import ActorPool, Call
from dsinga.rl.remote.rollout_actor import ActorStep, pack_params
from dsinga.rl.remote.rollout_stream import RolloutStream
from dsinga.rl.vector_environment import EnvironmentStep


class ActorLoop(ABC):
    """Base of what learns from remote actors.

    Args:
        agent: the agent; it learns in this process.
        actors: the actors.

    Attributes:
        statistics: of the episodes of all actors.
    """

    def __init__(self, agent: Agent, actors: ActorPool):
        self.agent, self.actors = agent, actors
        self.statistics = EpisodeStatistics(1)

    @abstractmethod
    def advance(self, steps: int) -> Mapping[str, float]:
        """Take ``steps`` steps of each environment and learn; return metrics."""

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from; rollouts that are not yet learnt are left out."""
        return {"agent": self.agent.state(), "actors": self.actors.states(), "statistics": self.statistics.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of another net or environment."""
        self.agent.set_state(state["agent"])
        self.actors.restore(state["actors"])
        self.statistics.restore(state["statistics"])

    def close(self) -> None:
        """Cancel the calls on their way, and let go of the actors."""
        self.actors.close()


class GatheringLoop(ActorLoop):
    """Learns from the rollouts of all actors together, which act by the newest params meanwhile no update is made.

    Rollouts are joined in the order of the actors, so that a seed and a number of actors give the same bits wherever
    the actors are, lost ones included.
    """

    def __init__(self, agent: Agent, actors: ActorPool):
        super().__init__(agent, actors)
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
        """Return what learning goes on from, bit for bit: nested dicts of arrays and plain values."""
        return {**super().state(), "iteration": self._iteration}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of another net or environment."""
        super().restore(state)
        self._iteration = int(state["iteration"])


class StreamingLoop(ActorLoop):
    """Learns from the rollouts of actors as they come, while the other actors go on with older params (IMPALA).

    Args:
        agent: the agent, whose algorithm corrects for actions of older params, such as IMPALA; it learns here.
        actors: the actors.
        batch: as for :class:`RolloutStream`.
        max_staleness: as for :class:`RolloutStream`.
    """

    def __init__(self, agent: Agent, actors: ActorPool, *, batch: int = 0, max_staleness: int = 8):
        super().__init__(agent, actors)
        self.stream = RolloutStream(actors, batch=batch, max_staleness=max_staleness)

    def advance(self, steps: int) -> Mapping[str, float]:
        """Learn from as many rollouts of ``steps`` steps as there are actors, at least one batch; return metrics.

        "staleness" is the mean number of updates between the params of a rollout and the update by it.
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
        return {**means, "staleness": float(np.mean(staleness))}

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from; rollouts that are not yet learnt are left out."""
        return {**super().state(), **self.stream.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of another net or environment."""
        super().restore(state)
        self.stream.restore(state)


class PredictingLoop(ActorLoop):
    """Lets actors step environments by actions that are chosen here, as GA3C does (Babaeizadeh et al. 2017).

    Actors send observations and get actions; only this process, perhaps with a GPU, computes the net, for the
    observations of all actors that are waiting in one batch. The agent learns from as many rollouts as there are
    actors.
    """

    def __init__(self, agent: Agent, actors: ActorPool):
        super().__init__(agent, actors)
        self._waiting: dict[Call, int] = {}  # the actor of each call
        self._answered: dict[int, ActorStep] = {}  # by actor, what it has sent since its last actions
        self._growing = [_GrowingRollout() for _ in range(actors.count)]

    def advance(self, steps: int) -> Mapping[str, float]:
        """Learn from a rollout of ``steps`` steps for each actor; return metrics.

        "actors_in_batch" is the mean number of actors whose observations were computed together.
        """
        ready: list[Rollout] = []
        batches: list[int] = []
        if not self._waiting and not self._answered:
            self._waiting = {self.actors.start(n, "step", None, ""): n for n in range(self.actors.count)}
        while len(ready) < self.actors.count:
            if self._answered:
                batches.append(len(self._answered))
                self._act()
            done, _ = concurrent.futures.wait(self._waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            self._answered = {self._waiting.pop(call): call.result() for call in done}
            for number, result in self._answered.items():
                ready += self._take(self._growing[number], result, steps)
        return {**self.agent.learn(join_rollouts(ready)), "actors_in_batch": float(np.mean(batches))}

    def _take(self, growing: _GrowingRollout, result: ActorStep, steps: int) -> list[Rollout]:
        """Add a step of an actor to its rollout; return this when it is complete."""
        if result.step is None:  # a new actor: what a lost one had begun is dropped
            growing.clear()
            return []
        growing.add(result.step)
        self.statistics.extend(len(result.observations), result.episodes)
        if len(growing.steps) < steps:
            return []
        rollout = growing.finish(result.observations, getattr(self.agent.algorithm, "values", None))
        return [rollout]

    def _act(self) -> None:
        """Choose the actions of the actors that have answered, and let them take a step."""
        results, self._answered = self._answered, {}
        sampled = self.agent.sample(np.concatenate([result.observations for result in results.values()]))
        start = 0
        for number, result in results.items():
            rows = slice(start, start := start + len(result.observations))
            part = Sampled(sampled.actions[rows], {name: array[rows] for name, array in sampled.extras.items()})
            self._growing[number].begin(result.observations, part)
            self._waiting[self.actors.start(number, "step", part.actions, result.actor)] = number

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from; the rollouts that have begun are left out."""
        calls = [self.actors.start(number, "state") for number in range(self.actors.count)]
        return {**super().state(), "actors": {str(number): call.result() for number, call in enumerate(calls)}}


class _GrowingRollout:
    """The steps that an actor has taken since its last rollout."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.observations: list[np.ndarray] = []
        self.sampled: list[Sampled] = []
        self.steps: list[EnvironmentStep] = []

    def begin(self, observations: np.ndarray, sampled: Sampled) -> None:
        """Note the observations of a step, and the actions chosen for them."""
        self.observations.append(observations)
        self.sampled.append(sampled)

    def add(self, step: EnvironmentStep) -> None:
        """Note what followed."""
        self.steps.append(step)

    def finish(self, last: np.ndarray, values: Any) -> Rollout:
        """Return the rollout, and begin anew after the observations ``last``."""
        rewards = np.stack([step.rewards for step in self.steps])
        bootstrap = np.zeros_like(rewards)
        for t, step in enumerate(self.steps):
            cut = step.truncated[step.ended] & ~step.terminated[step.ended]
            if values is not None and cut.any():
                bootstrap[t, step.ended[cut]] = values(step.final_observations[cut])
        rollout = Rollout(
            observations=np.stack(self.observations),
            actions=np.stack([sampled.actions for sampled in self.sampled]),
            rewards=rewards,
            terminated=np.stack([step.terminated for step in self.steps]),
            truncated=np.stack([step.truncated for step in self.steps]),
            bootstrap=bootstrap,
            last_observations=last,
            extras={name: np.stack([s.extras[name] for s in self.sampled]) for name in self.sampled[0].extras},
        )
        self.clear()
        return rollout


def learning_from(agent: Agent, actors: ActorPool, conf: ReinforcementConf) -> ActorLoop:
    """Return how an agent learns from actors."""
    if conf.central_inference:
        return PredictingLoop(agent, actors)
    if agent.algorithm.corrects_older_actions:
        return StreamingLoop(agent, actors, max_staleness=conf.max_staleness)
    return GatheringLoop(agent, actors)
