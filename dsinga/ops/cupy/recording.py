"""The pass that is recorded: the block of its numbers, its metrics, and what its graph will read of kernels' caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from dsinga.ops.cupy.library import Source, cupy
from dsinga.ops.cupy.step_block import StepBlock
from dsinga.ops.device_pass import NotCapturable
from dsinga.ops.interface import Ops
from dsinga.ops.types import Array

T = TypeVar("T")
_step = Source("step")


class Recording:
    """What a pass collects while it is recorded.

    Attributes:
        block: the numbers that change from step to step.
        numbers: the metrics on the device, float64, None where there are none.
        references: memory of caches that the graph reads, so that it stays when a cache is cleared.
    """

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
        """Return a copy on the device of an array that a layer has made in host memory, the same in each pass.

        It depends on no batch and no step, since both are on the device. Raises NotCapturable where it does change.
        """
        array = np.asarray(array)
        if self._used == len(self._constants):
            self._constants.append((array.copy(), cupy.asarray(array)))
        before, on_device = self._constants[self._used]
        self._used += 1
        if before.dtype != array.dtype or not np.array_equal(before, array, equal_nan=array.dtype.kind == "f"):
            raise NotCapturable("an array in host memory changes from batch to batch")
        return on_device

    def defer(self, numbers: Sequence[Any]) -> None:
        """Copy numbers to where they are read later, and note in the block whether all of them are finite."""
        if self.numbers is not None:
            raise NotCapturable("it reports metrics more than once")
        if not all(isinstance(number, cupy.ndarray) for number in numbers):
            raise NotCapturable("a metric is computed in host memory")
        self.numbers = cupy.empty(len(numbers), np.float64)
        for place, number in enumerate(numbers):
            self.numbers[place] = number
        _step.each("all_finite", self.numbers.dtype, 1, self.numbers, len(numbers), self.block.finite)


class CupyRecording(Ops):
    """What kernels of a worker take from the pass that is recorded, None where they run as they are called."""

    recording: Recording | None = None

    @property
    def is_recording(self) -> bool:
        return self.recording is not None

    @property
    def block(self) -> StepBlock | None:
        """The numbers of the pass that is recorded."""
        return None if self.recording is None else self.recording.block

    def held(self, memory: T) -> T:
        """Return memory of a cache; a pass that is recorded keeps a reference, since its graph will read it again."""
        if self.recording is not None:
            self.recording.references.append(memory)
        return memory

    def step_number(self, compute: Callable[[int], float], step: int) -> float | Array:
        return compute(step) if self.recording is None else self.recording.block.number(compute)

    def defer_read(self, numbers: Sequence[Any]) -> None:
        assert self.recording is not None, "no pass is recorded"
        self.recording.defer(numbers)
