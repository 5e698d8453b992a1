"""Recurrent layers over whole sequences, with few large matrix products and cells that compute in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base import buffers
from dsinga.ops.numpy.cells import CELLS, FUNCTIONS, CellFunctions, sigmoid
from dsinga.ops.packing import Packing, pack_sequences
from dsinga.ops.types import CELL_ACTIVATIONS, Array, CellActivations

# Numbers between one row and the next: products read columns, whose numbers would share few sets of the caches if rows
# were a power of two apart.
GAP = 16


class RecurrentWorkspace(NamedTuple):
    """The values for the backward pass: steps, packed x (N, n), gates (width, N, H), states (parts, B + N, H)."""

    packing: Packing
    x: Array
    gates: Array
    states: Array
    functions: CellFunctions


class NumpyRecurrent:
    """Simple recurrent, GRU and LSTM layers; a subclass may have faster products and sigmoids."""

    def multiply_into(self, a: Array, b: Array, out: Array, add: bool = False) -> None:
        """Compute a b into ``out``, or ``add`` it; 2-d, each with unit stride along one axis."""
        if add:
            out += a @ b
        else:
            np.matmul(a, b, out=out)

    def factor(self, matrix: Array, rows: Sequence[int]) -> Any:
        """Prepare a matrix for :meth:`multiply_by`; ``rows`` are the row counts of later products."""
        return matrix

    def multiply_by(self, a: Array, factor: Any, out: Array) -> None:
        """Multiply ``a`` by a prepared matrix into the C-contiguous ``out``."""
        self.multiply_into(a, factor, out)

    def sigmoid_into(self, x: Array, out: Array) -> None:
        """Compute the sigmoid of contiguous x into ``out``, which may be x."""
        sigmoid(x, out)

    def cell_functions(self, activations: CellActivations) -> CellFunctions:
        """Look up a cell's activations by name, with the backend's sigmoid."""
        functions = {**FUNCTIONS, "sigmoid": FUNCTIONS["sigmoid"]._replace(apply=self.sigmoid_into)}
        return CellFunctions(*(functions[name] for name in activations))

    def recurrent(
        self, cell: str, x: Array, params: Sequence[Array], state: Array | None, lengths: Array | None, reverse: bool,
        train: bool, activations: CellActivations = CELL_ACTIVATIONS,
    ) -> tuple[Array, Array, Any]:  # fmt: skip
        """Run sequences x (B, T, n) through a recurrent cell: (B, T, H), the last state (B, S), workspace if ``train``.

        Cells (formulas: :mod:`dsinga.ops.numpy.cells`), their params (biases may be left out together) and the width S
        of a state:

        - "rnn": W_hx (H, n), W_hh (H, H), b (H,). S = H.
        - "gru": z_hx, r_hx, c_hx (H, n), z_hh, r_hh, c_hh (H, H), b_z, b_r, b_c (H,), perhaps b_s (H,): c = tanh(x
          W_cxᵀ + b_c + r∘(h W_chᵀ + b_s)). S = H.
        - "lstm": W_hx (4H, n), W_hh (4H, H), b (4H,), the gates in the order i, f, g, o. S = 2H: h, then c.

        ``state`` (B, S) is the first state of each row, zeros if None. The first ``lengths[b]`` steps of row b are
        computed (None: all); the others are 0. If ``reverse``, a row runs from its last step to its first.
        ``activations`` replace the σ of "gru" and "lstm" (gate), the tanh of c and g (candidate), and tanh(c') (cell).
        """
        kind, functions = CELLS[cell], self.cell_functions(activations)
        w_x, w_h, b = kind.join(params)
        size, (batch, times) = w_h.shape[1], x.shape[:2]
        packing = pack_sequences(batch, times, lengths, reverse)
        total = len(packing.places)
        run = RecurrentWorkspace(
            packing,
            packing.pack(x),
            buffers.empty((kind.width, total, size), dtype=x.dtype),
            buffers.empty((kind.parts, batch + total, size), dtype=x.dtype),
            functions,
        )
        biases = () if b is None else b.reshape(-1, size)
        for gate, bias in enumerate(biases):
            run.gates[gate] = bias
        for gate in kind.from_x:
            self.multiply_into(run.x, w_x[gate * size : (gate + 1) * size].T, run.gates[gate], add=b is not None)
        run.states[:, :batch] = 0 if state is None else _by_part(state[packing.order], kind.parts)
        scratch = buffers.empty((3, batch, size), dtype=x.dtype)
        product, weights = buffers.empty((batch, len(w_h)), dtype=x.dtype), self.factor(w_h.T, packing.counts)
        with np.errstate(over="ignore"):
            for count, before, now in packing.steps():
                gates = run.gates[:, now - batch : now - batch + count]
                old, new = run.states[:, before : before + count], run.states[:, now : now + count]
                self.multiply_by(old[0], weights, product[:count])
                for gate, part in zip(kind.from_h, _by_part(product[:count], len(kind.from_h)), strict=True):
                    if gate in kind.from_x or gate < len(biases):
                        gates[gate] += part
                    else:
                        gates[gate] = part
                kind.step(gates, old, new, scratch[:, :count], functions)
        y = packing.unpack(run.states[0, batch:], times)
        return y, _in_rows([packing.last(part) for part in run.states]), run if train else None

    def recurrent_grad(
        self, cell: str, params: Sequence[Array], workspace: Any, dy: Array, need_dx: bool, need_dstate: bool,
        dlast: Array | None = None,
    ) -> tuple[Array | None, Array | None, Sequence[Array]]:  # fmt: skip
        """Return (dx (B, T, n), dstate (B, S), gradients like ``params``); the first two are None if not needed.

        ``dlast`` is the gradient of the last state (B, S), None for zeros.
        """
        kind, (packing, x, gates, states, functions) = CELLS[cell], workspace
        w_x, w_h, b = kind.join(params)
        size, (batch, times), total = w_h.shape[1], dy.shape[:2], len(packing.places)
        dh = packing.pack(dy)
        columns = kind.width * size
        dgates = buffers.empty((total, columns + GAP), dtype=gates.dtype)[:, :columns]  # rows, as products need them
        d = np.empty_like(states, shape=(kind.parts, batch, size))
        d[...] = 0 if dlast is None else _by_part(dlast[packing.order], kind.parts)
        scratch = buffers.empty((3, batch, size), dtype=x.dtype)
        product, weights = buffers.empty((batch, size), dtype=x.dtype), self.factor(w_h, packing.counts)
        from_x, from_h = (dgates[:, part.start * size : part.stop * size] for part in (kind.from_x, kind.from_h))
        for count, before, now in reversed(list(packing.steps())):
            rows = slice(now - batch, now - batch + count)
            old, new = states[:, before : before + count], states[:, now : now + count]
            d[0, :count] += dh[rows]
            gradients = _by_part(dgates[rows], kind.width)
            kind.step_grad(gates[:, rows], old, new, d[:, :count], gradients, scratch[:, :count], functions)
            self.multiply_by(from_h[rows], weights, product[:count])
            d[0, :count] += product[:count]
        dw_x, dw_h = (buffers.empty(w.shape, dtype=w.dtype) for w in (w_x, w_h))
        self.multiply_into(from_x.T, x, dw_x)
        self.multiply_into(from_h.T, packing.before(states[0]), dw_h)
        db = None if b is None else dgates[:, : len(b)].sum(axis=0)
        dx = None
        if need_dx:
            packed = buffers.empty(x.shape, dtype=x.dtype)
            self.multiply_into(from_x, w_x, packed)
            dx = packing.unpack(packed, times)
        dstate = _in_rows([packing.unsort(part) for part in d]) if need_dstate else None
        return dx, dstate, kind.split(dw_x, dw_h, db)


def _by_part(rows: Array, parts: int) -> Array:
    return rows.reshape(len(rows), parts, rows.shape[1] // parts).transpose(1, 0, 2)


def _in_rows(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
