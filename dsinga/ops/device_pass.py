"""The interface of passes that a device repeats: recorded with fixed memory, captured as one graph, then launched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from dsinga.ops.types import Array, AsyncCopy


class NotCapturable(RuntimeError):
    """A pass cannot be captured, because the host reads or computes something in it; the message says what."""


class RecordedStep:
    """Stands for the step in a pass that is recorded: layers take what depends on it from ``Context.step_number``."""

    def __repr__(self) -> str:
        return "the step of a recorded pass"


class DevicePass(ABC):
    """The device memory and, once it is captured, the graph of one pass over batches of fixed shapes, or its pieces.

    Kernels that are called within :meth:`recording` take all that changes from step to step from device memory at fixed
    addresses: the batch, the step, and the numbers that follow it. Within :meth:`capturing`, too, they do not run but
    become a graph, which :meth:`launch` runs as often as one likes. Used by one thread.
    """

    @abstractmethod
    def put(self, name: str, array: np.ndarray | AsyncCopy | Array) -> Array:
        """Copy an array of the batch to its buffer on the device, and return the buffer.

        The array of a name has the same shape and dtype in each pass.
        """

    @abstractmethod
    def recording(self, step: int) -> AbstractContextManager[None]:
        """Return a context in which kernels take the numbers of ``step`` from the block, and memory from its pool."""

    @abstractmethod
    def capturing(self) -> AbstractContextManager[None]:
        """Return a context, within :meth:`recording`, whose kernels become the graph instead of running."""

    @abstractmethod
    def cut(self, action: Callable[[], None]) -> None:
        """While kernels become a graph, end it and begin another: :meth:`launch` calls ``action`` between the two.

        Does nothing while they run.
        """

    @property
    @abstractmethod
    def captured(self) -> bool:
        """Whether there is a graph to launch."""

    @abstractmethod
    def launch(self, step: int) -> None:
        """Run the graph, or its pieces and what is done between them, with the numbers of ``step``.

        Raises NotCapturable, with nothing changed, where this step computes other formulas than the captured one.
        """

    @abstractmethod
    def read(self) -> list[float]:
        """Wait for the first pass that was not read; return its numbers of :meth:`dsinga.ops.Ops.defer_read`.

        If any of them is not finite, that pass has changed no param, nor does a launch after it, until :meth:`cancel`.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Wait for all launches, forget their numbers, and let later ones change params again."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The bytes of device memory that it holds."""
