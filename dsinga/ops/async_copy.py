"""Asynchronous copies between host and device memory, and their stand-in for backends in host memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from dsinga.ops.types import Array


class AsyncCopy(ABC):
    """A copy between host and device memory that was started; its source must not change before :meth:`result`."""

    @abstractmethod
    def result(self) -> Array:
        """Return the copy: an array that the device's next kernels may use, or a complete array of the host.

        The caller waits for a copy to the host; the device itself waits for a copy to the device. Further calls return
        the same array.
        """


@dataclass(frozen=True, eq=False)
class FinishedCopy(AsyncCopy):
    """The array itself, for backends whose arrays are in host memory: nothing is copied."""

    array: Array

    def result(self) -> Array:
        """Return the array, not a copy."""
        return self.array
