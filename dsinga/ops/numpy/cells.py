"""The arithmetic of a recurrent layer's step (RNN, GRU, LSTM), forward and backward, in place.

A cell works on ``gates`` (width, n, H), with n contiguous rows per gate, and on states (parts, n, H). Before a step,
gates hold sums of products: with the input in ``from_x``, with the state before in ``from_h``. After it, they hold
values for the backward step. ``dgates`` are like ``gates``, but with rows apart for products. ``scratch`` is (3, n, H).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.ops.types import Array


class CellFunction(NamedTuple):
    """An activation of a cell: ``apply(x, out)`` computes y = f(x), ``slope(y, out)`` f'(x) from y, perhaps in place.

    Arrays are contiguous.
    """

    apply: Callable[[Array, Array], Any]
    slope: Callable[[Array, Array], Any]


class CellFunctions(NamedTuple):
    """The activations of a cell, as in :class:`~dsinga.ops.types.CellActivations`."""

    gate: CellFunction
    candidate: CellFunction
    cell: CellFunction


def sigmoid(x: Array, out: Array) -> None:
    """Compute the sigmoid 1/(1 + exp(-x)); exp may overflow to infinity, with inverse 0."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


def sigmoid_slope(y: Array, out: Array) -> None:
    """Compute the derivative of the sigmoid from its value y: (1 - y)·y."""
    np.subtract(1, y, out=out)
    np.multiply(out, y, out=out)


def tanh_slope(y: Array, out: Array) -> None:
    """Compute the derivative of tanh from its value y: 1 - y²."""
    np.multiply(y, y, out=out)
    np.subtract(1, out, out=out)


FUNCTIONS: dict[str, CellFunction] = {
    "sigmoid": CellFunction(sigmoid, sigmoid_slope),
    "tanh": CellFunction(lambda x, out: np.tanh(x, out=out), tanh_slope),
    "relu": CellFunction(lambda x, out: np.maximum(x, 0, out=out), lambda y, out: np.greater(y, 0, out=out)),
    "identity": CellFunction(lambda x, out: np.copyto(out, x), lambda y, out: out.fill(1)),
}


class Cell:
    """Base of recurrent cells: their sizes, the step forward and backward, and the matrices of the two products.

    ``width`` is the number of gates, ``parts`` the number of arrays (n, H) in a state, the output first.
    """

    width: ClassVar[int]
    parts: ClassVar[int] = 1
    from_x: ClassVar[range]
    from_h: ClassVar[range]

    @staticmethod
    def join(params: Sequence[Array]) -> tuple[Array, Array, Array | None]:
        """Stack the gates' weights into matrices (w_x, w_h, b), H rows for each gate of ``from_x`` and ``from_h``."""
        return params[0], params[1], params[2] if len(params) > 2 else None

    @staticmethod
    def split(w_x: Array, w_h: Array, b: Array | None) -> list[Array]:
        """Split the stacked matrices of :meth:`join` into params again."""
        return [w_x, w_h] if b is None else [w_x, w_h, b]

    @staticmethod
    def step(gates: Array, before: Array, now: Array, scratch: Array, functions: CellFunctions) -> None:
        """Compute the new state ``now`` from the state ``before`` and the gates."""
        raise NotImplementedError

    @staticmethod
    def step_grad(
        gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array, functions: CellFunctions
    ) -> None:
        """Compute ``dgates``; replace ``d``, the gradient for ``now``, by the one for ``before`` except its product."""
        raise NotImplementedError


class RNN(Cell):
    """Simple recurrent cell: h' = tanh(x W_hxᵀ + h W_hhᵀ + b)."""

    width, from_x, from_h = 1, range(1), range(1)

    @staticmethod
    def step(gates: Array, before: Array, now: Array, scratch: Array, functions: CellFunctions) -> None:
        np.tanh(gates, out=now)

    @staticmethod
    def step_grad(
        gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array, functions: CellFunctions
    ) -> None:
        slope, (now,), (dh,), (da,) = scratch[0], now, d, dgates
        np.multiply(now, now, out=slope)
        np.subtract(1, slope, out=slope)
        np.multiply(slope, dh, out=da)
        d[...] = 0


class GRU(Cell):
    """SINGA's GRU cell; the reset gate multiplies the product with the state, as in cuDNN and PyTorch.

    With s = h W_chᵀ: z = σ(x W_zxᵀ + h W_zhᵀ + b_z), r in the same way; c = tanh(x W_cxᵀ + b_c + r∘s); h' = z∘h + (1 -
    z)∘c.

    The gates are c, z, r, s: the input feeds the first three, the state the last three. A fourth bias belongs to s.
    """

    width, from_x, from_h = 4, range(3), range(1, 4)

    @staticmethod
    def join(params: Sequence[Array]) -> tuple[Array, Array, Array | None]:
        z_x, r_x, c_x, z_h, r_h, c_h, *bias = params
        b = np.concatenate((bias[2], bias[0], bias[1], *bias[3:])) if bias else None
        return np.concatenate((c_x, z_x, r_x)), np.concatenate((z_h, r_h, c_h)), b

    @staticmethod
    def split(w_x: Array, w_h: Array, b: Array | None) -> list[Array]:
        (c_x, z_x, r_x), weights_h = np.split(w_x, 3), np.split(w_h, 3)
        if b is None:
            return [z_x, r_x, c_x, *weights_h]
        c_b, z_b, r_b, *s_b = np.split(b, len(b) // w_h.shape[1])
        return [z_x, r_x, c_x, *weights_h, z_b, r_b, c_b, *s_b]

    @staticmethod
    def step(gates: Array, before: Array, now: Array, scratch: Array, functions: CellFunctions) -> None:
        (c, z, r, s), (before,), (now,), reset = gates, before, now, scratch[0]
        functions.gate.apply(z, z)
        functions.gate.apply(r, r)
        np.multiply(r, s, out=reset)
        np.add(c, reset, out=c)
        functions.candidate.apply(c, c)
        np.subtract(before, c, out=now)
        np.multiply(now, z, out=now)
        np.add(now, c, out=now)

    @staticmethod
    def step_grad(
        gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array, functions: CellFunctions
    ) -> None:
        (c, z, r, s), (dc, dz, dr, ds), (before,), (d,), (u, t, slope) = gates, dgates, before, d, scratch
        by_sigmoid = functions.gate.slope is sigmoid_slope  # products in an order that needs one pass less for a gate
        np.subtract(1, z, out=u)
        np.multiply(d, u, out=u)  # d∘(1 - z)
        np.subtract(before, c, out=t)
        if by_sigmoid:
            t *= u
            np.multiply(t, z, out=dz)
        else:
            t *= d
            functions.gate.slope(z, slope)
            np.multiply(t, slope, out=dz)
        functions.candidate.slope(c, t)
        t *= u
        dc[...] = t
        if by_sigmoid:
            np.subtract(1, r, out=u)
        else:
            functions.gate.slope(r, u)
            u *= t
        t *= r
        ds[...] = t
        if by_sigmoid:
            u *= t
        np.multiply(u, s, out=dr)
        d *= z


class LSTM(Cell):
    """The LSTM cell of Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al. (2000).

    i, f, o = σ(x Wᵀ + h Wᵀ + b), g in the same way with tanh, in PyTorch's order i, f, g, o; c' = f∘c + i∘g; h' =
    o∘tanh(c').
    """

    width, parts, from_x, from_h = 4, 2, range(4), range(4)

    @staticmethod
    def step(gates: Array, before: Array, now: Array, scratch: Array, functions: CellFunctions) -> None:
        (i, f, g, o), (_, c), (h, new_c), t = gates, before, now, scratch[0]
        for gate in (i, f, o):
            functions.gate.apply(gate, gate)
        functions.candidate.apply(g, g)
        np.multiply(f, c, out=new_c)
        np.multiply(i, g, out=t)
        np.add(new_c, t, out=new_c)
        functions.cell.apply(new_c, h)
        np.multiply(h, o, out=h)

    @staticmethod
    def step_grad(
        gates: Array, before: Array, now: Array, d: Array, dgates: Array, scratch: Array, functions: CellFunctions
    ) -> None:
        (i, f, g, o), (di, df, dg, do), (_, c), (_, new_c), (dh, dc) = gates, dgates, before, now, d
        t, u, _ = scratch
        functions.cell.apply(new_c, t)
        functions.cell.slope(t, u)
        u *= o
        u *= dh
        dc += u
        functions.gate.slope(o, u)
        u *= t
        np.multiply(u, dh, out=do)
        for gate, partner, gradient in ((i, g, di), (f, c, df)):
            functions.gate.slope(gate, u)
            u *= partner
            np.multiply(u, dc, out=gradient)
        functions.candidate.slope(g, u)
        u *= i
        np.multiply(u, dc, out=dg)
        dc *= f
        dh[...] = 0


CELLS: dict[str, type[Cell]] = {"rnn": RNN, "gru": GRU, "lstm": LSTM}
