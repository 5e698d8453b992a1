"""Keeps a worker's params: received from servers, cached by rows, or replicated; cuts gradients into slices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from dsinga.base.buffers import address
from dsinga.cluster.server import Slice
from dsinga.ops import Array, Ops, SparseRows
from dsinga.ops.sparse import no_rows
from dsinga.training.local_updater import LocalUpdater


def part_of(gradient: Array | SparseRows, slice_: Slice) -> Array | SparseRows:
    """Cut a slice's part out of its param's gradient: flat, or sparse rows if the slice has a width."""
    if not isinstance(gradient, SparseRows):
        return gradient[slice_.start : slice_.stop]
    part = gradient.part(slice_.start // slice_.width, slice_.stop // slice_.width)
    return SparseRows(part.rows, part.values.reshape(-1, slice_.width), (part.shape[0], slice_.width))


Shape = tuple[int, ...]


class ParamHome(ABC):
    """Where a worker keeps one param: its value, and the slices that arrive.

    Used by one thread at a time. Values are read-only.

    Args:
        slices: its slices on servers, in order.
        lasting_share: None for trainable params. A lasting param (a layer's state between steps) is replaced in each
            step by the sum of the workers' pushes. A worker without a new value pushes this share of the old one.
    """

    def __init__(self, name: str, shape: Shape, slices: Sequence[Slice], lasting_share: float | None = None):
        self.name, self.shape, self.slices, self.lasting_share = name, shape, slices, lasting_share
        self.takes_rows = bool(slices) and all(slice_.width for slice_ in slices)
        self.cached: Array | None = None  # the value of the present step, once it has been looked up

    @property
    def is_lasting(self) -> bool:
        """Whether the param is state that is replaced, not trained."""
        return self.lasting_share is not None

    def value(self) -> Array:
        """Return the value of the present step, once all its slices have arrived."""
        if self.cached is None:
            self.cached = self._assemble().reshape(self.shape)
        return self.cached

    @abstractmethod
    def _assemble(self) -> Array:
        """Join the slices; return the value in any shape."""

    def split(self, gradient: Array | SparseRows) -> Iterator[tuple[Slice, Array | SparseRows]]:
        """Yield each slice with its part of a gradient."""
        if isinstance(gradient, SparseRows):
            flat = gradient if self.takes_rows else gradient.dense().reshape(-1)
        else:
            flat = gradient.reshape(-1)
        for slice_ in self.slices:
            yield slice_, part_of(flat, slice_)

    def default_gradient(self) -> Array | SparseRows:
        """Return the gradient of a worker without one: zeros, no rows, or its share of a lasting param."""
        if self.lasting_share is not None:
            return self.value() * np.float32(self.lasting_share)
        return no_rows(self.shape) if self.takes_rows else np.zeros(self.shape, np.float32)

    def pushed(self, slice_: Slice) -> None:
        """Forget the value of a slice after its gradient was sent."""
        self.cached = None

    @abstractmethod
    def arrived(self, slice_: Slice, array: Array | SparseRows, step: int) -> None:
        """Store the array that a server has sent for a slice at ``step``."""

    def memory(self, slice_: Slice) -> np.ndarray | None:
        """Return memory for the next value of a slice, float32 (size,); None if values are stored otherwise."""
        return None

    def versions(self) -> dict[int, int]:
        """Return which version of each slice this worker has, by id, so that servers send only changed rows."""
        return {}

    def forget(self) -> None:
        """Forget all values."""
        self.cached = None


class ServedHome(ParamHome):
    """A param that the servers send in each step."""

    def __init__(self, name: str, shape: Shape, slices: Sequence[Slice], lasting_share: float | None = None):
        super().__init__(name, shape, slices, lasting_share)
        self._value: Array | None = None  # of a single slice, in the memory of its server or of the transport
        self._joined: np.ndarray | None = None

    def _assemble(self) -> Array:
        if self._value is not None:
            return self._value
        assert self._joined is not None
        return _read_only(self._joined)

    def memory(self, slice_: Slice) -> np.ndarray:
        """Return the memory of a slice's value, reused in each step because new memory is slow."""
        if self._joined is None:
            self._joined = np.empty(self.slices[-1].stop, np.float32)
        return self._joined[slice_.start : slice_.stop]

    def pushed(self, slice_: Slice) -> None:
        """Forget the value of a slice after its gradient was sent."""
        super().pushed(slice_)
        self._value = None

    def arrived(self, slice_: Slice, array: Array | SparseRows, step: int) -> None:
        """Store the value of a slice, unless it has arrived in its memory."""
        if len(self.slices) == 1 and self._joined is None:
            self._value = array
            return
        memory = self.memory(slice_)
        if not isinstance(array, np.ndarray) or address(memory) != address(array):
            memory[:] = array

    def forget(self) -> None:
        """Forget all values."""
        super().forget()
        self._value = None


class DeviceHome(ParamHome):
    """A param that its servers keep on the worker's GPU: neither values nor gradients leave it."""

    def __init__(self, name: str, shape: Shape, slices: Sequence[Slice], lasting_share: float | None, ops: Ops):
        super().__init__(name, shape, slices, lasting_share)
        self._ops = ops
        self._value: Array | None = None  # of a single slice the server's array, else memory of the worker

    def _assemble(self) -> Array:
        return self._value

    def arrived(self, slice_: Slice, array: Array | SparseRows, step: int) -> None:
        """Store the value of a slice; several are joined."""
        if len(self.slices) == 1:
            self._value = array
            return
        if self._value is None:
            self._value = self._ops.xp.empty(self.slices[-1].stop, np.float32)
        self._value[slice_.start : slice_.stop] = array

    def default_gradient(self) -> Array:
        """Return zeros, or the worker's share of a lasting param, on the device."""
        if self.lasting_share is not None:
            default = self.value() * np.float32(self.lasting_share)
        else:
            default = self._ops.xp.zeros(self.shape, np.float32)
        return self._ops.hand_over(default).result()

    def pushed(self, slice_: Slice) -> None:
        """Forget the value of a slice after its gradient was sent."""
        super().pushed(slice_)
        if len(self.slices) == 1:
            self._value = None


class CachedRowsHome(ParamHome):
    """A worker's cache of an embedding table, refreshed by the rows that servers have changed."""

    def __init__(self, name: str, shape: Shape, slices: Sequence[Slice], lasting_share: float | None = None):
        super().__init__(name, shape, slices, lasting_share)
        self._table = np.empty(slices[-1].stop, np.float32)
        self._versions: dict[int, int] = {}

    def _assemble(self) -> Array:
        return _read_only(self._table)

    def arrived(self, slice_: Slice, array: Array | SparseRows, step: int) -> None:
        """Update a slice to version ``step``, by its whole value or the changed rows."""
        values = self._table[slice_.start : slice_.stop]
        if isinstance(array, SparseRows):
            values.reshape(array.shape)[array.rows] = array.values
        else:
            values[:] = array
        self._versions[slice_.id] = step

    def versions(self) -> dict[int, int]:
        """Return the version of each slice that has arrived, by id."""
        return self._versions

    def forget(self) -> None:
        """Forget all values."""
        super().forget()
        self._versions.clear()


class ReplicatedHome(ParamHome):
    """A param that each worker keeps and updates itself, by the summed gradients that servers send.

    Without slices on servers, it uses the worker's own gradient of the whole batch.
    """

    def __init__(
        self, name: str, shape: Shape, slices: Sequence[Slice], replicas: LocalUpdater,
        lasting_share: float | None = None,
    ):  # fmt: skip
        super().__init__(name, shape, slices, lasting_share)
        self._replicas = replicas

    def _assemble(self) -> Array:
        value = self._replicas.values[self.name]
        return _read_only(value) if type(value) is np.ndarray else value

    def arrived(self, slice_: Slice, array: Array | SparseRows, step: int) -> None:
        """Update a slice by the sum of the workers' gradients of step ``step`` - 1."""
        self._replicas.update(step - 1, self.name, slice_.start, array)

    def push(self, gradient: Array | SparseRows) -> None:
        """Update a param without slices by its gradient of the present step."""
        self.cached = None
        self._replicas.push(self.name, gradient)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
