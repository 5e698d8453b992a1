"""Traces an optimizer's formula into a list of numpy ufuncs, which a backend compiles to one kernel."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from dsinga.ops.types import Formula

OPERATIONS = {
    np.add, np.subtract, np.multiply, np.divide, np.sqrt, np.square, np.maximum, np.minimum, np.fmax, np.fmin,
    np.absolute, np.negative, np.positive,
}  # fmt: skip
W, G, FIRST_SLOT = 0, 1, 2
FORMULAS = 256  # whose programs are kept
FAULTS = TypeError, AttributeError  # of what is no ufunc or operator of symbols; an Untraceable is a TypeError


class Untraceable(TypeError):
    """Error: a formula depends on values, or calls a function outside OPERATIONS."""


class UfuncOperand(NamedTuple):
    """An operand of a traced ufunc: a register or a constant, by its number."""

    kind: Literal["register", "constant"]
    number: int


class UfuncCall(NamedTuple):
    """A traced call of a ufunc: its name, the register of its result, and its operands."""

    name: str
    result: int
    operands: tuple[UfuncOperand, ...]


class UfuncProgram(NamedTuple):
    """A formula's ufuncs for each element, in order, without its constants' values.

    Registers are w, g, one for each of the ``slots`` of state, then temporary ones, ``registers`` in all. ``changed``
    are the written registers among w and state.
    """

    operations: tuple[UfuncCall, ...]
    slots: int
    registers: int
    changed: tuple[int, ...]


class TracedFormula(NamedTuple):
    """A program of ufuncs with its constants, in the order of use."""

    program: UfuncProgram
    constants: tuple[float, ...]


Numbers = Sequence[Any]  # what a formula takes from its step: floats, integers, and None for what it does without
Calculation = tuple[int, Callable[[Any, Any], Any], int, int]  # the places of the result and of both arguments


class FormulaSeries(Protocol):
    """The formulas of one optimizer, which differ by the numbers of their step, such as the learning rate."""

    @property
    def programs(self) -> dict[Any, TracedSeries | None]:
        """The cached programs of :func:`trace_series`, by its other arguments."""

    def __call__(self, numbers: Numbers) -> Formula:
        """Return the formula for one step's numbers, or with symbols of them."""


class TracedSeries(NamedTuple):
    """A program of ufuncs, and how its constants follow from a formula's numbers."""

    program: UfuncProgram
    numbers: int
    values: tuple[Any, ...]
    calculations: tuple[Calculation, ...]
    constants: tuple[int, ...]

    def calculate(self, numbers: Numbers) -> list[Any]:
        """Compute ``values`` for these numbers, with Python's arithmetic."""
        values = [*numbers, *self.values[self.numbers :]]
        for result, function, left, right in self.calculations:
            values[result] = function(values[left], values[right])
        return values

    def formula(self, numbers: Numbers) -> TracedFormula:
        """Return the program with the constants for one step's numbers."""
        values = self.calculate(numbers)
        return TracedFormula(self.program, tuple([float(values[place]) for place in self.constants]))


def trace(formula: Formula, slots: int) -> TracedFormula:
    """Trace a formula with ``slots`` arrays of state into a program of ufuncs."""
    return _trace(_Tape(), formula, slots).formula(())


def _trace(tape: _Tape, formula: Formula, slots: int) -> TracedSeries:
    w, g, *state = (tape.symbol() for _ in range(FIRST_SLOT + slots))
    formula(w, g, state, tape.symbol(), tape.symbol())
    written = {operation.result for operation in tape.operations}
    if G in written:
        raise Untraceable("the formula changes the gradient")
    changed = tuple(number for number in range(FIRST_SLOT + slots) if number in written)
    program = UfuncProgram(tuple(tape.operations), slots, tape.registers, changed)
    return TracedSeries(program, tape.numbers, tuple(tape.values), tuple(tape.calculations), tuple(tape.constants))


def try_trace(formula: Formula, slots: int) -> TracedFormula | None:
    """Trace a formula into a program (:func:`trace`); None if that is impossible."""
    series: FormulaSeries | None = getattr(formula, "series", None)
    if series is None:
        return _trace_alone(formula, slots)
    numbers = getattr(formula, "numbers", ())
    if traced := trace_series(series, slots, tuple([each is None for each in numbers])):
        return traced.formula(numbers)
    with suppress(*FAULTS):
        return trace(formula, slots)
    return None


@lru_cache(FORMULAS)
def _trace_alone(formula: Formula, slots: int) -> TracedFormula | None:
    with suppress(*FAULTS):
        return trace(formula, slots)
    return None


def trace_series(series: FormulaSeries, slots: int, missing: tuple[bool, ...]) -> TracedSeries | None:
    """Trace a series' formulas into one program; ``missing`` marks numbers that are None."""
    key = slots, missing
    if key not in series.programs:
        tape = _Tape(len(missing))
        series.programs[key] = None
        with suppress(*FAULTS):
            numbers = [None if is_missing else _Number(tape, place) for place, is_missing in enumerate(missing)]
            series.programs[key] = _trace(tape, series(numbers), slots)
    return series.programs[key]


class _Tape:
    """Records ufuncs called on its symbols, and arithmetic on a formula's numbers."""

    def __init__(self, numbers: int = 0) -> None:
        self.operations: list[UfuncCall] = []
        self.values: list[Any] = [None] * numbers
        self.numbers = numbers
        self.calculations: list[Calculation] = []
        self.constants: list[int] = []
        self.registers = 0

    def symbol(self) -> _Symbol:
        self.registers += 1
        return _Symbol(self, self.registers - 1)

    def operand(self, value: Any) -> UfuncOperand:
        if isinstance(value, _Symbol) and value.tape is self:
            return UfuncOperand("register", value.number)
        self.constants.append(self.place(value))
        return UfuncOperand("constant", len(self.constants) - 1)

    def place(self, value: Any) -> int:
        if isinstance(value, _Number) and value.tape is self:
            return value.number
        if type(value) not in (int, float, np.float32):  # a float64 of numpy's would widen the block
            raise Untraceable(f"{type(value).__name__} cannot be an operand")
        self.values.append(value)
        return len(self.values) - 1

    def calculate(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> _Number:
        places = self.place(left), self.place(right)
        self.calculations.append((len(self.values), function, *places))
        self.values.append(None)
        return _Number(self, len(self.values) - 1)


class _Traced:
    """Base of symbols that stand for arrays or numbers while a formula is traced."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tape: _Tape, number: int):
        self.tape, self.number = tape, number

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise Untraceable("the formula converts a block or a number to a numpy array")

    def __bool__(self) -> bool:
        raise Untraceable("the formula branches on values of a block or on numbers of its step")


class _Symbol(_Traced, NDArrayOperatorsMixin):
    """Stands for an array (weights, gradient or state) while a formula is traced."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> _Symbol:
        (result,) = options.pop("out", (None,))
        if method != "__call__" or options or ufunc not in OPERATIONS:
            raise Untraceable(f"{ufunc.__name__} with {', '.join([method, *options])}")
        operands = tuple(self.tape.operand(value) for value in inputs)
        if all(operand.kind == "constant" for operand in operands):
            raise Untraceable(f"{ufunc.__name__} of numbers alone, which numpy computes in float64")
        if result is None:
            result = self.tape.symbol()
        self.tape.operations.append(UfuncCall(ufunc.__name__, self.tape.operand(result).number, operands))
        return result


def _operators(function: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the operator methods that record ``function`` of a number and an operand, and swapped."""

    def forward(self: _Number, other: Any) -> Any:
        return NotImplemented if isinstance(other, _Symbol) else self.tape.calculate(function, self, other)

    def reflected(self: _Number, other: Any) -> Any:
        return self.tape.calculate(function, other, self)

    return forward, reflected


class _Number(_Traced):
    """Stands for a formula's number, such as its learning rate, while it is traced."""

    __add__, __radd__ = _operators(operator.add)
    __sub__, __rsub__ = _operators(operator.sub)
    __mul__, __rmul__ = _operators(operator.mul)
    __truediv__, __rtruediv__ = _operators(operator.truediv)
    __pow__, __rpow__ = _operators(operator.pow)

    def __neg__(self) -> _Number:
        return self.tape.calculate(operator.mul, -1, self)

    def __eq__(self, other: object) -> bool:
        raise Untraceable("the formula compares numbers of its step")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(value, _Symbol) for value in (*inputs, *options.get("out", ()))):
            return NotImplemented  # its method is called next
        raise Untraceable(f"{ufunc.__name__} of numbers alone")
