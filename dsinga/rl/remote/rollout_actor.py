"""The Dask Actor that steps environments with the params it receives, and returns rollouts."""

from __future__ import annotations

import asyncio
import copy
import pickle
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from dsinga.cluster.serial_executor import SerialExecutor
from dsinga.rl.agent import Agent
from dsinga.rl.collecting import Collector
from dsinga.rl.environments.registered import Environment, make_environments
from dsinga.rl.environments.vector_environment import EnvironmentStep
from dsinga.rl.experience import Episode, Rollout
from dsinga.rl.replay_memory import ReplayMemory


@dataclass
class ActorTransitions:
    """The steps of an actor's rollout as transitions, to add to the learner's replay memory.

    Attributes:
        memory: the state of a :class:`ReplayMemory` with only these steps.
        errors: (T·N,) float32, the transitions' errors by the actor's params, oldest step first; None if the learner's
            memory has no priorities.
    """

    actor: int
    memory: Mapping[str, Any]
    errors: np.ndarray | None

    @property
    def steps(self) -> int:
        """Environment steps, T times N."""
        return int(np.size(self.memory["rewards"][: self.memory["filled"]]))


@dataclass
class Acting:
    """Params and settings that the learner sends to remote actors, with which they choose actions.

    Attributes:
        n_steps, discount: as for :class:`ReplayMemory`; errors are for such transitions.
    """

    params: dict[str, np.ndarray]
    sampled: int
    actors: int
    n_steps: int
    discount: float
    prioritized: bool

    def collect(self, agent: Agent, collector: Collector, actor: int, steps: int) -> ActorTransitions:
        """Step each environment of an actor ``steps`` times; return the transitions. Raises RunError if one fails."""
        agent.algorithm.act_as(actor, self.actors, self.params, self.sampled)
        count, spaces = collector.environments.count, collector.environments.spaces
        memory = ReplayMemory(spaces, steps * count, count=count, n=self.n_steps, discount=self.discount)
        collector.fill(memory, agent.sample, steps)
        errors = agent.algorithm.errors(memory.all()) if self.prioritized else None
        return ActorTransitions(actor, memory.state(), errors)


Experience = TypeVar("Experience")


@dataclass
class ActorRollout(Generic[Experience]):
    """The reply of an actor: a rollout, and the state from which another actor can continue.

    Attributes:
        version: the version of the params that chose the actions.
    """

    rollout: Experience
    episodes: list[Episode]
    state: dict[str, Any]
    version: int


@dataclass
class ActorStep:
    """The reply of an actor to the actions that the learner sent: a step of its environments.

    Attributes:
        step: the step; None if the actor is new.
        actor: the actor's unique name.
    """

    observations: np.ndarray
    step: EnvironmentStep | None
    episodes: list[Episode]
    actor: str


def pack(value: Any) -> bytes:
    """Pickle a value once for several actors, as a copy that the learner cannot change."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def pack_params(params: Mapping[str, np.ndarray]) -> bytes:
    """Pickle params once for several actors."""
    return pack(dict(params))


class RolloutActor:
    """Steps environments on a Dask worker, in its own thread, and returns rollouts to the learner.

    Another actor computes a lost actor's next rollout with the same bits.

    Args:
        agent: chooses actions; each call replaces its params.
        environment: as for :func:`dsinga.rl.environments.registered.make_environments`.
        state: the environments' state of the actor that this one replaces, or None.
    """

    def __init__(
        self,
        number: int,
        agent: Agent,
        environment: Environment,
        count: int,
        seed: int,
        state: Mapping[str, Any] | None,
    ):
        # Within one process Dask passes the driver's own object.
        self._number, self._agent, self._seed = number, copy.deepcopy(agent), seed
        self._name = uuid.uuid4().hex
        self._thread = SerialExecutor(f"dsinga-actor-{number}")
        self._collector = self._thread.run(self._create, environment, count, state)

    async def rollout(self, params: bytes, version: int, number: int, steps: int) -> ActorRollout[Rollout]:
        """Compute the rollout ``number``, of ``steps`` steps, with the packed params of ``version``."""
        return await asyncio.wrap_future(self._thread.submit(self._collect, params, version, number, steps))

    async def transitions(self, packed: bytes, version: int, number: int, steps: int) -> ActorRollout[ActorTransitions]:
        """Compute the rollout ``number`` as transitions, with a packed :class:`Acting` of ``version``."""
        return await asyncio.wrap_future(self._thread.submit(self._transitions, packed, version, number, steps))

    async def step(self, actions: np.ndarray | None, actor: str) -> ActorStep:
        """Step the environments with ``actions``, unless they are None or for another ``actor``."""
        return await asyncio.wrap_future(self._thread.submit(self._step, actions if actor == self._name else None))

    async def state(self) -> dict[str, Any]:
        """Return the environments' state after all earlier calls."""
        return await asyncio.wrap_future(self._thread.submit(self._collector.state))

    async def close(self) -> None:
        """Free the environments; end the thread."""
        self._thread.submit(self._collector.environments.close)
        self._thread.close("the actor is closed")

    def _create(self, environment: Environment, count: int, state: Mapping[str, Any] | None) -> Collector:
        environments = make_environments(environment, count, seed=self._seed, first=self._number * count)
        self._agent.check_environments(environments)
        collector = Collector(environments, self._agent.hidden_states(count))
        if state is not None:
            collector.restore(state)
        return collector

    def _collect(self, params: bytes, version: int, number: int, steps: int) -> ActorRollout[Rollout]:
        self._agent.algorithm.params = pickle.loads(params)
        self._seed_agent(number)
        values = getattr(self._agent.algorithm, "values", None)
        rollout = self._collector.rollout(self._agent.sample, steps, values)
        return ActorRollout(rollout, self._collector.ended, self._collector.state(), version)

    def _transitions(self, packed: bytes, version: int, number: int, steps: int) -> ActorRollout[ActorTransitions]:
        acting: Acting = pickle.loads(packed)
        self._seed_agent(number)
        transitions = acting.collect(self._agent, self._collector, self._number, steps)
        return ActorRollout(transitions, self._collector.ended, self._collector.state(), version)

    def _seed_agent(self, number: int) -> None:
        """Seed the agent's random actions by the rollout's number, independent of earlier rollouts."""
        self._agent.rng = np.random.default_rng([self._seed, self._number, number])

    def _step(self, actions: np.ndarray | None) -> ActorStep:
        step = None if actions is None else self._collector.step(actions)
        episodes = [] if step is None else self._collector.ended
        return ActorStep(self._collector.observations, step, episodes, self._name)
