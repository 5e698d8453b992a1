"""Formulas as straight-line programs: what numpy's ufuncs a formula calls, found by running it once on symbols.

A backend makes one kernel of a program. Its operations are exactly rounded in float32, so that a kernel which rounds
after each of them has numpy's bits.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from dsinga.ops.update import Formula

OPERATIONS = {
    np.add, np.subtract, np.multiply, np.divide, np.sqrt, np.square, np.maximum, np.minimum, np.absolute, np.negative,
}  # fmt: skip
W, G, FIRST_SLOT = 0, 1, 2


class Untraceable(TypeError):
    """The formula does what no program can say: it looks at numbers, or calls what is not in OPERATIONS."""


class UfuncOperand(NamedTuple):
    """A register, or one of the constants."""

    kind: Literal["register", "constant"]
    number: int


class UfuncCall(NamedTuple):
    """A ufunc by its name, the register for its result, and what it takes."""

    name: str
    result: int
    operands: tuple[UfuncOperand, ...]


class UfuncProgram(NamedTuple):
    """What is done to each element, in order; values of constants are told apart from it.

    Registers are w, g, ``slots`` of state, and then as many as are wanted, ``registers`` in all. ``changed`` are those
    of w and state that differ afterwards.
    """

    operations: tuple[UfuncCall, ...]
    slots: int
    registers: int
    changed: tuple[int, ...]


class TracedFormula(NamedTuple):
    """A program and its constants, in the order in which the formula uses them."""

    program: UfuncProgram
    constants: tuple[float, ...]


def trace(formula: Formula, slots: int) -> TracedFormula:
    """Return what a formula does to arrays with so many slots. Raises Untraceable where no program says it."""
    tape = _Tape()
    w, g, *state = (tape.symbol() for _ in range(FIRST_SLOT + slots))
    formula(w, g, state, tape.symbol(), tape.symbol())
    written = {operation.result for operation in tape.operations}
    if G in written:
        raise Untraceable("the gradient is changed")
    changed = tuple(number for number in range(FIRST_SLOT + slots) if number in written)
    return TracedFormula(UfuncProgram(tuple(tape.operations), slots, tape.registers, changed), tuple(tape.constants))


class _Tape:
    """What symbols have been through."""

    def __init__(self) -> None:
        self.operations: list[UfuncCall] = []
        self.constants: list[float] = []
        self.registers = 0

    def symbol(self) -> _Symbol:
        self.registers += 1
        return _Symbol(self, self.registers - 1)

    def operand(self, value: Any) -> UfuncOperand:
        if isinstance(value, _Symbol) and value.tape is self:
            return UfuncOperand("register", value.number)
        if type(value) not in (int, float, np.float32):  # a float64 of numpy's would widen the block
            raise Untraceable(f"{type(value).__name__} is no operand")
        self.constants.append(float(value))
        return UfuncOperand("constant", len(self.constants) - 1)


class _Symbol(NDArrayOperatorsMixin):
    """Stands for a block."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tape: _Tape, number: int):
        self.tape, self.number = tape, number

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> _Symbol:
        (result,) = options.pop("out", (None,))
        if method != "__call__" or options or ufunc not in OPERATIONS:
            raise Untraceable(f"{ufunc.__name__} with {', '.join([method, *options])}")
        operands = tuple(self.tape.operand(value) for value in inputs)
        if result is None:
            result = self.tape.symbol()
        self.tape.operations.append(UfuncCall(ufunc.__name__, self.tape.operand(result).number, operands))
        return result

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise Untraceable("a block is taken for an array of numbers")

    def __bool__(self) -> bool:
        raise Untraceable("what is done depends on a number of the block")
