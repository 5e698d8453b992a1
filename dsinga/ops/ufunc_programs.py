"""Traces an updater's formula into a straight-line program of numpy ufuncs, by running it once on symbols.

A backend compiles a program into one kernel. The operations are exactly rounded in float32, so a kernel that rounds
after each of them has numpy's bits.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from dsinga.ops.types import Formula

OPERATIONS = {
    np.add, np.subtract, np.multiply, np.divide, np.sqrt, np.square, np.maximum, np.minimum, np.fmax, np.fmin,
    np.absolute, np.negative, np.positive,
}  # fmt: skip
W, G, FIRST_SLOT = 0, 1, 2


class Untraceable(TypeError):
    """The formula cannot be traced: it depends on values, or calls a function that is not in OPERATIONS."""


class UfuncOperand(NamedTuple):
    """An operand of a ufunc: a register or a constant, by its number."""

    kind: Literal["register", "constant"]
    number: int


class UfuncCall(NamedTuple):
    """A call of a ufunc: its name, the register of its result, and its operands."""

    name: str
    result: int
    operands: tuple[UfuncOperand, ...]


class UfuncProgram(NamedTuple):
    """The ufuncs that a formula applies to each element, in order, without the values of its constants.

    Registers are w, g, one for each of the ``slots`` of state, and then temporary ones, ``registers`` in all.
    ``changed`` are the registers among w and state that the program writes.
    """

    operations: tuple[UfuncCall, ...]
    slots: int
    registers: int
    changed: tuple[int, ...]


class TracedFormula(NamedTuple):
    """A program and its constants, in the order of their use."""

    program: UfuncProgram
    constants: tuple[float, ...]


def trace(formula: Formula, slots: int) -> TracedFormula:
    """Return the program of a formula with ``slots`` arrays of state. Raises Untraceable if there is none."""
    tape = _Tape()
    w, g, *state = (tape.symbol() for _ in range(FIRST_SLOT + slots))
    formula(w, g, state, tape.symbol(), tape.symbol())
    written = {operation.result for operation in tape.operations}
    if G in written:
        raise Untraceable("the formula changes the gradient")
    changed = tuple(number for number in range(FIRST_SLOT + slots) if number in written)
    return TracedFormula(UfuncProgram(tuple(tape.operations), slots, tape.registers, changed), tuple(tape.constants))


def try_trace(formula: Formula, slots: int) -> TracedFormula | None:
    """Return the program of a formula (:func:`trace`); None where it cannot be traced, like some users' formulas."""
    try:
        return trace(formula, slots)
    except (TypeError, AttributeError):  # also Untraceable: symbols support ufuncs and operators only
        return None


class _Tape:
    """Records the ufuncs called on its symbols."""

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
            raise Untraceable(f"{type(value).__name__} cannot be an operand")
        self.constants.append(float(value))
        return UfuncOperand("constant", len(self.constants) - 1)


class _Symbol(NDArrayOperatorsMixin):
    """A placeholder for a block of numbers."""

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
        raise Untraceable("the formula converts a block to a numpy array")

    def __bool__(self) -> bool:
        raise Untraceable("the formula branches on values of a block")
