"""A slice on a device: for a server all of whose workers are in its process and compute on that device.

Neither gradients nor values cross to host memory. Whatever a thread is given has been computed: a worker hands a
gradient over when its kernels have ended (:meth:`dsinga.ops.Ops.hand_over`), and an update ends with its kernels. So
the rules of :mod:`dsinga.server.shard` hold for streams as they do for threads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dsinga.ops import Array, Ops
from dsinga.server.served_slice import ServedSlice, SliceSpec, UpdateBlock
from dsinga.training import Updater


class DeviceSlice(ServedSlice):
    """A slice whose value, updater's state and gradients are on a device; only copies for readers come to the host.

    ``ops`` are the kernels of the server, which are not those of a worker.
    """

    def __init__(self, spec: SliceSpec, groups: Iterable[int], start: int, ops: Ops):
        super().__init__(spec, groups, start)
        self._ops = ops

    def put(self, value: np.ndarray, state: Mapping[str, np.ndarray] | None, updater: Updater) -> None:
        """Copy the initial value, and the updater's state of a resumed run, to the device."""
        if self.filled:
            return
        super().put(value, state, updater)
        with self._ops.serialised():
            self.value = self._ops.asarray(self.value)
            self.state = {name: self._ops.asarray(array) for name, array in self.state.items()}

    def move(self, memory: np.ndarray) -> None:
        """Do nothing: the value stays on the device."""

    def _update_blocks(self, group: int, updater: Updater) -> list[UpdateBlock]:
        accumulator, updater = self.accumulators[group], updater.of(self.spec.whole_param, self.spec.shape)
        parts = accumulator.parts
        change = functools.partial(self._change, parts, accumulator.version, updater)
        return [UpdateBlock(self.value.size, change)] if parts else []

    def _change(self, parts: Sequence[Array], step: int, updater: Updater) -> None:
        """Update by the sum of gradients, added in their order; a slice that is not trainable is replaced by it."""
        with self._ops.serialised():
            total = functools.reduce(self._ops.add, map(self._ops.asarray, parts))
            if not self.spec.trainable:
                self.value[:] = total
                return
            scales = self.spec.lr_scale, self.spec.wd_scale
            update = updater.create_update(step, self.value, total, self.state, *scales, self.spec.shape)
            self._ops.update([update], updater.conf.clip_norm)

    def read(self) -> Array:
        """Return the value itself, which must not be changed."""
        return self.value

    def _value_copy(self) -> Array:
        with self._ops.serialised():
            return self.value.copy()

    def contents(self, state: bool = True) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return copies of the value, and of the updater's state unless ``state`` is False, in host memory."""
        value, slots = super().contents(state)
        with self._ops.serialised():
            return self._ops.to_numpy(value), {name: self._ops.to_numpy(array) for name, array in slots.items()}

    def copy(self, state: bool = True) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return :meth:`contents` after the same update."""
        with self.lock:
            return self.contents(state)
