"""ReplayUpdates: the updates of an agent by transitions of a replay memory, at regular intervals of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.rl.agent import Agent
from dsinga.rl.prioritized_replay import PrioritizedReplay
from dsinga.rl.replay import ReplayMemory


class ReplayUpdates:
    """Lets an agent learn from transitions of a replay memory, an update for so many steps of environments.

    Args:
        agent: the agent.
        memory: the replay memory; from a prioritised one, errors set the priorities.
        batch_size: transitions of an update.
        learn_every: steps of environments for each update.
        learn_after: steps of environments before the first update.
        seed: determines which transitions are drawn.
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
        """Do the updates due after ``steps`` further steps, the last of ``taken``; return the metrics of each."""
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
        """Return what learning goes on from, the memory included."""
        return {"memory": self.memory.state(), "rng": self.rng.bit_generator.state, "updates_due": self._due}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of a memory of other sizes."""
        self.memory.restore(state["memory"])
        self.rng.bit_generator.state = state["rng"]
        self._due = float(state["updates_due"])


def mean_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the updates that give it."""
    values: dict[str, list[float]] = {}
    for metrics in updates:
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
