"""One slice as its server keeps it: the value, the updater's state, and the contributions to the running step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.errors import UserError
from dsinga.server.slicing import Slice
from dsinga.training import Updater


class SliceSpec(NamedTuple):
    """A slice and how it is updated. One that is not trainable is replaced by the sum of what is pushed."""

    slice: Slice
    trainable: bool = True
    lr_scale: float = 1.0
    wd_scale: float = 1.0


class Slot:
    """The value of one slice, float32 of shape (size,), at ``version``: the number of the step that comes next.

    Not thread-safe: the shard holds its lock around everything but :meth:`update`, which needs none, because it runs
    after the last contribution to a step has come and before the version changes; until then nobody else writes.
    """

    def __init__(self, spec: SliceSpec, contributors: int):
        self.spec = spec
        self.version: int | None = None  # None until the first value has been put
        self.value = np.empty(0, np.float32)
        self.state: dict[str, np.ndarray] = {}
        self._parts: list[np.ndarray | None] = [None] * contributors
        self._missing = contributors

    def put(self, version: int, value: np.ndarray, state: Mapping[str, np.ndarray] | None, updater: Updater) -> None:
        """Take the first value, and the updater's state of a run that is resumed; a repeated put changes nothing.

        The arrays are given away and kept if they can be written, so that the slices of a param whose servers live
        in one process may be views of one array. Raises UserError if ``state`` is not that of this updater.
        """
        if self.version is not None:
            return
        size = self.spec.slice.size
        if self.spec.trainable:
            self.state = updater.create_state(size) if state is None else self._resumed(state, updater)
        self.value = _owned(value, size)
        self.version = version

    def _resumed(self, state: Mapping[str, np.ndarray], updater: Updater) -> dict[str, np.ndarray]:
        wanted = updater.create_state(1).keys()
        if state.keys() != wanted:
            raise UserError(
                f"param {self.spec.slice.param!r}: the checkpoint has the updater state {_names(state)}, but the "
                f"job's updater needs {_names(wanted)}: resume with the updater that wrote it, or start a new run "
                "from its params with checkpoint_path"
            )
        return {name: _owned(array, self.spec.slice.size) for name, array in state.items()}

    def contribute(self, step: int, partition: int, gradient: np.ndarray) -> bool:
        """Take what ``partition`` gives to ``step``; a repeated one is dropped. True if it was the last missing one."""
        assert self.version is not None, f"slice {self.spec.slice} is pushed before its first value was put"
        assert step <= self.version, f"slice {self.spec.slice} is pushed for step {step} during step {self.version}"
        assert gradient.shape == self.value.shape, (str(self.spec.slice), gradient.shape)
        assert gradient.dtype == np.float32, (str(self.spec.slice), gradient.dtype)
        if step < self.version or self._parts[partition] is not None:
            return False
        self._parts[partition] = gradient
        self._missing -= 1
        return self._missing == 0

    @property
    def updating(self) -> bool:
        """Whether all contributions have come, so that the value may be changing."""
        return self._missing == 0

    def update(self, updater: Updater) -> None:
        """Add the contributions in the order of the partitions, whatever the order they came in, and apply the sum."""
        assert self.version is not None
        first, *others = (part for part in self._parts if part is not None)
        # What came through a socket may be read-only; the updater, too, may overwrite the gradient.
        total = first if first.flags.writeable else first.copy()
        for part in others:
            np.add(total, part, out=total)
        if self.spec.trainable:
            updater.update(self.version, self.value, total, self.state, self.spec.lr_scale, self.spec.wd_scale)
        else:
            self.value[:] = total

    def advance(self) -> None:
        """Go on to the next version and forget the contributions."""
        assert self.version is not None
        self.version += 1
        self._missing = len(self._parts)
        self._parts = [None] * self._missing

    def read(self) -> np.ndarray:
        """Return the value itself, as a read-only view."""
        view = self.value.view()
        view.flags.writeable = False
        return view

    @property
    def idle(self) -> bool:
        """Whether no contribution to the running step has come yet."""
        return self._missing == len(self._parts)

    def pending(self) -> str:
        """Say in words which contributions are missing."""
        if self.version is None:
            return f"slice {self.spec.slice}: its first value has not been put"
        return f"slice {self.spec.slice} at step {self.version}: {came(self._parts)}"


def came(parts: Sequence[np.ndarray | None]) -> str:
    """Say which partitions have given their part: "partitions 0, 2 have come, 1 is missing"."""
    there = [str(index) for index, part in enumerate(parts) if part is not None]
    missing = [str(index) for index, part in enumerate(parts) if part is None]
    if not missing:
        return "all partitions have come, the update is running"
    if not there:
        return f"no partition has come, {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    have = f"partition {there[0]} has" if len(there) == 1 else f"partitions {', '.join(there)} have"
    return f"{have} come, {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"


def _owned(array: np.ndarray, size: int) -> np.ndarray:
    """Return ``array`` if it may be updated in place, a copy otherwise."""
    assert array.shape == (size,), (array.shape, size)
    return np.require(array, np.float32, ["C", "W"])


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"
