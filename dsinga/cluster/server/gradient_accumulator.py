"""Collects the gradients of one slice (a part of a param) from a group's workers, and adds them in worker order."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.base.errors import RunError
from dsinga.ops import SparseRows
from dsinga.ops.block_sums import add_gradients, add_in_tree, halves
from dsinga.ops.sparse import add_up, scaled, values_of
from dsinga.ops.update import sum_of_squares


class Push(NamedTuple):
    """The header of a message of gradients, a push: the generation, worker group, step and worker.

    With ``skip`` there are no gradients; all workers of a group skip a step, or none. The worker may push the sum of
    ``blocks`` blocks, from number ``worker`` on.
    """

    generation: int
    group: int
    step: int
    worker: int
    skip: bool = False
    blocks: int = 1


class Generations:
    """Tells which generation of each group messages must have, to refuse messages of abandoned processes.

    The shard holds its lock when it calls :meth:`set`.
    """

    def __init__(self, generation: int):
        self.first = generation
        self._generations: dict[int, int] = {}

    def set(self, group: int, generation: int) -> None:
        """Accept only messages of this generation of a group."""
        self._generations[group] = generation

    def is_current(self, group: int, generation: int) -> bool:
        """Whether messages of this generation of a group are accepted."""
        return generation == self._generations.get(group, self.first)

    def check(self, group: int, generation: int, message: str) -> None:
        """Raise RunError for a message, such as "a push of group 1", of another generation."""
        if not self.is_current(group, generation):
            current = self._generations.get(group, self.first)
            raise RunError(f"{message} is of generation {generation}, but the group is of generation {current}")


class GradientAccumulator:
    """Collects the gradients of one slice from the workers of one group, for the group's step ``version``.

    Gradients are added in the order of the workers or, ``in_tree``, of blocks (:mod:`dsinga.ops.block_sums`).

    Not thread-safe: the shard holds its lock, except for :attr:`parts` and :meth:`total`, which run after a step's last
    gradient.
    """

    def __init__(self, contributors: Sequence[int], version: int, in_tree: bool = False):
        assert list(contributors) == sorted(set(contributors)), contributors
        self.version = version
        self._next_version = version + 1
        self.copy: np.ndarray | None = None  # the value that the group gets at this version, see ServedSlice.copy_for
        self.changes_seen = 0  # how often the value had changed before ``copy`` was made
        self._contributors, self._in_tree = contributors, in_tree
        self._missing = {*contributors}
        self._parts: dict[int, np.ndarray | SparseRows | None] = {}
        self._sum: np.ndarray | SparseRows | None = None  # in place of the parts, see reduce
        self.factor = 1.0  # multiplies the sum

    def add(self, step: int, worker: int, gradient: np.ndarray | SparseRows | None, blocks: int = 1) -> bool:
        """Add the gradient of ``worker`` for ``step``; return whether it was the last missing one.

        A repeated gradient is dropped. None skips the step; all workers must skip it. It may be the sum of ``blocks``
        blocks, from number ``worker`` on.
        """
        assert step <= self.version, f"a push for step {step} during step {self.version}"
        members = [each for each in self._contributors if worker <= each < worker + blocks]
        assert members, f"a push of worker {worker}, not one of {self._contributors}"
        if step < self.version or members[0] not in self._missing:
            return False
        self._parts[members[0]] = gradient
        self._missing.difference_update(members)
        return not self._missing

    @property
    def complete(self) -> bool:
        """Whether all workers have contributed, so that an update may be running."""
        return not self._missing

    @property
    def idle(self) -> bool:
        """Whether this step has no gradient of any worker yet."""
        return not self._parts

    @property
    def parts(self) -> list[np.ndarray | SparseRows]:
        """The gradients in worker order, at most two sums of blocks, or only their sum; empty if skipped."""
        if self._sum is not None:
            return [self._sum]
        parts = {worker: part for worker in sorted(self._parts) if (part := self._parts[worker]) is not None}
        assert len(parts) in (0, len(self._parts)), f"step {self.version} is skipped by some"
        if self._in_tree and len(parts) > 2:
            sums = {half[0]: {worker: parts[worker] for worker in half} for half in halves([*parts])}
            parts = {worker: add_in_tree(half, add_gradients) for worker, half in sums.items()}
            self._parts = {**parts}  # since the sums may be in the memory of the gradients
        return [*parts.values()]

    def total(self) -> np.ndarray | SparseRows | None:
        """Return the ordered sum of the gradients, times :attr:`factor`; None if the step is skipped. Read-only.

        It may be written into one of the first two gradients.
        """
        total = self._total()
        return total if total is None or self.factor == 1.0 else scaled(total, self.factor)

    def reduce(self) -> float | None:
        """Replace the gradients by their sum; return its sum of squares, None if the step is skipped."""
        self._sum = self._total()
        self._parts = dict.fromkeys(self._parts)
        return None if self._sum is None else sum_of_squares(values_of(self._sum))

    def _total(self) -> np.ndarray | SparseRows | None:
        parts = self.parts
        if not parts:
            return None
        if any(isinstance(part, SparseRows) for part in parts):
            return add_up(parts)
        return functools.reduce(add_gradients, parts)

    def advance(self) -> None:
        """Go on to the next version and drop this one's gradients."""
        self.version, self._next_version = self._next_version, self._next_version + 1
        self.drop()
        self.copy = None

    def drop(self) -> None:
        """Drop the gradients of this version."""
        self._parts, self._sum, self.factor = {}, None, 1.0
        self._missing = {*self._contributors}

    @property
    def next_step(self) -> int:
        """The first step without gradients in the value or in a running update."""
        return self._next_version if self.complete else self.version

    def restart(self, step: int) -> None:
        """Go on at ``step``, without an incomplete step's gradients; a running update ends first."""
        self._next_version = step
        if not self.complete:
            self.advance()

    def pending(self) -> str:
        """Name the workers with missing gradients, for errors."""
        arrived = {*self._contributors} - self._missing
        return f"at step {self.version}: {describe_arrivals(arrived, self._contributors)}"


def describe_arrivals(arrivals: Iterable[int], contributors: Sequence[int]) -> str:
    """Return words for the workers that have contributed: "workers 0, 2 have come, 1 is missing"."""
    names = [str(worker) for worker in sorted(arrivals)]
    missing = [str(worker) for worker in contributors if str(worker) not in names]
    if not missing:
        return "all workers have come, the update is running"
    rest = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if not names:
        return f"no worker has come, {rest}"
    if len(names) == 1:
        return f"worker {names[0]} has come, {rest}"
    return f"workers {', '.join(names)} have come, {rest}"


class GroupStaleness(NamedTuple):
    """How stale a worker group's gradients were: the total and the largest, over ``updates`` of slices.

    A gradient is computed with a pulled value. Its staleness counts others' updates of the slice between this pull and
    the update by the gradient.
    """

    group: int
    updates: int
    total: int
    largest: int


class StalenessMeter:
    """Adds up the staleness of gradients by worker group, for dashboards. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[int, GroupStaleness] = {}

    def add(self, group: int, staleness: int) -> None:
        """Count an update of a slice by a gradient of this staleness."""
        with self._lock:
            _, updates, total, largest = self._groups.get(group, (group, 0, 0, 0))
            self._groups[group] = GroupStaleness(group, updates + 1, total + staleness, max(largest, staleness))

    def read(self) -> list[GroupStaleness]:
        """Return the counts of each worker group with updates since the last call."""
        with self._lock:
            groups, self._groups = self._groups, {}
        return [groups[group] for group in sorted(groups)]
