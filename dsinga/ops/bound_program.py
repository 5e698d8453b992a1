"""Runs an updater's formula on arrays that stay where they are, as a list of ufunc calls that is made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dsinga.ops.types import Array
from dsinga.ops.ufunc_programs import FIRST_SLOT, FormulaSeries, Numbers, TracedSeries, UfuncOperand, trace_series
from dsinga.ops.update import SHORT_BLOCK


def bind(series: FormulaSeries, numbers: Numbers, arrays: Sequence[Array]) -> BoundProgram | None:
    """Return the program of the formulas of a series for the value, gradient and state ``arrays``, 1-d float32.

    It serves all formulas whose numbers are None where one of ``numbers`` is. None where there is no such program.
    """
    traced = trace_series(series, len(arrays) - FIRST_SLOT, tuple([each is None for each in numbers]))
    return None if traced is None else BoundProgram(traced, arrays)


class BoundProgram:
    """A formula's ufuncs with their arrays: the same calls, on numbers of the same bits, as the formula would do.

    Constants are float32 arrays without axes, which numpy takes sooner than numbers of Python's.
    """

    def __init__(self, traced: TracedSeries, arrays: Sequence[Array]):
        self._traced = traced
        self._constants = [np.array(value or 0.0, np.float32) for value in traced.values]
        length = min(arrays[0].size, SHORT_BLOCK)
        temporary = range(len(arrays), traced.program.registers)
        used = {number for call in traced.program.operations for number in (call.result, *call.registers)}
        scratch = {number: np.empty(length, np.float32) for number in temporary if number in used}
        self._calls: list[Callable[[], Any]] = []
        for start in range(0, arrays[0].size, SHORT_BLOCK):
            block = [array[start : start + SHORT_BLOCK] for array in arrays]
            registers = dict(enumerate(block)) | {number: array[: block[0].size] for number, array in scratch.items()}
            self._bind(registers)
        results = {calculation.result for calculation in traced.calculations}
        self._moving = [
            (self._constants[place], place)
            for place in dict.fromkeys(traced.constants)
            if place < traced.numbers or place in results
        ]

    def _bind(self, registers: dict[int, Array]) -> None:
        """Add the calls of one block."""

        def array(operand: UfuncOperand) -> Array:
            if operand.kind == "register":
                return registers[operand.number]
            return self._constants[self._traced.constants[operand.number]]

        for name, result, operands in self._traced.program.operations:
            self._calls.append(partial(getattr(np, name), *map(array, operands), out=registers[result]))

    def __call__(self, numbers: Numbers) -> None:
        """Update the arrays by the formula with these numbers."""
        values = self._traced.calculate(numbers)
        for constant, place in self._moving:
            constant[()] = values[place]
        for call in self._calls:
            call()
