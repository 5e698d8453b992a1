"""How a remote actor takes steps for a replay memory elsewhere: by which params, and what it returns of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga.rl.agent import Agent
from dsinga.rl.collecting import Collector
from dsinga.rl.replay import ReplayMemory


@dataclass
class ActorTransitions:
    """The steps of an actor's rollout.

    Attributes:
        actor: the number of the actor.
        memory: the state of a :class:`ReplayMemory` that has these steps alone.
        errors: (T·N,) float32, those of the transitions by the params of the actor, the oldest step first; None where
            the memory of the learner has no priorities.
    """

    actor: int
    memory: Mapping[str, Any]
    errors: np.ndarray | None

    @property
    def steps(self) -> int:
        """Steps of an environment, T times N."""
        return int(np.size(self.memory["rewards"][: self.memory["filled"]]))


@dataclass
class Acting:
    """By what remote actors take steps.

    Attributes:
        params: the params of the learner.
        sampled: the steps of all actors so far.
        actors: how many actors there are.
        n_steps, discount: as for :class:`ReplayMemory`; errors are those of such transitions.
        prioritized: whether errors are needed.
    """

    params: dict[str, np.ndarray]
    sampled: int
    actors: int
    n_steps: int
    discount: float
    prioritized: bool

    def collect(self, agent: Agent, collector: Collector, actor: int, steps: int) -> ActorTransitions:
        """Take ``steps`` steps of each environment of an actor. Raises RunError where an environment fails."""
        agent.algorithm.act_as(actor, self.actors, self.params, self.sampled)
        count, spaces = collector.environments.count, collector.environments.spaces
        memory = ReplayMemory(spaces, steps * count, count=count, n=self.n_steps, discount=self.discount)
        collector.fill(memory, agent.sample, steps)
        errors = agent.algorithm.errors(memory.all()) if self.prioritized else None
        return ActorTransitions(actor, memory.state(), errors)
