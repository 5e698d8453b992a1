"""What the partitions of one worker group have given to one slice in the step that the group is at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dsinga.ops import SparseRows, buffers
from dsinga.ops.sparse import add_up


class GradientAccumulator:
    """The gradients of one slice from one worker group, at ``version``: the number of the group's step that comes next.

    Not thread-safe: the shard holds its lock around everything but :attr:`parts` and :meth:`total`, which need none,
    because they run after the last contribution to a step has come and before the version changes; until then nobody
    else writes.
    """

    def __init__(self, contributors: Sequence[int], version: int):
        assert list(contributors) == sorted(set(contributors)), contributors
        self.version = version
        self.copy: np.ndarray | None = None  # the value as the group sees it at this version, see ServedSlice.copy_for
        self._contributors = contributors
        self._parts: dict[int, np.ndarray | SparseRows | None] = {}

    def add(self, step: int, partition: int, gradient: np.ndarray | SparseRows | None) -> bool:
        """Take what ``partition`` gives to ``step``; a repeated one is dropped. True if it was the last missing one.

        None is for a step that is skipped, by all partitions.
        """
        assert step <= self.version, f"a push for step {step} during step {self.version}"
        assert partition in self._contributors, f"a push of partition {partition}, not one of {self._contributors}"
        if step < self.version or partition in self._parts:
            return False
        self._parts[partition] = gradient
        return len(self._parts) == len(self._contributors)

    @property
    def complete(self) -> bool:
        """Whether all contributions have come, so that the value may be changing."""
        return len(self._parts) == len(self._contributors)

    @property
    def idle(self) -> bool:
        """Whether no contribution to the running step has come yet."""
        return not self._parts

    @property
    def parts(self) -> list[np.ndarray | SparseRows]:
        """What has come, in the order of the partitions, whatever the order they came in; nothing where it is skipped.

        Some skip a step and others do not: that must not be.
        """
        parts = [part for partition in self._contributors if (part := self._parts[partition]) is not None]
        assert len(parts) in (0, len(self._contributors)), f"step {self.version} is skipped by some"
        return parts

    def total(self) -> np.ndarray | SparseRows | None:
        """Return the sum of the parts, added in their order, None for a step that is skipped; not to be changed.

        Rows alone, of partitions that all have given rows. One of the first two parts may hold the sum.
        """
        parts = self.parts
        if not parts:
            return None
        dense = [part for part in parts if not isinstance(part, SparseRows)]
        if len(dense) < len(parts):
            return add_up(parts)
        if len(dense) == 1:
            return dense[0]
        own = [part for part in dense[:2] if part.flags.writeable]  # others lie in memory of another process
        total = np.add(dense[0], dense[1], out=own[0] if own else buffers.empty(dense[0].shape))
        for part in dense[2:]:
            np.add(total, part, out=total)
        return total

    def advance(self) -> None:
        """Go on to the next version and forget the contributions."""
        self.version += 1
        self._parts = {}
        self.copy = None

    def pending(self) -> str:
        """Say in words which contributions are missing."""
        return f"at step {self.version}: {came(self._parts, self._contributors)}"


def came(there: Iterable[int], contributors: Sequence[int]) -> str:
    """Say which partitions have given their part: "partitions 0, 2 have come, 1 is missing"."""
    have = [str(partition) for partition in sorted(there)]
    missing = [str(partition) for partition in contributors if str(partition) not in have]
    if not missing:
        return "all partitions have come, the update is running"
    lack = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if not have:
        return f"no partition has come, {lack}"
    return (
        f"partition {have[0]} has come, {lack}" if len(have) == 1 else f"partitions {', '.join(have)} have come, {lack}"
    )
