"""Recurrent layers over whole sequences: few products, large ones, and cells that work in place.

All steps meet the input weights in one product, before the first step; each step has one product with the weights of
all its gates; the gradient for the weights is one product over all steps, after the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.interface import Array, Ops
from dsinga.ops.numpy_cells import CELLS
from dsinga.ops.packing import Packing, pack_sequences


class Run(NamedTuple):
    """What the way back needs of the way there: steps, packed x (N, n), gates (N, width·H), states (B + N, parts·H)."""

    packing: Packing
    x: Array
    gates: Array
    states: Array


def _columns(array: Array, between: tuple[int, int], size: int) -> Array:
    return array[:, between[0] * size : between[1] * size]


class NumpyRecurrent(Ops):
    """Simple recurrent, GRU and LSTM layers; a backend may have faster products and sigmoids."""

    def multiply_into(self, a: Array, b: Array, out: Array, add: bool = False) -> None:
        """Compute a b into ``out``, or ``add`` it to out; 2-d, each with unit stride along one of its axes."""
        if add:
            out += a @ b
        else:
            np.matmul(a, b, out=out)

    def as_right_factor(self, matrix: Array) -> Array:
        """Return ``matrix``, in the layout that suits many products in which it stands on the right."""
        return matrix

    def recurrent(
        self,
        cell: str,
        x: Array,
        params: Sequence[Array],
        state: Array | None,
        lengths: Array | None,
        reverse: bool,
        train: bool,
    ) -> tuple[Array, Array, Any]:
        kind = CELLS[cell]
        w_x, w_h, b = kind.join(params)
        size, (batch, times) = w_h.shape[1], x.shape[:2]
        packing = pack_sequences(batch, times, lengths, reverse)
        total = len(packing.places)
        run = Run(
            packing,
            packing.pack(x),
            buffers.empty((total, kind.width * size), dtype=x.dtype),
            buffers.empty((batch + total, kind.parts * size), dtype=x.dtype),
        )
        run.gates[...] = 0
        inputs = _columns(run.gates, kind.from_x, size)
        if b is not None:
            inputs[...] = b
        self.multiply_into(run.x, w_x.T, inputs, add=b is not None)
        run.states[:batch] = 0 if state is None else state[packing.order]
        scratch, weights = buffers.empty((2, batch, size), dtype=x.dtype), self.as_right_factor(w_h.T)
        with np.errstate(over="ignore"):
            for count, before, now in packing.steps():
                gates = run.gates[now - batch : now - batch + count]
                old, new = run.states[before : before + count], run.states[now : now + count]
                self.multiply_into(old[:, :size], weights, _columns(gates, kind.from_h, size), add=True)
                kind.step(gates, old, new, scratch[:, :count])
        y = packing.unpack(run.states[batch:, :size], times)
        return y, packing.last(run.states), run if train else None

    def recurrent_grad(
        self, cell: str, params: Sequence[Array], workspace: Any, dy: Array, need_dx: bool, need_dstate: bool
    ) -> tuple[Array | None, Array | None, list[Array]]:
        kind, (packing, x, gates, states) = CELLS[cell], workspace
        w_x, w_h, b = kind.join(params)
        size, (batch, times) = w_h.shape[1], dy.shape[:2]
        dh = packing.pack(dy)
        dgates = buffers.empty(gates.shape, dtype=gates.dtype)
        d = np.zeros((batch, states.shape[1]), states.dtype)
        scratch, weights = buffers.empty((2, batch, size), dtype=x.dtype), self.as_right_factor(w_h)
        for count, before, now in reversed(list(packing.steps())):
            rows = slice(now - batch, now - batch + count)
            old, new = states[before : before + count], states[now : now + count]
            d[:count, :size] += dh[rows]
            kind.step_grad(gates[rows], old, new, d[:count], dgates[rows], scratch[:, :count])
            from_h = _columns(dgates[rows], kind.from_h, size)
            self.multiply_into(from_h, weights, d[:count, :size], add=True)
        from_x, from_h = _columns(dgates, kind.from_x, size), _columns(dgates, kind.from_h, size)
        dw_x, dw_h = (buffers.empty(w.shape, dtype=w.dtype) for w in (w_x, w_h))
        self.multiply_into(from_x.T, x, dw_x)
        self.multiply_into(from_h.T, packing.before(states)[:, :size], dw_h)
        db = None if b is None else from_x.sum(axis=0)
        dx = None
        if need_dx:
            packed = buffers.empty(x.shape, dtype=x.dtype)
            self.multiply_into(from_x, w_x, packed)
            dx = packing.unpack(packed, times)
        return dx, packing.unsort(d) if need_dstate else None, kind.split(dw_x, dw_h, db)
