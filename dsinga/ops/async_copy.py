"""Copies between the host's memory and a device's that may be under way, for backends of either kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from dsinga.ops.types import Array


class AsyncCopy(ABC):
    """A copy that was begun. What is copied must not be changed before :meth:`result` has been called."""

    @abstractmethod
    def result(self) -> Array:
        """Return the copy: for a device, an array that its next kernels may use; for the host, one that is all there.

        Only the way to the host makes the caller wait; the way up lets the device wait, where it must. May be called
        more than once and gives the same array again.
        """


@dataclass(frozen=True, eq=False)
class FinishedCopy(AsyncCopy):
    """What had no way to go: the backend's arrays live in host memory."""

    array: Array

    def result(self) -> Array:
        """Return the array itself, not a copy."""
        return self.array
