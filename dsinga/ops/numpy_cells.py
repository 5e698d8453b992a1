"""The arithmetic of one step of a recurrent layer, forward and backward, in place and without temporaries.

A cell works on ``gates`` (n, width·H), the gates of n rows next to each other, and on states (n, parts·H). On its way
in, the gates hold what comes from the input, ``from_x``, plus what comes from the state before, ``from_h``, both of
them columns in units of H; on its way out, what the way back will need. ``scratch`` is (2, n, H), for whatever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dsinga.ops.interface import Array


def sigmoid(x: Array) -> None:
    """Replace x by 1/(1 + exp(-x)); exp may overflow to infinity, whose inverse is the right 0."""
    np.multiply(x, -1, out=x)  # numpy 2.4's negative is wrong on float32 columns 16 bytes apart
    np.exp(x, out=x)
    np.add(x, 1, out=x)
    np.reciprocal(x, out=x)


def by_gate(gates: Array, width: int) -> list[Array]:
    """Return views of the columns of each gate."""
    size = gates.shape[1] // width
    return [gates[:, i * size : (i + 1) * size] for i in range(width)]


class Cell:
    """What the cells have in common: sizes, and how their params make one matrix for each product.

    ``width`` is the number of gates in a row, ``parts`` that of arrays (n, H) in a state, the first of which is the
    output. ``from_x`` and ``from_h`` are the columns that the two products fill.
    """

    width: ClassVar[int]
    parts: ClassVar[int] = 1
    from_x: ClassVar[tuple[int, int]]
    from_h: ClassVar[tuple[int, int]]

    @staticmethod
    def join(params: Sequence[Array]) -> tuple[Array, Array, Array | None]:
        """Return (w_x, w_h, b): the weights with one row for each column of ``from_x`` and ``from_h``."""
        return params[0], params[1], params[2] if len(params) > 2 else None

    @staticmethod
    def split(w_x: Array, w_h: Array, b: Array | None) -> list[Array]:
        """Undo :meth:`join`."""
        return [w_x, w_h] if b is None else [w_x, w_h, b]

    @staticmethod
    def step(gates: Array, before: Array, now: Array, scratch: Array) -> None:
        """Compute the state ``now`` from the one ``before``."""
        raise NotImplementedError

    @staticmethod
    def step_grad(gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array) -> None:
        """Compute ``dgates``; replace ``d``, the gradient for ``now``, by that for ``before`` but for the product."""
        raise NotImplementedError


class RNN(Cell):
    """h' = tanh(x W_hxᵀ + h W_hhᵀ + b)."""

    width, from_x, from_h = 1, (0, 1), (0, 1)

    @staticmethod
    def step(gates: Array, before: Array, now: Array, scratch: Array) -> None:
        np.tanh(gates, out=now)

    @staticmethod
    def step_grad(gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array) -> None:
        np.multiply(now, now, out=dgates)
        np.subtract(1, dgates, out=dgates)
        dgates *= d
        d[...] = 0


class GRU(Cell):
    """SINGA's: the reset gate works on the product with the state, as in cuDNN and PyTorch.

    z = σ(x W_zxᵀ + h W_zhᵀ + b_z), r likewise, c = tanh(x W_cxᵀ + b_c + r∘s) with s = h W_chᵀ; h' = z∘h + (1 - z)∘c.
    In a row lie c, z, r, s: the first three get something from the input, the last three from the state.
    """

    width, from_x, from_h = 4, (0, 3), (1, 4)

    @staticmethod
    def join(params: Sequence[Array]) -> tuple[Array, Array, Array | None]:
        z_x, r_x, c_x, z_h, r_h, c_h, *bias = params
        b = np.concatenate((bias[2], bias[0], bias[1])) if bias else None
        return np.concatenate((c_x, z_x, r_x)), np.concatenate((z_h, r_h, c_h)), b

    @staticmethod
    def split(w_x: Array, w_h: Array, b: Array | None) -> list[Array]:
        (c_x, z_x, r_x), weights_h = np.split(w_x, 3), np.split(w_h, 3)
        c_b, z_b, r_b = (None, None, None) if b is None else np.split(b, 3)
        return [z_x, r_x, c_x, *weights_h] + ([] if b is None else [z_b, r_b, c_b])

    @staticmethod
    def step(gates: Array, before: Array, now: Array, scratch: Array) -> None:
        c, z, r, s = by_gate(gates, 4)
        sigmoid(gates[:, c.shape[1] : 3 * c.shape[1]])
        np.multiply(r, s, out=scratch[0])
        np.add(c, scratch[0], out=c)
        np.tanh(c, out=c)
        np.subtract(before, c, out=now)
        np.multiply(now, z, out=now)
        np.add(now, c, out=now)

    @staticmethod
    def step_grad(gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array) -> None:
        (c, z, r, s), (dc, dz, dr, ds) = by_gate(gates, 4), by_gate(dgates, 4)
        rest = scratch[0]
        np.subtract(1, z, out=rest)
        np.multiply(d, rest, out=rest)  # d∘(1 - z)
        np.subtract(before, c, out=dz)
        dz *= rest
        dz *= z
        np.multiply(c, c, out=dc)
        np.subtract(1, dc, out=dc)
        dc *= rest
        np.multiply(dc, r, out=ds)
        np.subtract(1, r, out=dr)
        dr *= ds
        dr *= s
        d *= z


class LSTM(Cell):
    """i, f, o = σ(x Wᵀ + h Wᵀ + b), g = tanh(likewise), in PyTorch's order i, f, g, o; c' = f∘c + i∘g; h' = o∘tanh(c').

    Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al. (2000). A state is h and c, in a row.
    """

    width, parts, from_x, from_h = 4, 2, (0, 4), (0, 4)

    @staticmethod
    def step(gates: Array, before: Array, now: Array, scratch: Array) -> None:
        i, f, g, o = by_gate(gates, 4)
        (_, c), (h, new_c) = by_gate(before, 2), by_gate(now, 2)
        sigmoid(gates[:, : 2 * i.shape[1]])
        sigmoid(o)
        np.tanh(g, out=g)
        np.multiply(f, c, out=new_c)
        np.multiply(i, g, out=scratch[0])
        np.add(new_c, scratch[0], out=new_c)
        np.tanh(new_c, out=h)
        np.multiply(h, o, out=h)

    @staticmethod
    def step_grad(gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array) -> None:
        (i, f, g, o), (di, df, dg, do) = by_gate(gates, 4), by_gate(dgates, 4)
        (_, c), (_, new_c), (dh, dc) = by_gate(before, 2), by_gate(now, 2), by_gate(d, 2)
        t, rest = scratch
        np.tanh(new_c, out=t)
        np.multiply(t, t, out=rest)
        np.subtract(1, rest, out=rest)
        rest *= o
        rest *= dh
        dc += rest
        np.subtract(1, o, out=do)
        do *= o
        do *= t
        do *= dh
        for gate, partner, gradient in ((i, g, di), (f, c, df)):
            np.subtract(1, gate, out=gradient)
            gradient *= gate
            gradient *= partner
            gradient *= dc
        np.multiply(g, g, out=dg)
        np.subtract(1, dg, out=dg)
        dg *= i
        dg *= dc
        dc *= f
        dh[...] = 0


CELLS: dict[str, type[Cell]] = {"rnn": RNN, "gru": GRU, "lstm": LSTM}
