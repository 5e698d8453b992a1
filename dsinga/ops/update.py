"""Changing params by their gradients where they lie: a formula, and how it is applied to arrays of one kind or another.

What is here takes any arrays that know numpy's ufuncs, those of the host in blocks that stay in its caches. A backend
that pays for each call may apply the same formulas to all params at once: see :meth:`dsinga.ops.Ops.update`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.types import Array

Formula = Callable[[Array, Array, Sequence[Array], Array, Array], None]
"""Changes w and slots, in place and element by element, by numpy's ufuncs: (w, g, slots, t, s), blocks of one length.

``t`` and ``s`` are scratch; ``g`` may be ``t`` itself and is not written otherwise. Equal formulas do the same.
"""

# Elements; value, gradient, state and scratch of a block stay in the caches over its passes: in a core's own L2 cache
# blocks a quarter as large would be no quicker. Each pass gives the interpreter up and asks for it again, and a thread
# that has to wait is woken after 0.1 ms: where two threads update, fewer passes are quicker.
BLOCK = 1 << 18


class Update(NamedTuple):
    """One update of a param by a formula: ``value``, ``gradient`` and ``state`` are flat float32 arrays.

    Where there are ``rows`` (n,), which rise, ``gradient`` is (n, width): that of these rows of the value, seen as
    (rows, width). The other rows do not move.
    """

    formula: Formula
    value: Array
    gradient: Array
    state: Sequence[Array]
    rows: Array | None = None


def apply(update: Update, clip_norm: float = 0.0) -> None:
    """Change one param; see :meth:`dsinga.ops.Ops.update`."""
    if update.rows is None:
        _apply(update, clip_norm)
        return
    width = update.gradient.shape[1]
    tables = [array.reshape(array.size // max(width, 1), width) for array in (update.value, *update.state)]
    value, *state = (table[update.rows] for table in tables)
    flat = [array.reshape(-1) for array in state]
    _apply(Update(update.formula, value.reshape(-1), update.gradient.reshape(-1), flat), clip_norm)
    for table, changed in zip(tables, (value, *state), strict=True):
        table[update.rows] = changed


def _apply(update: Update, clip_norm: float) -> None:
    formula, value, gradient, state, _ = update
    shrink = shrinkage(gradient, clip_norm) if clip_norm else 1.0
    arrays = [value, gradient, *state]
    length = block_of(value)
    of_host = type(value) is np.ndarray
    scratch: Any = buffers.empty((2, length), dtype=value.dtype) if of_host else (value.copy(), value.copy())
    for start in range(0, value.size, length):
        w, g, *slots = (array[start : start + length] for array in arrays)
        t, s = scratch[0][: w.size], scratch[1][: w.size]
        formula(w, np.multiply(g, shrink, out=t) if shrink < 1.0 else g, slots, t, s)


def block_of(array: Any) -> int:
    """Return how many elements are changed at once: the caches of a CPU are small, a device takes an array whole."""
    return max(1, min(array.size, BLOCK) if type(array) is np.ndarray else array.size)


def shrinkage(gradient: Array, most: float) -> float:
    """Return the factor, at most 1, that brings a gradient down to the Euclidean norm ``most``.

    1 for one that is not finite: it is not made to look as if it were.
    """
    squares, length = 0.0, block_of(gradient)
    for start in range(0, gradient.size, length):
        squares += float(np.square(gradient[start : start + length], dtype=np.float64).sum())
    norm = math.sqrt(squares)
    return most / norm if most < norm < math.inf else 1.0
