"""One slice as its server keeps it: the value, the updater's state, and the contributions of every worker group."""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.errors import UserError
from dsinga.ops import SparseRows
from dsinga.server.gradient_accumulator import GradientAccumulator
from dsinga.server.slicing import Slice
from dsinga.server.update_blocks import UpdateBlock, split_update
from dsinga.training import Updater

# For so many steps it is remembered which rows of a slice they have changed.
CHANGES_KEPT = 8


class SliceSpec(NamedTuple):
    """A slice and how it is updated. One that is not trainable is replaced by the sum of what is pushed.

    ``contributors`` are the partitions that push it in every step, in rising order, the same in each worker group.
    """

    slice: Slice
    trainable: bool = True
    lr_scale: float = 1.0
    wd_scale: float = 1.0
    contributors: Sequence[int] = (0,)


class ServedSlice:
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
        self.contributions = {group: GradientAccumulator(spec.contributors, start) for group in groups}
        self._sum: SparseRows | None = None  # what a slice that is not trainable stands at, if that is rows alone
        # For the last steps of the only group: which rows each has changed, None for all of them.
        self._changes: collections.deque[tuple[int, np.ndarray | None]] = collections.deque(maxlen=CHANGES_KEPT)

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

    def contribute(self, group: int, step: int, partition: int, gradient: np.ndarray | SparseRows | None) -> bool:
        """Take what a partition gives to a step of its group, None to skip it; True if it was the last one missing.

        Rows alone are taken of slices that have a width.
        """
        assert self.filled, f"slice {self.spec.slice} is pushed before its first value was put"
        if gradient is None:
            return self.contributions[group].add(step, partition, None)
        wanted = self.value.reshape(-1, self.spec.slice.width) if isinstance(gradient, SparseRows) else self.value
        assert gradient.shape == wanted.shape, (str(self.spec.slice), gradient.shape)
        assert gradient.dtype == np.float32, (str(self.spec.slice), gradient.dtype)
        return self.contributions[group].add(step, partition, gradient)

    def pieces(self, group: int, updater: Updater) -> list[UpdateBlock]:
        """Return what applies the sum of a group's contributions, which have all come, in any order and by any threads.

        The group's own step counts for the learning rate's schedule. A step that is skipped changes nothing, but what
        the group has then is as fresh as after any other. Called once.
        """
        contributions = self.contributions[group]
        scales = self.spec.lr_scale, self.spec.wd_scale
        gradients = contributions.parts
        if gradients and self.spec.trainable and not self.spec.slice.width and not updater.conf.clip_norm:
            update = updater.create_update(contributions.version, self.value, gradients[0], self.state, *scales)
            return split_update(update, gradients)
        total = contributions.total()
        if self.spec.slice.width:
            self._note_change(contributions.version, total)
        if total is None:
            return []
        whole = functools.partial(self._replace, total)
        if self.spec.trainable:
            whole = functools.partial(updater.update, contributions.version, self.value, total, self.state, *scales)
        return [UpdateBlock(self.value.size, whole)]

    def _replace(self, total: np.ndarray | SparseRows) -> None:
        self._sum = total if isinstance(total, SparseRows) else None
        if self._sum is None:
            self.value[:] = total

    def _note_change(self, step: int, total: np.ndarray | SparseRows | None) -> None:
        none = np.empty(0, np.int64)
        self._changes.append((step, none if total is None else total.rows if isinstance(total, SparseRows) else None))

    def rows_changed(self, since: int, version: int) -> np.ndarray | None:
        """Return the rows that the only group's steps ``since`` to ``version`` - 1 have changed, None if not known.

        Not while an update may be running: called on behalf of a contributor that has not pushed for ``version`` yet.
        """
        steps = {step: rows for step, rows in self._changes if since <= step < version}
        known = [rows for rows in steps.values() if rows is not None]
        if len(self.contributions) > 1 or len(known) < version - since:
            return None
        return known[0] if len(known) == 1 else np.unique(np.concatenate([np.empty(0, np.int64), *known]))

    def read(self) -> np.ndarray | SparseRows:
        """Return the value itself, as a read-only view; rows alone where the sum of the last step was that."""
        if self._sum is not None:
            return self._sum
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

    def copy_value(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return a copy of the value, and no state."""
        with self.lock:
            return self.value.copy(), {}


def _owned(array: np.ndarray, size: int) -> np.ndarray:
    """Return ``array`` if it may be updated in place, a copy otherwise."""
    assert array.shape == (size,), (array.shape, size)
    return np.require(array, np.float32, ["C", "W"])


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"
