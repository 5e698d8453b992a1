"""The arithmetic of one step of a recurrent layer, forward and backward, in place and without temporaries.

A cell works on ``gates`` (width, n, H), each gate of n rows contiguous, and on states (parts, n, H): passes over rows
that are apart in memory are far slower. Before a step, the gates hold the products with the input, in the gates
``from_x``, plus those with the state before, in the gates ``from_h``; after it, the values that the backward step
needs. ``dgates`` are like ``gates``, except that their rows are apart, as products need them, so each number is written
once and not read. ``scratch`` is (2, n, H).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from dsinga.ops.types import Array

Sigmoid = Callable[[Array], None]
"""A function that replaces a contiguous array by its sigmoid."""


class Cell:
    """A recurrent cell: its sizes, its step forward and backward, and the matrices of its two products.

    ``width`` is the number of gates, ``parts`` the number of arrays (n, H) in a state; the first of them is the output.
    ``from_x`` and ``from_h`` are the gates that the products with the input and with the state fill.
    """

    width: ClassVar[int]
    parts: ClassVar[int] = 1
    from_x: ClassVar[range]
    from_h: ClassVar[range]

    @staticmethod
    def join(params: Sequence[Array]) -> tuple[Array, Array, Array | None]:
        """Return (w_x, w_h, b): the weights with H rows for each gate of ``from_x`` and ``from_h``."""
        return params[0], params[1], params[2] if len(params) > 2 else None

    @staticmethod
    def split(w_x: Array, w_h: Array, b: Array | None) -> list[Array]:
        """Undo :meth:`join`."""
        return [w_x, w_h] if b is None else [w_x, w_h, b]

    @staticmethod
    def step(gates: Array, before: Array, now: Array, scratch: Array, sigmoid: Sigmoid) -> None:
        """Compute the state ``now`` from the one ``before``."""
        raise NotImplementedError

    @staticmethod
    def step_grad(gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array) -> None:
        """Compute ``dgates``; replace ``d``, the gradient of ``now``, by that of ``before`` less the product's part."""
        raise NotImplementedError


class RNN(Cell):
    """h' = tanh(x W_hxᵀ + h W_hhᵀ + b)."""

    width, from_x, from_h = 1, range(1), range(1)

    @staticmethod
    def step(gates: Array, before: Array, now: Array, scratch: Array, sigmoid: Sigmoid) -> None:
        np.tanh(gates, out=now)

    @staticmethod
    def step_grad(gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array) -> None:
        slope, (now,), (dh,), (da,) = scratch[0], now, d, dgates
        np.multiply(now, now, out=slope)
        np.subtract(1, slope, out=slope)
        np.multiply(slope, dh, out=da)
        d[...] = 0


class GRU(Cell):
    """SINGA's GRU, whose reset gate multiplies the product with the state, as in cuDNN and PyTorch.

    z = σ(x W_zxᵀ + h W_zhᵀ + b_z), r likewise, c = tanh(x W_cxᵀ + b_c + r∘s) with s = h W_chᵀ; h' = z∘h + (1 - z)∘c.
    The gates are c, z, r, s: the input contributes to the first three, the state to the last three.
    """

    width, from_x, from_h = 4, range(3), range(1, 4)

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
    def step(gates: Array, before: Array, now: Array, scratch: Array, sigmoid: Sigmoid) -> None:
        (c, z, r, s), (before,), (now,), reset = gates, before, now, scratch[0]
        sigmoid(z)
        sigmoid(r)
        np.multiply(r, s, out=reset)
        np.add(c, reset, out=c)
        np.tanh(c, out=c)
        np.subtract(before, c, out=now)
        np.multiply(now, z, out=now)
        np.add(now, c, out=now)

    @staticmethod
    def step_grad(gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array) -> None:
        (c, z, r, s), (dc, dz, dr, ds), (before,), (d,), (u, t) = gates, dgates, before, d, scratch
        np.subtract(1, z, out=u)
        np.multiply(d, u, out=u)  # d∘(1 - z)
        np.subtract(before, c, out=t)
        t *= u
        np.multiply(t, z, out=dz)
        np.multiply(c, c, out=t)
        np.subtract(1, t, out=t)
        t *= u
        dc[...] = t
        t *= r
        ds[...] = t
        np.subtract(1, r, out=u)
        u *= t
        np.multiply(u, s, out=dr)
        d *= z


class LSTM(Cell):
    """The LSTM of Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al. (2000); a state is h and c.

    i, f, o = σ(x Wᵀ + h Wᵀ + b), g by tanh likewise, in PyTorch's order i, f, g, o; c' = f∘c + i∘g; h' = o∘tanh(c').
    """

    width, parts, from_x, from_h = 4, 2, range(4), range(4)

    @staticmethod
    def step(gates: Array, before: Array, now: Array, scratch: Array, sigmoid: Sigmoid) -> None:
        (i, f, g, o), (_, c), (h, new_c), t = gates, before, now, scratch[0]
        for gate in (i, f, o):
            sigmoid(gate)
        np.tanh(g, out=g)
        np.multiply(f, c, out=new_c)
        np.multiply(i, g, out=t)
        np.add(new_c, t, out=new_c)
        np.tanh(new_c, out=h)
        np.multiply(h, o, out=h)

    @staticmethod
    def step_grad(gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array) -> None:
        (i, f, g, o), (di, df, dg, do), (_, c), (_, new_c), (dh, dc) = gates, dgates, before, now, d
        t, u = scratch
        np.tanh(new_c, out=t)
        np.multiply(t, t, out=u)
        np.subtract(1, u, out=u)
        u *= o
        u *= dh
        dc += u
        np.subtract(1, o, out=u)
        u *= o
        u *= t
        np.multiply(u, dh, out=do)
        for gate, partner, gradient in ((i, g, di), (f, c, df)):
            np.subtract(1, gate, out=u)
            u *= gate
            u *= partner
            np.multiply(u, dc, out=gradient)
        np.multiply(g, g, out=u)
        np.subtract(1, u, out=u)
        u *= i
        np.multiply(u, dc, out=dg)
        dc *= f
        dh[...] = 0


CELLS: dict[str, type[Cell]] = {"rnn": RNN, "gru": GRU, "lstm": LSTM}
