"""Params that a partition keeps and updates itself, as a server would."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from dsinga.net import Param
from dsinga.ops import Array, Ops, SparseRows, Update
from dsinga.ops.numpy_ops import NumpyOps
from dsinga.server import Slice, SliceSpec
from dsinga.server.served_slice import ServedSlice
from dsinga.training import Updater


class ReplicaState(NamedTuple):
    """Values of param parts by name, and the updater's state by part and slot; flat arrays."""

    values: Mapping[str, np.ndarray]
    state: Mapping[str, Mapping[str, np.ndarray]] | None


class ReplicatedParams(Mapping[str, Array]):
    """Param name to value, float32 (size,), of the params that a partition keeps itself. Used by one thread at a time.

    Values and state are arrays of the backend; so are gradients, or in host memory.

    Args:
        params: what updates need to know of each.
        updater: what gradients are applied by.
        ops: the backend; None for host memory.
    """

    def __init__(self, params: Mapping[str, Param], updater: Updater, ops: Ops | None = None):
        self._updater = updater
        self._ops = ops or NumpyOps()
        self._updates: list[Update] = []
        self._slots = {
            name: ServedSlice(SliceSpec(Slice(id, name, 0, 0, 0), p.trainable, p.lr_scale, p.wd_scale, ()), (), 0)
            for id, (name, p) in enumerate(params.items())
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, name: str) -> Array:
        slot = self._slots[name]
        return slot.read() if type(slot.value) is np.ndarray else slot.value

    def put(self, held: ReplicaState) -> None:
        """Take copies of the first values, and of the updater's state where a run is resumed (None: it begins anew).

        Raises UserError if the state is not that of this updater.
        """
        for name, slot in self._slots.items():
            value = np.array(held.values[name], np.float32).reshape(-1)
            spec = slot.spec
            slot.spec = spec._replace(slice=spec.slice._replace(stop=value.size))
            state = None
            if held.state is not None:
                state = {key: np.array(array).reshape(-1) for key, array in held.state.get(name, {}).items()}
            slot.put(value, state, self._updater)
            slot.value = self._ops.asarray(slot.value)
            slot.state = {key: self._ops.asarray(array) for key, array in slot.state.items()}

    def push(self, step: int, name: str, gradient: Array) -> None:
        """Take the gradient of a whole param, for :meth:`finish` or sooner; it is not to be changed until then.

        In host memory it is applied at once, while it lies in the caches; on a device all of them are, by one launch.
        """
        slot = self._slots[name]
        if type(slot.value) is np.ndarray:
            self.update(step, name, 0, gradient)
        elif not slot.spec.trainable and not isinstance(gradient, SparseRows):
            slot.value = self._there(gradient, slot)  # itself: a copy would be a launch
        else:
            self._updates.append(self._create_update(step, slot, slot.value, self._there(gradient, slot), slot.state))

    def finish(self) -> None:
        """Apply the gradients that were pushed."""
        updates, self._updates = self._updates, []
        if updates:
            self._ops.update(updates, self._updater.conf.clip_norm)

    def update(self, step: int, name: str, start: int, gradient: Array) -> None:
        """Apply the gradient of the elements from ``start`` on; a param that is not trainable is replaced by it."""
        slot, where = self._slots[name], slice(start, start + math.prod(gradient.shape))
        gradient = self._there(gradient, slot)
        if not slot.spec.trainable:
            slot.value[where] = gradient
            return
        state = {key: array[where] for key, array in slot.state.items()}
        self._ops.update(
            [self._create_update(step, slot, slot.value[where], gradient, state)], self._updater.conf.clip_norm
        )

    def _create_update(
        self, step: int, slot: ServedSlice, value: Array, gradient: Array, state: Mapping[str, Array]
    ) -> Update:
        return self._updater.create_update(step, value, gradient, state, slot.spec.lr_scale, slot.spec.wd_scale)

    def copy(self, names: Iterable[str]) -> ReplicaState:
        """Return copies of the values and of the state of these params."""
        copies = {name: self._slots[name].copy() for name in names}
        down = self._ops.to_numpy
        return ReplicaState(
            {name: down(value) for name, (value, _) in copies.items()},
            {name: {key: down(array) for key, array in state.items()} for name, (_, state) in copies.items()},
        )

    def _there(self, gradient: Array, slot: ServedSlice) -> Array:
        """Return a gradient where the value is."""
        if type(slot.value) is np.ndarray:
            return gradient
        if isinstance(gradient, SparseRows):
            rows, values = self._ops.asarray(gradient.rows), self._ops.upload(gradient.values).result()
            return SparseRows(rows, values, gradient.shape)
        return self._ops.upload(gradient).result() if type(gradient) is np.ndarray else gradient
