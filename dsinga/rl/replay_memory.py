"""Replay memories: numpy arrays with the latest transitions, to draw batches from, perhaps by priority."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.rl.environments.spaces import Spaces
from dsinga.rl.environments.vector_environment import EnvironmentStep
from dsinga.rl.experience import Transitions


class ReplayMemory:
    """Keeps the latest transitions of N environments to learn from; new ones replace the oldest.

    Each observation is stored once, in its own dtype. The next observation of an episode that ended by itself has no
    meaning.

    Args:
        capacity: the most transitions, rounded down to a multiple of N, at least N.
        n: steps of a transition. Its reward is the discounted sum of n rewards, of fewer at the end of the episode or
            at the newest step.
        discount: the factor of a reward one step later.
    """

    def __init__(self, spaces: Spaces, capacity: int, *, count: int = 1, n: int = 1, discount: float = 0.99):
        if capacity < count or n < 1:
            raise UserError(
                f"a replay memory of {capacity} transitions of {n} steps from {count} environments: it needs at least "
                "one transition of each environment, of at least one step"
            )
        self.spaces, self.count, self.n, self.discount = spaces, count, n, discount
        self.rows = capacity // count
        # A row is a step of all environments; one more has the observations after the newest step.
        self._observations = self._array(self.rows + 1, spaces.observation.shape, spaces.observation.dtype)
        self._actions = self._array(self.rows + 1, spaces.action.shape, spaces.action.dtype)
        self._rewards = self._array(self.rows + 1, (), np.float32)
        self._terminated = self._array(self.rows + 1, (), np.bool_)
        self._truncated = self._array(self.rows + 1, (), np.bool_)
        self._finals: dict[int, np.ndarray] = {}  # final observations of transitions that were cut off, by index
        self._powers = np.float32(discount) ** np.arange(n + 1, dtype=np.float32)
        self._next = 0  # the row of the next step
        self._filled = 0  # rows that have a step

    def __len__(self) -> int:
        return self._filled * self.count

    @property
    def capacity(self) -> int:
        """The largest number of transitions that the memory holds."""
        return self.rows * self.count

    def add(self, observations: np.ndarray, actions: np.ndarray, step: EnvironmentStep) -> None:
        """Store a step of all environments: the observations before it (N, ...), actions, and results."""
        row, following = self._next, (self._next + 1) % len(self._rewards)
        self._forget(following)
        self._observations[row], self._actions[row] = observations, actions
        self._rewards[row] = step.rewards
        self._terminated[row], self._truncated[row] = step.terminated, step.truncated
        self._observations[following] = step.observations
        for number, environment in enumerate(step.ended):
            if not step.terminated[environment]:
                self._finals[row * self.count + int(environment)] = step.final_observations[number].copy()
        self._next, self._filled = following, min(self._filled + 1, self.rows)

    def extend(self, state: Mapping[str, Any]) -> np.ndarray:
        """Add the steps of an actor's memory; episodes are cut off after its newest step.

        Args:
            state: the other memory's state; it was never full, and its steps fit into this one.

        Returns the transitions' indices, as in a batch, oldest step first.
        """
        steps = int(state["filled"])
        rows = (self._next + np.arange(steps)) % len(self._rewards)
        finals = dict(zip(np.asarray(state["final_indices"]).tolist(), state["final_observations"], strict=True))
        observations = state["observations"]
        for t in range(steps):
            terminated, truncated = state["terminated"][t], state["truncated"][t]
            if t == steps - 1:
                truncated = truncated | ~terminated
            ended = np.flatnonzero(terminated | truncated)
            final = [finals.get(t * self.count + int(number), observations[t + 1, number]) for number in ended]
            step = EnvironmentStep(
                observations[t + 1], state["rewards"][t], terminated, truncated, ended, np.array(final)
            )
            self.add(observations[t], state["actions"][t], step)
        return (rows[:, np.newaxis] * self.count + np.arange(self.count)).reshape(-1)

    def sample(self, size: int, rng: np.random.Generator) -> Transitions:
        """Draw ``size`` transitions at random, with repetition. Raises UserError if the memory is empty."""
        self._check_not_empty()
        ages = rng.integers(0, len(self), size)
        row, environment = np.divmod(ages, self.count)
        indices = (self._oldest + row) % len(self._rewards) * self.count + environment
        return self._transitions(indices, np.ones(size, np.float32))

    def all(self) -> Transitions:
        """Return all transitions, oldest step first, with weights 1."""
        rows = (self._oldest + np.arange(self._filled)) % len(self._rewards)
        indices = (rows[:, np.newaxis] * self.count + np.arange(self.count)).reshape(-1)
        return self._transitions(indices, np.ones(len(indices), np.float32))

    def state(self) -> dict[str, Any]:
        """Return the contents for :meth:`restore`, as views that are valid until the next step."""
        return {
            **{name: array[: self._used] for name, array in self._arrays().items()},
            "final_indices": np.array(list(self._finals), np.int64),
            "final_observations": np.array(list(self._finals.values()), self._observations.dtype),
            "next": self._next,
            "filled": self._filled,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the contents by a state's. Raises UserError for a memory of other sizes."""
        filled, position = int(state["filled"]), int(state["next"])
        for name, array in self._arrays().items():
            saved = np.asarray(state[name])
            is_full = position != filled
            fits = len(saved) == len(array) if is_full else len(saved) == filled + 1 <= len(array)
            if saved.shape[1:] != array.shape[1:] or not fits:
                raise UserError(
                    f"the saved replay memory has {name} of shape {saved.shape}, this one has {array.shape}; resume "
                    "with the same environment, number of environments and capacity"
                )
            array[: len(saved)] = saved
        self._finals = dict(
            zip(np.asarray(state["final_indices"]).tolist(), np.array(state["final_observations"]), strict=True)
        )
        self._next, self._filled = position, filled

    @property
    def _oldest(self) -> int:
        return (self._next - self._filled) % len(self._rewards)

    @property
    def _used(self) -> int:
        return min(self._filled + 1, len(self._rewards))

    def _array(self, rows: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        try:
            return np.zeros((rows, self.count, *shape), dtype)  # zeros take memory only when they are written
        except (MemoryError, ValueError) as error:  # ValueError: more bytes than an address can name
            raise UserError(
                f"a replay memory of {self.capacity} transitions has no room: {error}; lower its capacity"
            ) from None

    def _arrays(self) -> dict[str, np.ndarray]:
        return {
            "observations": self._observations,
            "actions": self._actions,
            "rewards": self._rewards,
            "terminated": self._terminated,
            "truncated": self._truncated,
        }

    def _forget(self, row: int) -> None:
        """Drop the final observations of a row that is about to be overwritten."""
        if self._finals and self._filled == self.rows:
            for index in range(row * self.count, (row + 1) * self.count):
                self._finals.pop(index, None)

    def _check_not_empty(self) -> None:
        if not self._filled:
            raise UserError("the replay memory is empty; put steps into it before drawing batches")

    def _transitions(self, indices: np.ndarray, weights: np.ndarray) -> Transitions:
        """Return the transitions at these indices, row x N + environment."""
        row, environment = np.divmod(indices, self.count)
        last, rewards, discounts = self._sums(row, environment)
        return Transitions(
            observations=self._observations[row, environment],
            actions=self._actions[row, environment],
            rewards=rewards,
            next_observations=self._next_observations(last, environment),
            terminated=self._terminated[last, environment],
            weights=weights,
            indices=indices,
            discounts=discounts,
        )

    def _sums(self, row: np.ndarray, environment: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return each transition's last row, discounted sum of rewards, and last discount."""
        if self.n == 1:
            return row, self._rewards[row, environment], np.full(len(row), self.discount, np.float32)
        rows = (row[:, np.newaxis] + np.arange(self.n)) % len(self._rewards)
        places = rows, environment[:, np.newaxis]
        is_last = self._terminated[places] | self._truncated[places] | (rows == (self._next - 1) % len(self._rewards))
        counts = np.where(is_last.any(axis=1), is_last.argmax(axis=1) + 1, self.n)
        factors = np.where(np.arange(self.n) < counts[:, np.newaxis], self._powers[:-1], np.float32(0))
        sums = (factors * self._rewards[places]).sum(axis=1)
        return rows[np.arange(len(rows)), counts - 1], sums, self._powers[counts]

    def _next_observations(self, row: np.ndarray, environment: np.ndarray) -> np.ndarray:
        observations = self._observations[(row + 1) % len(self._rewards), environment]
        for number in np.flatnonzero(self._truncated[row, environment] & ~self._terminated[row, environment]):
            observations[number] = self._finals[int(row[number] * self.count + environment[number])]
        return observations


CHILDREN = 64  # many, so that a tree has few levels: each level takes several numpy calls


class SumTree:
    """A tree of sums over weights, to draw items in proportion to their weights.

    Each level has the sums of :data:`CHILDREN` neighbours of the level below; the lowest level has the weights.
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
        """Return the weights of items, given as an array or a slice."""
        return self._levels[0].reshape(-1)[items]

    def set(self, items: np.ndarray, weights: np.ndarray) -> None:
        """Change the weights of items; for a repeated item the last weight counts."""
        self._levels[0].reshape(-1)[items] = weights
        for lower, upper in pairwise(self._levels):
            items = items // CHILDREN
            upper.reshape(-1)[items] = lower[items].sum(axis=1)

    def find(self, points: np.ndarray) -> np.ndarray:
        """Return, for each point from 0 up to ``total``, the first item with a cumulative weight above it.

        Items without weight are never found.
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
    """Replay memory that draws transitions with large errors more often (Schaul et al. 2016, proportional).

    A transition's probability is proportional to (its error + ``floor``) to the power of ``alpha``; new transitions
    have the largest error so far. The weight is (size x probability) to the power of -``beta``, divided by the batch's
    largest.

    Args:
        spaces, capacity, count, n, discount: as for :class:`ReplayMemory`.
        alpha: 0 draws uniformly, 1 in proportion to errors.
        beta: how far weights correct for unequal probabilities, up to 1; it can be set at any time.
        floor: added to errors, so that transitions without an error are drawn, too.
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
        self._largest = 1.0  # the largest priority so far

    def add(self, observations: np.ndarray, actions: np.ndarray, step: EnvironmentStep) -> None:
        """Store a step of all environments, with the largest priority so far."""
        row = self._next
        super().add(observations, actions, step)
        environments = np.arange(self.count)
        # The row after the newest step has observations only, and no transitions.
        items = np.concatenate([row * self.count + environments, self._next * self.count + environments])
        self._tree.set(items, np.repeat([self._largest, 0.0], self.count))

    def sample(self, size: int, rng: np.random.Generator) -> Transitions:
        """Draw ``size`` transitions by priority, one from each of ``size`` equal parts of their sum."""
        self._check_not_empty()
        points = (np.arange(size) + rng.random(size)) * (self._tree.total / size)
        indices = self._tree.find(points)
        weights = (self._tree.weights(indices) * (len(self) / self._tree.total)) ** -self.beta
        return self._transitions(indices, (weights / weights.max()).astype(np.float32))

    def update_priorities(self, indices: np.ndarray, errors: np.ndarray) -> None:
        """Set the priorities of a batch's transitions to their new temporal-difference errors."""
        priorities = (np.abs(errors).astype(np.float64) + self.floor) ** self.alpha
        if not np.all(np.isfinite(priorities)):
            raise UserError("errors are not finite; the values diverge: lower the learning rate")
        keeps = indices // self.count != self._next  # a step since then may have replaced the oldest transitions
        self._tree.set(indices[keeps], priorities[keeps])
        self._largest = max(self._largest, float(priorities.max()))

    def state(self) -> dict[str, Any]:
        """Return the contents of the memory and the priorities."""
        priorities = self._tree.weights(slice(self._used * self.count))
        return {**super().state(), "priorities": priorities, "largest": self._largest, "beta": self.beta}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state, as in :meth:`ReplayMemory.restore`."""
        super().restore(state)
        priorities = np.asarray(state["priorities"], np.float64)
        self._tree.set(np.arange(len(priorities)), priorities)
        self._largest, self.beta = float(state["largest"]), float(state["beta"])
