"""Recurrent layers: one matrix product for all inputs, one product and launch a step, one product for the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.addons.gpu.cupy.arrays import cast, contiguous
from dsinga.addons.gpu.cupy.library import Source, cupy
from dsinga.addons.gpu.cupy.products import Blas, column_sums, operand
from dsinga.addons.gpu.cupy.recording import CupyRecording
from dsinga.ops.packing import Packing, pack_sequences
from dsinga.ops.types import BFLOAT16, CELL_ACTIVATIONS, FLOAT32, Array, CellActivations

_cells, _elementwise = Source("cells"), Source("elementwise")


class CellLayout(NamedTuple):
    """A cell's layout: its gates, its arrays in a state, and the columns (times H) that the two products fill."""

    width: int
    parts: int
    from_x: slice
    from_h: slice


CELL_LAYOUTS = {
    "rnn": CellLayout(1, 1, slice(0, 1), slice(0, 1)),
    "gru": CellLayout(4, 1, slice(0, 3), slice(1, 4)),
    "lstm": CellLayout(4, 2, slice(0, 4), slice(0, 4)),
}

ACTIVATION_NUMBERS = {"sigmoid": 0, "tanh": 1, "relu": 2, "identity": 3}  # as in cells.cu


class DevicePacking(NamedTuple):
    """How sequences are packed, on the host and on the device.

    ``last`` are the rows of each sequence's last state, ``before`` of the states before each packed step, None for the
    first rows.
    """

    packing: Packing
    order: Array
    places: Array
    last: Array
    before: Array | None


class CupyRecurrentWorkspace(NamedTuple):
    """The values for the backward pass: steps, packed x (N, n), gates (N, width·H), states (B + N, parts·H)."""

    packed: DevicePacking
    x: Array
    gates: Array
    states: Array
    outputs: Array
    weights: tuple[Array, Array]
    functions: Sequence[int]


PACKINGS = 64  # of sequences that are all equally long, kept on the device


class CupyRecurrent(CupyRecording):
    """Simple recurrent, GRU and LSTM layers."""

    blas: Blas

    def __init__(self) -> None:
        super().__init__()
        self._packings: dict[tuple[int, int, bool], DevicePacking] = {}

    def _packing(self, batch: int, times: int, lengths: Array | None, reverse: bool) -> DevicePacking:
        if lengths is not None:
            return to_device(pack_sequences(batch, times, self.to_numpy(lengths), reverse))
        key = batch, times, reverse
        if key not in self._packings:
            if len(self._packings) >= PACKINGS:
                self._packings.clear()
            self._packings[key] = to_device(pack_sequences(batch, times, None, reverse))
        return self.held(self._packings[key])

    def recurrent(
        self, cell: str, x: Array, params: Sequence[Array], state: Array | None, lengths: Array | None, reverse: bool,
        train: bool, activations: CellActivations = CELL_ACTIVATIONS,
    ) -> tuple[Array, Array, Any]:  # fmt: skip
        layout, (w_x, w_h, b) = CELL_LAYOUTS[cell], join(cell, params)
        size, (batch, times) = w_h.shape[1], x.shape[:2]
        packed = self._packing(batch, times, lengths, reverse)
        packing, order, places = packed[:3]
        total, x = len(packing.places), cast(x, FLOAT32)
        gates = cupy.empty((total, layout.width * size), x.dtype)
        states = cupy.empty((batch + total, layout.parts * size), x.dtype)
        rounds, functions = self.blas.bf16 and x.dtype == FLOAT32, _numbers(cell, activations)
        outputs, dtype = states[:, :size], x.dtype
        if rounds:
            outputs, dtype = cupy.empty((batch + total, size), BFLOAT16), BFLOAT16
            w_x, w_h = cast(w_x, BFLOAT16), cast(w_h, BFLOAT16)
        run = CupyRecurrentWorkspace(packed, pack(x, places, dtype), gates, states, outputs, (w_x, w_h), functions)
        rows = cupy.zeros(gates.shape[1], x.dtype)
        if b is not None:
            rows[: len(b)] = b
        _elementwise.each("fill_rows", x.dtype, gates.size, rows, gates, gates.shape[1])
        self.blas.multiply(run.x, w_x.T, gates[:, _columns(layout.from_x, size)], add=True)
        states[:batch] = 0 if state is None else state[order]
        if rounds:
            outputs[:batch] = cast(contiguous(states[:batch, :size]), BFLOAT16)
        weights = operand(w_h.T)
        for count, before, now in packing.steps():
            step = gates[now - batch : now - batch + count]
            old, new = states[before : before + count], states[now : now + count]
            previous, factor = outputs[before : before + count], outputs[now : now + count] if rounds else None
            self.blas.multiply(previous, weights, step[:, _columns(layout.from_h, size)], add=True)
            _cells.each(cell, dtype, count * size, old, new, factor, step, *functions, size)
        y = unpack(states[batch:, :size], places, (batch, times))
        return y, states[packed.last], run if train else None

    def recurrent_grad(
        self, cell: str, params: Sequence[Array], workspace: Any, dy: Array, need_dx: bool, need_dstate: bool,
        dlast: Array | None = None,
    ) -> tuple[Array | None, Array | None, Sequence[Array]]:  # fmt: skip
        layout, biases = CELL_LAYOUTS[cell], params[6 if cell == "gru" else 2 :]
        packed, x, gates, states, outputs, (w_x, w_h), functions = workspace
        packing, order, places = packed[:3]
        size, (batch, times) = w_h.shape[1], dy.shape[:2]
        dy = cast(dy, FLOAT32)
        dh, dgates = pack(dy, places, dy.dtype), cupy.empty_like(gates, dtype=outputs.dtype)
        d = cupy.zeros((batch, states.shape[1]), states.dtype)
        if dlast is not None:
            d[...] = dlast[order]
        weights = operand(w_h)
        for count, before, now in reversed(list(packing.steps())):
            rows = slice(now - batch, now - batch + count)
            old, new = states[before : before + count], states[now : now + count]
            arrays = old, new, gates[rows], dh[rows], d, dgates[rows]
            _cells.each(f"{cell}_grad", dgates.dtype, count * size, *arrays, *functions, size)
            self.blas.multiply(dgates[rows, _columns(layout.from_h, size)], weights, d[:count, :size], add=True)
        from_x = dgates[:, _columns(layout.from_x, size)]
        from_h = dgates[:, _columns(layout.from_h, size)]
        dw_x = self.blas.multiply(from_x.T, x)
        previous = outputs[: len(packing.places)] if packed.before is None else outputs[packed.before]
        dw_h = self.blas.multiply(from_h.T, previous)
        biased = dgates[:, : sum(map(len, biases))]
        db = column_sums(contiguous(biased), rounded=states.dtype) if biases else None
        dx = unpack(self.blas.multiply(from_x, w_x), places, (batch, times)) if need_dx else None
        dstate = None
        if need_dstate:
            dstate = cupy.empty_like(d)
            dstate[order] = d
        return dx, dstate, split(cell, dw_x, dw_h, db)


def join(cell: str, params: Sequence[Array]) -> tuple[Array, Array, Array | None]:
    """Join a cell's params into (w_x, w_h, b), with a row for each column of their product."""
    if cell == "gru":
        z_x, r_x, c_x, z_h, r_h, c_h, *bias = params
        b = cupy.concatenate((bias[2], bias[0], bias[1], *bias[3:])) if bias else None
        return cupy.concatenate((c_x, z_x, r_x)), cupy.concatenate((z_h, r_h, c_h)), b
    return params[0], params[1], params[2] if len(params) > 2 else None


def split(cell: str, w_x: Array, w_h: Array, b: Array | None) -> list[Array]:
    """Undo :func:`join`, for gradients of the params."""
    if cell == "gru":
        (c_x, z_x, r_x), weights_h = cupy.split(w_x, 3), cupy.split(w_h, 3)
        if b is None:
            return [z_x, r_x, c_x, *weights_h]
        c_b, z_b, r_b, *s_b = cupy.split(b, len(b) // w_h.shape[1])
        return [z_x, r_x, c_x, *weights_h, z_b, r_b, c_b, *s_b]
    return [w_x, w_h] if b is None else [w_x, w_h, b]


def pack(x: Array, places: Array, dtype: np.dtype) -> Array:
    """Gather the steps of x (B, T, n) at ``places`` among its B·T rows, (N, n) of ``dtype``."""
    packed = cupy.empty((places.size, x.shape[2]), dtype)
    _cells.each("pack", dtype, packed.size, contiguous(x), places, packed, x.shape[2])
    return packed


def unpack(packed: Array, places: Array, shape: tuple[int, int]) -> Array:
    """Undo :func:`pack`: return (B, T, n) with zeros where there was no step."""
    columns = packed.shape[1]
    is_full = places.size == shape[0] * shape[1]
    x = (cupy.empty if is_full else cupy.zeros)((*shape, columns), packed.dtype)
    _cells.each("unpack", x.dtype, packed.size, contiguous(packed), places, x, columns)
    return x


def _numbers(cell: str, activations: CellActivations) -> list[int]:
    """Return the activations' numbers for a cell's kernels: none, two, or all."""
    count = {"rnn": 0, "gru": 2, "lstm": 3}[cell]
    return [ACTIVATION_NUMBERS[name] for name in activations[:count]]


def _columns(part: slice, size: int) -> slice:
    return slice(part.start * size, part.stop * size)


def to_device(packing: Packing) -> DevicePacking:
    """Copy a packing's arrays to the device."""
    before, last = rows_before(packing), cupy.asarray(last_rows(packing))
    order, places = cupy.asarray(packing.order), cupy.asarray(packing.places)
    return DevicePacking(packing, order, places, last, None if before is None else cupy.asarray(before))


def last_rows(packing: Packing) -> np.ndarray:
    """Return (B,): the row of each sequence's last state, or of its first state without steps."""
    starts = np.array([now for _, _, now in packing.steps()], np.int64)
    place = np.arange(len(packing.order))
    running = packing.lengths > 0
    place[running] += starts[packing.lengths[running] - 1]
    rows = np.empty_like(place)
    rows[packing.order] = place
    return rows


def rows_before(packing: Packing) -> np.ndarray | None:
    """Return (N,): the row of the state before each packed step; None for equally long sequences."""
    if len(set(packing.counts)) == 1 and packing.counts[0] == len(packing.order):
        return None
    rows = [np.arange(before, before + count) for count, before, _ in packing.steps()]
    return np.concatenate(rows) if rows else np.zeros(0, np.int64)
