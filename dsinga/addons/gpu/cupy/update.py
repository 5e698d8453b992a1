"""Updates all params of a worker by one kernel launch, generated from the updater's formulas.

Each formula is traced once on symbols (dsinga.ops.ufunc_programs), and compiled as CUDA once for each set of programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.addons.gpu.cupy.arrays import contiguous
from dsinga.addons.gpu.cupy.library import Source, cupy
from dsinga.addons.gpu.cupy.recording import CupyRecording
from dsinga.ops.types import Array, NotCapturable
from dsinga.ops.ufunc_programs import FIRST_SLOT, TracedFormula, UfuncOperand, UfuncProgram, try_trace
from dsinga.ops.update import Update, apply

CHUNK = 2048  # elements that a block changes, as in update.cu
STATE = 6  # the first column of a param's state, as in update.cu
TABLES = 64  # of chunks that are kept
FLOAT32 = np.dtype(np.float32)

_norms = Source("norms")
_sources: dict[tuple[UfuncProgram, ...], Source] = {}
_CALLS = {
    "add": "__fadd_rn({}, {})",
    "subtract": "__fsub_rn({}, {})",
    "multiply": "__fmul_rn({}, {})",
    "divide": "__fdiv_rn({}, {})",
    "sqrt": "__fsqrt_rn({})",
    "square": "__fmul_rn({0}, {0})",
    "maximum": "larger({}, {})",
    "minimum": "smaller({}, {})",
    "fmax": "fmaxf({}, {})",
    "fmin": "fminf({}, {})",
    "absolute": "fabsf({})",
    "negative": "-{}",
    "positive": "{}",
}


class CupyUpdate(CupyRecording):
    """Updates all params at once; used by one thread at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._params: tuple[np.ndarray, Array] | None = None
        self._chunks: dict[tuple[int, ...], tuple[Array, Array]] = {}

    def update(self, updates: Sequence[Update], clip_norm: float = 0.0) -> None:
        formulas = [self._trace_update(update) for update in updates]
        for update, traced in zip(updates, formulas, strict=True):
            if traced is None and update.gradient.size:
                apply(update, clip_norm)
        together = [
            (dense(update), traced)
            for update, traced in zip(updates, formulas, strict=True)
            if traced and update.gradient.size
        ]
        if together:
            self._launch(together, clip_norm)

    def check_recordable(self, updates: Sequence[Update]) -> None:
        for update in updates:
            if update.rows is not None or (update.gradient.size and self._trace_update(update) is None):
                raise NotCapturable("a formula of the updater is no kernel of its own, or takes sparse gradients")

    def _trace_update(self, update: Update) -> TracedFormula | None:
        """Trace an update's formula to a program; None if it must be called, such as a user's."""
        if any(array.dtype != FLOAT32 for array in (update.value, update.gradient, *update.state)):
            return None
        return try_trace(update.formula, len(update.state))

    def _launch(self, together: Sequence[tuple[Update, TracedFormula]], clip_norm: float) -> None:
        programs = tuple(dict.fromkeys(traced.program for _, traced in together))
        params = self._param_table(together, programs)
        chunks, first = self._chunk_tables(tuple(update.gradient.size for update, _ in together))
        columns, shrink = params.shape[1], None
        if clip_norm:
            sums, shrink = cupy.empty(len(chunks), np.float64), cupy.empty(len(params), np.float32)
            _norms.grid("squares", FLOAT32, (len(chunks),), params, chunks, sums, columns)
            _norms.rows("shrinkages", FLOAT32, len(params), sums, first, shrink, float(clip_norm))
        if programs not in _sources:
            _sources[programs] = Source("update", prologue(programs))
        finite = None if self.block is None else self.block.finite
        _sources[programs].grid("update", FLOAT32, (len(chunks),), params, chunks, shrink, finite, columns)

    def _param_table(
        self, together: Sequence[tuple[Update, TracedFormula]], programs: tuple[UfuncProgram, ...]
    ) -> Array:
        """Return the table of params on the device, the last call's if unchanged."""
        table = table_of(together, programs)
        if self.block is not None:
            constants = UpdateConstants(table, together)
            return self.block.numbers(table.size, constants).reshape(table.shape)
        if self._params is None or not np.array_equal(self._params[0], table):
            self._params = table, cupy.asarray(table)
        return self._params[1]

    def _chunk_tables(self, sizes: tuple[int, ...]) -> tuple[Array, Array]:
        if sizes not in self._chunks:
            if len(self._chunks) >= TABLES:
                self._chunks.clear()
            chunks, first = chunks_of(np.array(sizes))
            self._chunks[sizes] = cupy.asarray(chunks), cupy.asarray(first)
        return self.held(self._chunks[sizes])


class UpdateConstants:
    """Writes the table of updates with the constants of their formulas at a step."""

    def __init__(self, table: np.ndarray, together: Sequence[tuple[Update, TracedFormula]]):
        self._table = table
        self._rows: dict[tuple[Any, int, UfuncProgram], list[int]] = {}
        for row, (update, traced) in enumerate(together):
            if (series := getattr(update.formula, "series", None)) is not None:
                key = series, len(update.state), traced.program
                self._rows.setdefault(key, []).append(row)

    def __call__(self, step: int, place: np.ndarray) -> None:
        """Write the table of ``step``; raise NotCapturable if a formula has other operations then."""
        for (series, slots, program), rows in self._rows.items():
            traced = try_trace(series.at(step), slots)
            if traced is None or traced.program != program:
                raise NotCapturable(f"updates of step {step} have other formulas than those that were captured")
            first = STATE + slots
            self._table[rows, first : first + len(traced.constants)] = bits_of(traced.constants)
        place[:] = self._table.reshape(-1)


def dense(update: Update) -> Update:
    """Make the gradient and rows of an update contiguous; value and state are contiguous."""
    assert all(array.flags.c_contiguous for array in (update.value, *update.state))
    rows = None if update.rows is None else contiguous(update.rows, np.int64)
    return update._replace(gradient=contiguous(update.gradient), rows=rows)


def table_of(together: Sequence[tuple[Update, TracedFormula]], programs: tuple[UfuncProgram, ...]) -> np.ndarray:
    """Describe each param in a row of int64, with the columns of update.cu."""
    states = max(len(update.state) for update, _ in together)
    constants = max(len(traced.constants) for _, traced in together)
    table = np.zeros((len(together), STATE + states + constants), np.int64)
    for row, (update, traced) in zip(table, together, strict=True):
        rows, width = 0, 1
        if update.rows is not None:
            rows, width = update.rows.data.ptr, update.gradient.shape[1]
        addresses = [array.data.ptr for array in (update.value, update.gradient, *update.state)]
        row[:STATE] = programs.index(traced.program), rows, width, update.gradient.size, *addresses[:2]
        row[STATE : STATE + len(update.state)] = addresses[2:]
        first = STATE + len(update.state)
        row[first : first + len(traced.constants)] = bits_of(traced.constants)
    return table


def bits_of(constants: Sequence[float]) -> np.ndarray:
    """View float64 constants as int64, to store them in the table."""
    return np.array(constants, np.float64).view(np.int64)


def chunks_of(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Divide params into blocks: (param, first element) of each block, and each param's first block, then the total."""
    counts = -(-sizes // CHUNK)
    first = np.concatenate(([0], np.cumsum(counts)))
    params = np.repeat(np.arange(len(sizes)), counts)
    return np.stack((params, CHUNK * (np.arange(first[-1]) - first[params])), axis=1), first


def prologue(programs: Sequence[UfuncProgram]) -> str:
    """Return the line that defines PROGRAMS."""
    cases = " ".join(f"case {number}: {{ {body(program)} }} break;" for number, program in enumerate(programs))
    return f"#define PROGRAMS {cases}\n"


def body(program: UfuncProgram) -> str:
    """Generate a program's C++ for the element ``at``, with registers r0, r1 (``g``), ..."""
    slots = program.slots
    lines = [f"float* w = (float*)row[VALUE]; const double* c = (const double*)(row + STATE + {slots});"]
    lines += [f"float* h{slot} = (float*)row[STATE + {slot}];" for slot in range(slots)]
    places = {0: "w[at]", **{FIRST_SLOT + slot: f"h{slot}[at]" for slot in range(slots)}}
    values = {**places, 1: "g"}
    lines += [f"float r{number} = {values.get(number, '0')};" for number in range(program.registers)]
    for name, result, operands in program.operations:
        lines.append(f"r{result} = {_CALLS[name].format(*map(_written, operands))};")
    lines += [f"{places[number]} = r{number};" for number in program.changed]
    return " ".join(lines)


def _written(operand: UfuncOperand) -> Any:
    return f"r{operand.number}" if operand.kind == "register" else f"(float)c[{operand.number}]"
