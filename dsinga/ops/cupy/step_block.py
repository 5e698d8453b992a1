"""Numbers of the host that change from step to step, in one block of device memory that kernels read.

While a pass is recorded each number is copied when a kernel is first given its place; before a captured graph is
launched, all of them are computed for the step and copied together. Kernels of a graph have no number of the host but
those that never change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsinga.ops.cupy.library import cupy
from dsinga.ops.cupy.pinned import pinned
from dsinga.ops.device_pass import NotCapturable
from dsinga.ops.types import Array

CAPACITY = 1 << 16  # numbers of 8 bytes; the table of updates has some 10 for each param
FINITE, STEP, FIRST = 0, 1, 2  # places of whether all metrics are finite, of the step, and of the first number after

Write = Callable[[int, np.ndarray], None]
"""A function that writes the numbers of a step to their place, int64 (n,), in host memory."""


class StepBlock:
    """The block of one pass; its numbers are in the order in which the pass asks for them."""

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
        """The step, int64 (1,)."""
        return self._device[STEP : STEP + 1]

    @property
    def finite(self) -> Array:
        """1 until a metric is not finite, then 0 until :meth:`begin` or :meth:`allow`, int64 (1,)."""
        return self._device[FINITE : FINITE + 1]

    def begin(self, step: int, is_capturing: bool) -> None:
        """Begin to record a pass with the numbers of ``step``; one that is captured must not copy them."""
        self._writes, self._used, self._step, self.is_capturing = [], FIRST, step, is_capturing
        self._host[:FIRST] = 1, step
        if not is_capturing:
            self._device[:FIRST].set(self._host[:FIRST], stream=cupy.cuda.get_current_stream())

    def number(self, compute: Callable[[int], float]) -> Array:
        """Return the place of a number that is a function of the step, float64 (1,)."""

        def write(step: int, place: np.ndarray) -> None:
            place.view(np.float64)[0] = compute(step)

        return self.numbers(1, write).view(np.float64)

    def numbers(self, count: int, write: Write) -> Array:
        """Return the place of ``count`` numbers that ``write`` computes, int64 (count,)."""
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
        """Compute all numbers for ``step``, and copy them to the device, before what ``stream`` does next."""
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
