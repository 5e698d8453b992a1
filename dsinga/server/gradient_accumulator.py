"""Collecting the gradients of one slice from the partitions of a worker group, and adding them in partition order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dsinga.ops import SparseRows, buffers
from dsinga.ops.sparse import add_up


class GradientAccumulator:
    """The gradients of one slice from the partitions of one worker group, for the group's step ``version``.

    Not thread-safe: the shard holds its lock, except for :attr:`parts` and :meth:`total`. These need no lock, since
    they run after the last gradient of a step has arrived and before the version changes, when no thread adds any.
    """

    def __init__(self, contributors: Sequence[int], version: int):
        assert list(contributors) == sorted(set(contributors)), contributors
        self.version = version
        self._next_version = version + 1
        self.copy: np.ndarray | None = None  # the value that the group gets at this version, see ServedSlice.copy_for
        self.changes_seen = 0  # how often the value had changed before ``copy`` was made
        self._contributors = contributors
        self._parts: dict[int, np.ndarray | SparseRows | None] = {}

    def add(self, step: int, partition: int, gradient: np.ndarray | SparseRows | None) -> bool:
        """Add the gradient of ``partition`` for ``step``; return whether it was the last missing one.

        A repeated gradient is dropped. None means that the step is skipped, as it must be by all partitions.
        """
        assert step <= self.version, f"a push for step {step} during step {self.version}"
        assert partition in self._contributors, f"a push of partition {partition}, not one of {self._contributors}"
        if step < self.version or partition in self._parts:
            return False
        self._parts[partition] = gradient
        return len(self._parts) == len(self._contributors)

    @property
    def complete(self) -> bool:
        """Whether all partitions have contributed, so that an update of the value may be running."""
        return len(self._parts) == len(self._contributors)

    @property
    def idle(self) -> bool:
        """Whether no partition has contributed to this step yet."""
        return not self._parts

    @property
    def parts(self) -> list[np.ndarray | SparseRows]:
        """The gradients in the order of the partitions; an empty list if the step is skipped.

        Asserts that either all partitions skip the step or none.
        """
        parts = [part for partition in self._contributors if (part := self._parts[partition]) is not None]
        assert len(parts) in (0, len(self._contributors)), f"step {self.version} is skipped by some"
        return parts

    def total(self) -> np.ndarray | SparseRows | None:
        """Return the sum of the gradients, added in their order, or None if the step is skipped; read-only.

        The sum of sparse rows only is sparse. The sum may be written into one of the first two gradients.
        """
        parts = self.parts
        if not parts:
            return None
        dense = [part for part in parts if not isinstance(part, SparseRows)]
        if len(dense) < len(parts):
            return add_up(parts)
        if len(dense) == 1:
            return dense[0]
        writeable = [part for part in dense[:2] if part.flags.writeable]  # not in the memory of another process
        total = np.add(dense[0], dense[1], out=writeable[0] if writeable else buffers.empty(dense[0].shape))
        for part in dense[2:]:
            np.add(total, part, out=total)
        return total

    def advance(self) -> None:
        """Advance to the next version and drop the gradients of this one."""
        self.version, self._next_version = self._next_version, self._next_version + 1
        self._parts = {}
        self.copy = None

    @property
    def next_step(self) -> int:
        """The first step for which no gradient is part of the value, or of an update that is running."""
        return self._next_version if self.complete else self.version

    def restart(self, step: int) -> None:
        """Go on at ``step``, without the gradients of a step that is not complete; a running update ends before."""
        self._next_version = step
        if not self.complete:
            self.advance()

    def pending(self) -> str:
        """Return a text that says which partitions are missing."""
        return f"at step {self.version}: {describe_arrivals(self._parts, self._contributors)}"


def describe_arrivals(arrivals: Iterable[int], contributors: Sequence[int]) -> str:
    """Return a text that says which partitions have contributed: "partitions 0, 2 have come, 1 is missing"."""
    names = [str(partition) for partition in sorted(arrivals)]
    missing = [str(partition) for partition in contributors if str(partition) not in names]
    if not missing:
        return "all partitions have come, the update is running"
    rest = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if not names:
        return f"no partition has come, {rest}"
    if len(names) == 1:
        return f"partition {names[0]} has come, {rest}"
    return f"partitions {', '.join(names)} have come, {rest}"
