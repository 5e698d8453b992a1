"""Runs an optimizer's formula quickly at fixed addresses, as a prepared list of ufunc calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from dsinga.ops.compiled.joined_calls import RepeatedCalls
from dsinga.ops.types import Array
from dsinga.ops.ufunc_programs import Numbers, TracedSeries, UfuncOperand
from dsinga.ops.update import SHORT_BLOCK


class BoundProgram:
    """Repeats an optimizer's formula on the same arrays: its ufunc calls are prepared once, with unchanged bits."""

    def __init__(self, traced: TracedSeries, arrays: Sequence[Array]):
        self._traced = traced
        self._constants = [np.array(value or 0.0, np.float32) for value in traced.values]
        results = {result for result, *_ in traced.calculations}
        changing = (place for place in {*traced.constants} if place < traced.numbers or place in results)
        self._changing = [(self._constants[place], place) for place in changing]
        temporary = traced.program.registers - len(arrays)
        scratch = np.empty((temporary, min(arrays[0].size, SHORT_BLOCK)), np.float32)
        calls: list[Callable[[], Any]] = []
        for start in range(0, arrays[0].size, SHORT_BLOCK):
            block = [array[start : start + SHORT_BLOCK] for array in arrays]
            calls += self._bound([*block, *scratch[:, : block[0].size]])
        self._run = RepeatedCalls(calls)

    def _bound(self, registers: Sequence[Array]) -> Iterator[Callable[[], Any]]:
        def array(operand: UfuncOperand) -> Array:
            if operand.kind == "register":
                return registers[operand.number]
            return self._constants[self._traced.constants[operand.number]]

        for name, result, operands in self._traced.program.operations:
            yield partial(getattr(np, name), *map(array, operands), out=registers[result])

    def __call__(self, numbers: Numbers) -> None:
        """Update the arrays with this step's numbers, such as the learning rate."""
        values = self._traced.calculate(numbers)
        for constant, place in self._changing:
            constant[()] = values[place]
        with np.errstate(all="ignore"):  # as if the calls were joined
            self._run()
