"""A part of a param on its server: value, optimizer state, and the gradients that have arrived."""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.base import buffers
from dsinga.cluster.server.gradient_accumulator import GradientAccumulator, StalenessMeter
from dsinga.cluster.server.slicing import Slice
from dsinga.ops import Array, Ops, SparseRows, Update
from dsinga.ops.compiled.formulas import compiled_formula
from dsinga.ops.update import BLOCK, blocks
from dsinga.training import Updater


class UpdateBlock(NamedTuple):
    """A block of an update: its number of elements, and the function that computes it, in any thread."""

    elements: int
    do: Callable[[], None]


def split_update(update: Update, gradients: Sequence[Array], factor: float = 1.0) -> list[UpdateBlock]:
    """Divide an update by ``factor`` times the sum of ``gradients`` into blocks, for several threads."""
    bounds = [(start, min(start + BLOCK, update.value.size)) for start in range(0, update.value.size, BLOCK)]
    return [
        UpdateBlock(stop - start, functools.partial(_change, update, gradients, factor, start, stop))
        for start, stop in bounds
    ]


def _change(update: Update, gradients: Sequence[Array], factor: float, start: int, stop: int) -> None:
    value, *others = (array[start:stop] for array in (update.value, *update.state, *gradients))
    state, pushed = others[: len(update.state)], others[len(update.state) :]
    run = compiled_formula(update.formula, [value, pushed[0], *state])
    if run and len(pushed) == 1 and factor == 1.0:
        run(value, pushed[0], state, value, value)
        return
    formula = run or update.formula
    scratch = buffers.empty((2, value.size))
    for block in blocks(stop - start):
        change, spare = scratch[:, : block.stop - block.start]
        total = pushed[0][block]
        for gradient in pushed[1:]:
            total = np.add(total, gradient[block], out=change)
        if factor != 1.0:
            total = np.multiply(total, np.float32(factor), out=change)
        formula(value[block], total, [array[block] for array in state], change, spare)


# What the names of arrays begin with that are the state of averaging with other server groups: the outer params, what
# compression has left out of the outer gradients of a group, the outer gradient that is in flight, and the arrays of an
# outer optimizer.
OUTER = "outer."
OUTER_PARAMS, RESIDUAL, IN_FLIGHT = f"{OUTER}value", f"{OUTER}residual", f"{OUTER}in_flight"
# A slice remembers the changed rows of this many steps.
CHANGES_KEPT = 8


class SliceSpec(NamedTuple):
    """How a slice is updated, and which workers push to it.

    The sum of pushes replaces a slice that is not trainable. ``contributors`` are the workers that push it in every
    step, in rising order. ``is_gradient`` says that workers apply the sum of gradients themselves. Gradients of steps
    before ``first_step`` are dropped. ``in_tree`` says that contributors are blocks, added in their tree.
    """

    slice: Slice
    trainable: bool = True
    lr_scale: float = 1.0
    wd_scale: float = 1.0
    contributors: Sequence[int] = (0,)
    whole_param: str = ""
    is_gradient: bool = False
    shape: tuple[int, ...] = ()
    first_step: int = 0
    in_tree: bool = False


class ShardCopy(NamedTuple):
    """A copy of a shard: values, float32 (size,), by slice id, and the updater's state by name."""

    values: dict[int, np.ndarray]
    state: dict[int, dict[str, np.ndarray]]


def join_copies(copies: Mapping[int, tuple[np.ndarray, dict[str, np.ndarray]]]) -> ShardCopy:
    """Join copies of a shard's slices (:meth:`ServedSlice.copy`), by slice id, to the shard's copy."""
    return ShardCopy({id: copy[0] for id, copy in copies.items()}, {id: copy[1] for id, copy in copies.items()})


class ServedSlice:
    """A slice of a param on its server: the value, float32 (size,), updater state, and gradients.

    ``lock`` is held while the value changes or is copied. A thread may acquire it while it holds the shard's lock, but
    not the other way round.
    """

    def __init__(self, spec: SliceSpec, groups: Iterable[int], start: int):
        self.spec = spec
        self.filled = False  # whether the first value has been put
        self._moved = False
        self.value = np.empty(0, np.float32)
        self.state: dict[str, np.ndarray] = {}
        # The state of averaging with other server groups: the outer params, the outer optimizer's arrays.
        self.outer: dict[str, np.ndarray] = {}
        self.lock = threading.Lock()
        self.accumulators = {group: GradientAccumulator(spec.contributors, start, spec.in_tree) for group in groups}
        self.changes = 0  # how often the value has changed since the start, by updates and by other server groups
        self.meter: StalenessMeter | None = None  # measures how stale gradients are, if pulls return copies
        self._sum: SparseRows | None = None  # the value of a slice that is not trainable, if it is sparse rows
        # For the last steps of the only worker group: the rows that each step changed, None for all rows.
        self._changes: collections.deque[tuple[int, np.ndarray | None]] = collections.deque(maxlen=CHANGES_KEPT)

    def put(self, value: np.ndarray, state: Mapping[str, np.ndarray] | None, updater: Updater) -> None:
        """Set the initial value, and the updater's state of a resumed run; a repeated call changes nothing.

        The slice owns the arrays; writeable ones are not copied.
        """
        if self.filled:
            return
        size, updater = self.spec.slice.size, updater.of(self.spec.whole_param, self.spec.shape)
        self.value = _owned(value, size)
        if state is not None:
            self.outer = {name: _owned(array, size) for name, array in state.items() if is_outer(name)}
            state = {name: array for name, array in state.items() if name not in self.outer}
        if self.spec.trainable:
            self.state = updater.initial_state(self.value) if state is None else self._resumed(state, updater)
        self.filled = True

    def move(self, memory: np.ndarray) -> None:
        """Copy the value to ``memory``, float32 (size,), and keep it there; a second call changes nothing."""
        if self.filled and not self._moved:
            np.copyto(memory, self.value)
            self.value, self._moved = memory, True

    def _resumed(self, state: Mapping[str, np.ndarray], updater: Updater) -> dict[str, np.ndarray]:
        updater.check_state(self.spec.slice.param, state)
        return {name: _owned(array, self.spec.slice.size) for name, array in state.items()}

    def contribute(
        self, group: int, step: int, worker: int, gradient: np.ndarray | SparseRows | None, blocks: int = 1
    ) -> bool:
        """Add a gradient for a group's step (:meth:`GradientAccumulator.add`); return whether none is missing."""
        assert self.filled, f"slice {self.spec.slice} is pushed before its first value was put"
        if gradient is None or step < self.spec.first_step:
            return self.accumulators[group].add(step, worker, None, blocks)
        value = self.value.reshape(-1, self.spec.slice.width) if isinstance(gradient, SparseRows) else self.value
        assert gradient.shape == value.shape, (str(self.spec.slice), gradient.shape)
        assert gradient.dtype == np.float32, (str(self.spec.slice), gradient.dtype)
        return self.accumulators[group].add(step, worker, gradient, blocks)

    @property
    def is_clipped(self) -> bool:
        """Whether the slice's gradients count for the norm of all gradients."""
        return self.spec.trainable or self.spec.is_gradient

    def update_blocks(self, group: int, updater: Updater) -> list[UpdateBlock]:
        """Return the update by a group's summed gradients as blocks, which threads may compute in any order.

        The learning rate's schedule uses the group's own step. A skipped step has no blocks, but counts for the
        version.
        """
        blocks = self._update_blocks(group, updater)
        if blocks and self.meter is not None:
            blocks.append(UpdateBlock(0, functools.partial(self._count_update, group, self.meter)))
        return blocks

    def _count_update(self, group: int, meter: StalenessMeter) -> None:
        meter.add(group, self.changes - self.accumulators[group].changes_seen)
        self.changes += 1

    def _update_blocks(self, group: int, updater: Updater) -> list[UpdateBlock]:
        accumulator, updater = self.accumulators[group], updater.of(self.spec.whole_param, self.spec.shape)
        scales = self.spec.lr_scale, self.spec.wd_scale
        gradients = accumulator.parts
        needs_sum = self.spec.slice.width or updater.conf.clip_norm or updater.whole
        if gradients and self.spec.trainable and not needs_sum:
            update = updater.create_update(accumulator.version, self.value, gradients[0], self.state, *scales)
            return split_update(update, gradients, accumulator.factor)
        total = accumulator.total()
        if self.spec.slice.width:
            self._note_change(accumulator.version, total)
        if total is None:
            return []
        change = functools.partial(self._replace, total)
        if self.spec.trainable:
            shape = self.spec.shape
            change = functools.partial(
                updater.update, accumulator.version, self.value, total, self.state, *scales, shape
            )
        return [UpdateBlock(self.value.size, change)]

    def _replace(self, total: np.ndarray | SparseRows) -> None:
        self._sum = total if isinstance(total, SparseRows) else None
        if self._sum is None:
            self.value[:] = total

    def _note_change(self, step: int, total: np.ndarray | SparseRows | None) -> None:
        none = np.empty(0, np.int64)
        self._changes.append((step, none if total is None else total.rows if isinstance(total, SparseRows) else None))

    def rows_changed(self, since: int, version: int) -> np.ndarray | None:
        """Return the rows that the only group's steps ``since`` to ``version`` - 1 changed, None if unknown."""
        steps = {step: rows for step, rows in self._changes if since <= step < version}
        changes = [rows for rows in steps.values() if rows is not None]
        if len(self.accumulators) > 1 or len(changes) < version - since:
            return None
        return changes[0] if len(changes) == 1 else np.unique(np.concatenate([np.empty(0, np.int64), *changes]))

    def read(self) -> Array | SparseRows:
        """Return a read-only view of the value, or the sparse rows that replaced it."""
        if self._sum is not None:
            return self._sum
        view = self.value.view()
        view.flags.writeable = False
        return view

    def copy_for(self, group: int) -> Array:
        """Return a read-only copy of the value, the same for all workers of a group."""
        accumulator = self.accumulators[group]
        with self.lock:
            if accumulator.copy is None:
                accumulator.copy = self._value_copy()
                accumulator.changes_seen = self.changes
            return accumulator.copy

    def _value_copy(self) -> Array:
        copy = self.value.copy()
        copy.flags.writeable = False
        return copy

    def drop_copy(self, group: int) -> None:
        """Drop the copy that a group's workers share, so that they get the present value."""
        with self.lock:
            self.accumulators[group].copy = None

    def contents(self, state: bool = True) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the arrays of the value and, if ``state``, of the updater's and the outer state."""
        return self.value, self.state | self.outer if state else {}

    def copy(self, state: bool = True) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return copies of the value and, if ``state``, of the states after the same update."""
        with self.lock:
            value, slots = self.contents(state)
            return value.copy(), {name: array.copy() for name, array in slots.items()}


def is_outer(name: str) -> bool:
    """Whether an array of a slice's state belongs to the averaging of server groups, not to the updater."""
    return name.startswith(OUTER)


def _owned(array: np.ndarray, size: int) -> np.ndarray:
    assert array.shape == (size,), (array.shape, size)
    return np.require(array, np.float32, ["C", "W"])


class DeviceSlice(ServedSlice):
    """A slice that is kept and updated on a GPU; only copies for readers come to host memory.

    A worker hands a gradient over when its kernels have ended, and an update ends with its kernels. So the rules of
    :mod:`dsinga.cluster.server.shard` hold for streams as for threads.
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
        """Do nothing, because the value stays on the device."""

    def _update_blocks(self, group: int, updater: Updater) -> list[UpdateBlock]:
        accumulator, updater = self.accumulators[group], updater.of(self.spec.whole_param, self.spec.shape)
        with self._ops.serialised():  # since it may add gradients
            parts = accumulator.parts
        change = functools.partial(self._change, parts, accumulator.version, updater)
        return [UpdateBlock(self.value.size, change)] if parts else []

    def _change(self, parts: Sequence[Array], step: int, updater: Updater) -> None:
        """Update by the ordered sum of gradients, or replace a slice that is not trainable by the sum."""
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
        """Copy the value and, if ``state``, the updater's state to host memory."""
        value, slots = super().contents(state)
        with self._ops.serialised():
            return self._ops.to_numpy(value), {name: self._ops.to_numpy(array) for name, array in slots.items()}

    def copy(self, state: bool = True) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return :meth:`contents`, all after the same update."""
        with self.lock:
            return self.contents(state)
