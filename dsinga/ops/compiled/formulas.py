"""Compiles an optimizer's formula, so that a param is updated in one pass, with the bits of its ufuncs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from dsinga.base.buffers import address
from dsinga.ops.compiled.compiler import is_compiled, load_loop
from dsinga.ops.types import FLOAT32, Array, Formula
from dsinga.ops.ufunc_programs import FIRST_SLOT, G, UfuncOperand, UfuncProgram, W, try_trace

_CALLS = {
    "add": "{} + {}",
    "subtract": "{} - {}",
    "multiply": "{} * {}",
    "divide": "{} / {}",
    "sqrt": "np.sqrt({})",
    "square": "{0} * {0}",
    "maximum": "({0} if {0} >= {1} or {0} != {0} else {1})",
    "minimum": "({0} if {0} <= {1} or {0} != {0} else {1})",
    "fmax": "({0} if {0} >= {1} or {1} != {1} else {1})",
    "fmin": "({0} if {0} <= {1} or {1} != {1} else {1})",
    "absolute": "abs({})",
    "negative": "-{}",
    "positive": "{}",
}


def compiled_formula(formula: Formula, arrays: Sequence[Array]) -> Formula | None:
    """Compile a formula to one loop over 1-d ``arrays`` that updates value and state in place.

    Returns None without numba, for small arrays, and where that is impossible.
    """
    value, gradient, *state = arrays
    shape = value.shape
    if not is_compiled(value.size) or any(each.dtype != FLOAT32 or each.shape != shape for each in arrays):
        return None
    if not gradient.flags.c_contiguous or not all(each.flags.carray for each in (value, *state)):
        return None
    traced = try_trace(formula, len(state))
    if traced is None or (loop := _loop(traced.program)) is None:
        return None
    constants = np.array(traced.constants, np.float32)

    def run(w: Array, g: Array, state: Sequence[Array], t: Array, s: Array) -> None:
        loop(*map(address, (w, g, *state, constants)), w.size)

    return run


@cache
def _loop(program: UfuncProgram) -> Callable[..., None] | None:
    return load_loop(source_of(program), "f" * (FIRST_SLOT + program.slots + 1) + "n")


def source_of(program: UfuncProgram) -> str:
    """Generate the Python source of a program's loop, with registers r0, r1, ..."""
    arrays = ["w", "g", *(f"h{slot}" for slot in range(program.slots))]
    used = {W, G, *range(FIRST_SLOT, FIRST_SLOT + program.slots)}
    lines = [f"r{number} = {arrays[number]}[at]" for number in sorted(used)]
    for name, result, operands in program.operations:
        lines.append(f"r{result} = {_CALLS[name].format(*map(_written, operands))}")
    lines += [f"{arrays[number]}[at] = r{number}" for number in program.changed]
    body = "\n        ".join(lines)
    return f"def loop({', '.join(arrays)}, c, size):\n    for at in range(size):\n        {body}\n"


def _written(operand: UfuncOperand) -> str:
    return f"r{operand.number}" if operand.kind == "register" else f"c[{operand.number}]"
