"""OffPolicyLoop: steps environments, fills a replay memory, and learns from batches of it at regular intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.rl.agent import Agent
from dsinga.rl.collecting import Collector
from dsinga.rl.on_policy import CollectingLoop
from dsinga.rl.prioritized_replay import PrioritizedReplay
from dsinga.rl.replay import ReplayMemory


class OffPolicyLoop(CollectingLoop):
    """Trains an agent whose algorithm learns from transitions.

    Args:
        agent: the agent.
        collector: the environments, and what is known of their episodes.
        memory: the replay memory; from a prioritised one, errors set the priorities.
        batch_size: transitions of an update.
        learn_every: steps of environments for each update.
        learn_after: steps of environments before the first update.
        seed: determines which transitions are drawn.
    """

    def __init__(
        self,
        agent: Agent,
        collector: Collector,
        memory: ReplayMemory,
        *,
        batch_size: int = 32,
        learn_every: int = 1,
        learn_after: int = 1000,
        seed: int = 0,
    ):
        super().__init__(agent, collector)
        self.memory = memory
        self.batch_size, self.learn_every, self.learn_after = batch_size, learn_every, learn_after
        self.rng = np.random.default_rng([seed, 1])
        self._updates_due = 0.0

    def advance(self, steps: int) -> dict[str, float]:
        """Take ``steps`` steps of each environment, with the updates due; return the means of the updates' metrics."""
        values: dict[str, list[float]] = {}  # not every update gives every metric
        for _ in range(steps):
            self.collector.fill(self.memory, self.agent.sample, 1)
            if self.statistics.steps < self.learn_after:
                continue
            self._updates_due += self.memory.count / self.learn_every
            while self._updates_due >= 1:
                self._updates_due -= 1
                for name, value in self._update().items():
                    values.setdefault(name, []).append(value)
        return {name: sum(each) / len(each) for name, each in values.items()}

    def _update(self) -> dict[str, float]:
        batch = self.memory.sample(self.batch_size, self.rng)
        if isinstance(self.memory, PrioritizedReplay):
            self.memory.update_priorities(batch.indices, self.agent.algorithm.errors(batch))
        return self.agent.learn(batch)

    def state(self) -> dict[str, Any]:
        """Return what training goes on from, bit for bit: nested dicts of arrays and plain values."""
        return {
            "agent": self.agent.state(),
            "collector": self.collector.state(),
            "memory": self.memory.state(),
            "rng": self.rng.bit_generator.state,
            "updates_due": self._updates_due,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of another net, environment or memory."""
        self.agent.set_state(state["agent"])
        self.collector.restore(state["collector"])
        self.memory.restore(state["memory"])
        self.rng.bit_generator.state = state["rng"]
        self._updates_due = float(state["updates_due"])
