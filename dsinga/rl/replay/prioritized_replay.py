"""PrioritizedReplay: a replay memory from which transitions with large errors are drawn more often."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.rl.environments.spaces import Spaces
from dsinga.rl.environments.vector_environment import EnvironmentStep
from dsinga.rl.experience import Transitions
from dsinga.rl.replay.replay_memory import ReplayMemory

CHILDREN = 64  # wide, so that a tree has few levels: each takes several calls of numpy


class SumTree:
    """Weights of numbered items, from which items are found by points on the line of their sums.

    Each level of the tree has the sums of :data:`CHILDREN` neighbours of the level below; the lowest has the weights.
    Setting and finding take a few numpy operations a level, for any number of items.
    """

    def __init__(self, size: int):
        self._levels = [np.zeros(0)]
        while size > 1 or len(self._levels) == 1:
            size = -(-size // CHILDREN)
            self._levels.append(np.zeros((size, CHILDREN)))
        del self._levels[0]

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._levels[-1].sum())

    def weights(self, items: Any) -> np.ndarray:
        """Return the weights of items, given by an array or a slice."""
        return self._levels[0].reshape(-1)[items]

    def set(self, items: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights of items; of an item that is named twice, the last one counts."""
        self._levels[0].reshape(-1)[items] = weights
        for lower, upper in pairwise(self._levels):
            items = items // CHILDREN
            upper.reshape(-1)[items] = lower[items].sum(axis=1)

    def find(self, points: np.ndarray) -> np.ndarray:
        """Return for each point, from 0 up to ``total``, the item at which the weights add up to more than it.

        Only items with a weight are found.
        """
        items, rest = np.zeros(len(points), np.int64), np.array(points, np.float64)
        rows = np.arange(len(points))
        for level in reversed(self._levels):
            sums = np.cumsum(level[items], axis=1)
            rest = np.minimum(rest, np.nextafter(sums[:, -1], 0))  # rounding may have left it behind the last weight
            child = (sums <= rest[:, np.newaxis]).sum(axis=1)
            rest = rest - np.where(child > 0, sums[rows, child - 1], 0)
            items = items * CHILDREN + child
        return items


class PrioritizedReplay(ReplayMemory):
    """Proportional prioritised replay (Schaul et al. 2016, "Prioritized experience replay").

    A transition is drawn with a probability proportional to (its error + ``floor``) to the power of ``alpha``; a new
    one as if it had the largest error so far. Its weight is (size x probability) to the power of -``beta``, divided by
    the largest of the batch.

    Args:
        spaces, capacity, count, n, discount: as for :class:`ReplayMemory`.
        alpha: 0 draws uniformly, 1 in proportion to errors.
        beta: how far weights correct for what is drawn more often, up to 1; it may be set at any time.
        floor: what is added to errors, so that a transition without an error is drawn, too.
    """

    def __init__(
        self,
        spaces: Spaces,
        capacity: int,
        *,
        count: int = 1,
        n: int = 1,
        discount: float = 0.99,
        alpha: float = 0.6,
        beta: float = 0.4,
        floor: float = 1e-6,
    ):
        super().__init__(spaces, capacity, count=count, n=n, discount=discount)
        self.alpha, self.beta, self.floor = alpha, beta, floor
        self._tree = SumTree((self.rows + 1) * count)
        self._largest = 1.0  # of all priorities so far

    def add(self, observations: np.ndarray, actions: np.ndarray, step: EnvironmentStep) -> None:
        """Keep a step of all environments, with the largest priority so far."""
        row = self._next
        super().add(observations, actions, step)
        environments = np.arange(self.count)
        # The row after the newest step has observations only, and no transitions.
        items = np.concatenate([row * self.count + environments, self._next * self.count + environments])
        self._tree.set(items, np.repeat([self._largest, 0.0], self.count))

    def sample(self, size: int, rng: np.random.Generator) -> Transitions:
        """Draw ``size`` transitions by their priorities, one from each of ``size`` equal parts of their sum."""
        self._check_not_empty()
        points = (np.arange(size) + rng.random(size)) * (self._tree.total / size)
        indices = self._tree.find(points)
        weights = (self._tree.weights(indices) * (len(self) / self._tree.total)) ** -self.beta
        return self._transitions(indices, (weights / weights.max()).astype(np.float32))

    def update_priorities(self, indices: np.ndarray, errors: np.ndarray) -> None:
        """Set the priorities of transitions, by the ``indices`` of a batch, to their temporal-difference errors."""
        priorities = (np.abs(errors).astype(np.float64) + self.floor) ** self.alpha
        if not np.all(np.isfinite(priorities)):
            raise UserError("errors are not finite; the values diverge: lower the learning rate")
        keeps = indices // self.count != self._next  # a step since then may have replaced the oldest transitions
        self._tree.set(indices[keeps], priorities[keeps])
        self._largest = max(self._largest, float(priorities.max()))

    def state(self) -> dict[str, Any]:
        """Return what the memory has, and the priorities."""
        priorities = self._tree.weights(slice(self._used * self.count))
        return {**super().state(), "priorities": priorities, "largest": self._largest, "beta": self.beta}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of a memory of other sizes."""
        super().restore(state)
        priorities = np.asarray(state["priorities"], np.float64)
        self._tree.set(np.arange(len(priorities)), priorities)
        self._largest, self.beta = float(state["largest"]), float(state["beta"])
