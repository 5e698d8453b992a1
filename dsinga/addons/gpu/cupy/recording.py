"""Records a pass before its capture: its numbers for each step, its metrics, and the arrays that the graph reads.

A pass is recorded twice, so that kernels compile and libraries choose and allocate, and then captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from dsinga.addons.gpu.cupy.library import Source, cupy, pinned
from dsinga.ops.interface import Ops
from dsinga.ops.types import Array, NotCapturable

T = TypeVar("T")
_step = Source("step")

CAPACITY = 1 << 16  # numbers of 8 bytes; the table of updates has some 10 for each param
FINITE, STEP, FIRST = 0, 1, 2  # places of whether all metrics are finite, of the step, and of the first number after

Write = Callable[[int, np.ndarray], None]
"""Writes the numbers of a step to their place, int64 (n,), in host memory."""


class StepBlock:
    """Device memory for the numbers of a pass that depend on the step, in the order of requests.

    During recording each number is copied when a kernel first asks for its place. Before a graph's launch, all are
    computed for the step and copied together.
    """

    def __init__(self) -> None:
        self._device = cupy.zeros(CAPACITY, np.int64)
        self._host = np.zeros(CAPACITY, np.int64)
        self._staged = [pinned((CAPACITY,), np.int64) for _ in range(2)]  # in turn: the last copy may still read one
        self._copied: list[Any] = [None, None]  # the event after the copy from each
        self._turn = 0
        self._writes: list[tuple[slice, Write]] = []
        self._used, self._step = FIRST, 0
        self.is_capturing = False

    @property
    def step(self) -> Array:
        """The number of the training step on the device, int64 (1,)."""
        return self._device[STEP : STEP + 1]

    @property
    def finite(self) -> Array:
        """1 if all metrics are finite so far, else 0 until :meth:`begin` or :meth:`allow`, int64 (1,)."""
        return self._device[FINITE : FINITE + 1]

    def begin(self, step: int, is_capturing: bool) -> None:
        """Begin to record a pass with the numbers of ``step``; a captured pass must not copy them."""
        self._writes, self._used, self._step, self.is_capturing = [], FIRST, step, is_capturing
        self._host[:FIRST] = 1, step
        if not is_capturing:
            self._device[:FIRST].set(self._host[:FIRST], stream=cupy.cuda.get_current_stream())

    def number(self, compute: Callable[[int], float]) -> Array:
        """Reserve a number that is computed from the step; return its place, float64 (1,)."""

        def write(step: int, place: np.ndarray) -> None:
            place.view(np.float64)[0] = compute(step)

        return self.numbers(1, write).view(np.float64)

    def numbers(self, count: int, write: Write) -> Array:
        """Reserve ``count`` numbers that ``write`` computes from the step; return their place, int64 (count,)."""
        place = slice(self._used, self._used + count)
        if place.stop > CAPACITY:
            raise NotCapturable(f"its steps have more than {CAPACITY} numbers")
        self._used = place.stop
        self._writes.append((place, write))
        if not self.is_capturing:
            write(self._step, self._host[place])
            self._device[place].set(self._host[place], stream=cupy.cuda.get_current_stream())
        return self._device[place]

    def fill(self, step: int, stream: Any) -> None:
        """Compute all numbers for ``step``, and copy them to the device in ``stream``'s order."""
        self._host[STEP] = step
        for place, write in self._writes:
            write(step, self._host[place])
        self._turn = 1 - self._turn
        staged, copied = self._staged[self._turn], self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        numbers = slice(STEP, self._used)
        staged[numbers] = self._host[numbers]
        self._device[numbers].set(staged[numbers], stream=stream)
        self._copied[self._turn] = stream.record(cupy.cuda.Event(disable_timing=True))

    def allow(self, stream: Any) -> None:
        """Let updates change params again, after metrics that were not finite."""
        self._device[FINITE : FINITE + 1].set(np.ones(1, np.int64), stream=stream)


class Recording:
    """Collects the numbers, arrays and metrics of a recorded pass."""

    def __init__(self) -> None:
        self.block = StepBlock()
        self.numbers: Array | None = None
        self.references: list[Any] = []
        self._constants: list[tuple[np.ndarray, Array]] = []
        self._used = 0

    def begin(self, step: int, is_capturing: bool = False) -> None:
        """Begin to record the pass of ``step``."""
        self.numbers, self.references, self._used = None, [], 0
        self.block.begin(step, is_capturing)

    def constant(self, array: Any) -> Array:
        """Return a device copy of a layer's host array, which is the same in each pass."""
        array = np.asarray(array)
        if self._used == len(self._constants):
            self._constants.append((array.copy(), cupy.asarray(array)))
        before, on_device = self._constants[self._used]
        self._used += 1
        if before.dtype != array.dtype or not np.array_equal(before, array, equal_nan=array.dtype.kind == "f"):
            raise NotCapturable("an array in host memory changes from batch to batch")
        return on_device

    def defer(self, numbers: Sequence[Any]) -> None:
        """Copy numbers to where they are read later, and note in the block whether all are finite."""
        if self.numbers is not None:
            raise NotCapturable("it reports metrics more than once")
        if not all(isinstance(number, cupy.ndarray) for number in numbers):
            raise NotCapturable("a metric is computed in host memory")
        self.numbers = cupy.empty(len(numbers), np.float64)
        for place, number in enumerate(numbers):
            self.numbers[place] = number
        _step.each("all_finite", self.numbers.dtype, 1, self.numbers, len(numbers), self.block.finite)


class CupyRecording(Ops):
    """Lets a worker's kernels find the pass that is being recorded; None if they run eagerly."""

    recording: Recording | None = None

    @property
    def is_recording(self) -> bool:
        return self.recording is not None

    @property
    def block(self) -> StepBlock | None:
        """The step-dependent numbers of the recorded pass."""
        return None if self.recording is None else self.recording.block

    def held(self, memory: T) -> T:
        """Return cached memory; a recorded pass references it, because its graph reads it again."""
        if self.recording is not None:
            self.recording.references.append(memory)
        return memory

    def step_number(self, compute: Callable[[int], float], step: int) -> float | Array:
        return compute(step) if self.recording is None else self.recording.block.number(compute)

    def defer_read(self, numbers: Sequence[Any]) -> None:
        assert self.recording is not None, "no pass is recorded"
        self.recording.defer(numbers)
