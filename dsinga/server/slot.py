"""One slice as its server keeps it: the value, the updater's state, and the contributions of every worker group."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.errors import UserError
from dsinga.server.contributions import Contributions
from dsinga.server.slicing import Slice
from dsinga.training import Updater


class SliceSpec(NamedTuple):
    """A slice and how it is updated. One that is not trainable is replaced by the sum of what is pushed.

    ``contributors`` are the partitions that push it in every step, in rising order, the same in each worker group.
    """

    slice: Slice
    trainable: bool = True
    lr_scale: float = 1.0
    wd_scale: float = 1.0
    contributors: Sequence[int] = (0,)


class Slot:
    """The value of one slice, float32 of shape (size,), and per worker group what has come for it.

    ``lock`` is held while the value changes, and while it is copied for those who are not waited for by the next
    change. The shard's own lock may be held when this one is taken, but never the other way round.
    """

    def __init__(self, spec: SliceSpec, groups: Iterable[int], start: int):
        self.spec = spec
        self.filled = False  # whether the first value has been put
        self.value = np.empty(0, np.float32)
        self.state: dict[str, np.ndarray] = {}
        self.lock = threading.Lock()
        self.contributions = {group: Contributions(spec.contributors, start) for group in groups}

    def put(self, value: np.ndarray, state: Mapping[str, np.ndarray] | None, updater: Updater) -> None:
        """Take the first value, and the updater's state of a run that is resumed; a repeated put changes nothing.

        The arrays are given away and kept if they can be written, so that the slices of a param whose servers live
        in one process may be views of one array. Raises UserError if ``state`` is not that of this updater.
        """
        if self.filled:
            return
        size = self.spec.slice.size
        if self.spec.trainable:
            self.state = updater.create_state(size) if state is None else self._resumed(state, updater)
        self.value = _owned(value, size)
        self.filled = True

    def _resumed(self, state: Mapping[str, np.ndarray], updater: Updater) -> dict[str, np.ndarray]:
        wanted = updater.create_state(1).keys()
        if state.keys() != wanted:
            raise UserError(
                f"param {self.spec.slice.param!r}: the checkpoint has the updater state {_names(state)}, but the "
                f"job's updater needs {_names(wanted)}: resume with the updater that wrote it, or start a new run "
                "from its params with checkpoint_path"
            )
        return {name: _owned(array, self.spec.slice.size) for name, array in state.items()}

    def contribute(self, group: int, step: int, partition: int, gradient: np.ndarray | None) -> bool:
        """Take what a partition gives to a step of its group, None to skip it; True if it was the last one missing."""
        assert self.filled, f"slice {self.spec.slice} is pushed before its first value was put"
        if gradient is None:
            return self.contributions[group].add(step, partition, None)
        assert gradient.shape == self.value.shape, (str(self.spec.slice), gradient.shape)
        assert gradient.dtype == np.float32, (str(self.spec.slice), gradient.dtype)
        return self.contributions[group].add(step, partition, gradient)

    def update(self, group: int, updater: Updater) -> None:
        """Apply the sum of a group's contributions, with the group's own step for the learning rate's schedule."""
        contributions = self.contributions[group]
        total = contributions.total()
        if total is None:
            return
        with self.lock:
            if self.spec.trainable:
                step, scales = contributions.version, (self.spec.lr_scale, self.spec.wd_scale)
                updater.update(step, self.value, total, self.state, *scales)
            else:
                self.value[:] = total
            contributions.copy = None

    def read(self) -> np.ndarray:
        """Return the value itself, as a read-only view."""
        view = self.value.view()
        view.flags.writeable = False
        return view

    def copy_for(self, group: int) -> np.ndarray:
        """Return a copy of the value, read-only: one for all partitions of a group, so that they compute with the same.

        It is made for the first of them that asks, and thus as fresh as it can be; the group's next update drops it.
        """
        contributions = self.contributions[group]
        with self.lock:
            if contributions.copy is None:
                contributions.copy = self.value.copy()
                contributions.copy.flags.writeable = False
            return contributions.copy

    def copy(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return copies of the value and of the updater's state, which go together."""
        with self.lock:
            return self.value.copy(), {name: array.copy() for name, array in self.state.items()}


def _owned(array: np.ndarray, size: int) -> np.ndarray:
    """Return ``array`` if it may be updated in place, a copy otherwise."""
    assert array.shape == (size,), (array.shape, size)
    return np.require(array, np.float32, ["C", "W"])


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"
