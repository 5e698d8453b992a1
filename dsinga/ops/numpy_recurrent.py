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

    def factor(self, matrix: Array, rows: Sequence[int]) -> Any:
        """Return what :meth:`multiply_by` wants of a matrix that so many ``rows`` will be multiplied by, in turn."""
        return matrix

    def multiply_by(self, a: Array, factor: Any, out: Array) -> None:
        """Compute the product of ``a`` with a factor into ``out``, which is C-contiguous."""
        self.multiply_into(a, factor, out)

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
        inputs = _columns(run.gates, kind.from_x, size)
        if b is not None:
            inputs[...] = b
        run.gates[:, kind.from_x[1] * size :] = 0
        self.multiply_into(run.x, w_x.T, inputs, add=b is not None)
        run.states[:batch] = 0 if state is None else state[packing.order]
        scratch = buffers.empty((2, batch, size), dtype=x.dtype)
        product, weights = buffers.empty((batch, len(w_h)), dtype=x.dtype), self.factor(w_h.T, packing.counts)
        with np.errstate(over="ignore"):
            for count, before, now in packing.steps():
                gates = run.gates[now - batch : now - batch + count]
                old, new = run.states[before : before + count], run.states[now : now + count]
                self.multiply_by(old[:, :size], weights, product[:count])
                _columns(gates, kind.from_h, size)[...] += product[:count]
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
        scratch = buffers.empty((2, batch, size), dtype=x.dtype)
        product, weights = buffers.empty((batch, size), dtype=x.dtype), self.factor(w_h, packing.counts)
        for count, before, now in reversed(list(packing.steps())):
            rows = slice(now - batch, now - batch + count)
            old, new = states[before : before + count], states[now : now + count]
            d[:count, :size] += dh[rows]
            kind.step_grad(gates[rows], old, new, d[:count], dgates[rows], scratch[:, :count])
            self.multiply_by(_columns(dgates[rows], kind.from_h, size), weights, product[:count])
            d[:count, :size] += product[:count]
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
