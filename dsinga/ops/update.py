"""Updates params in place by an optimizer's formula, on the host or a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base import buffers
from dsinga.ops.compiled.formulas import compiled_formula
from dsinga.ops.factored_gradient import FactoredGradient
from dsinga.ops.types import Array, Formula

# Elements: value, gradient, state and scratch of a block stay in the caches over its passes. Each pass releases and
# takes the interpreter's lock, so if two threads update, few large blocks are faster than many small ones: SGD of 12
# million params took one thread 22.0 ms by short blocks and 29.2 by others, two threads 22.6 and 16.0 (2026-11-25).
BLOCK, SHORT_BLOCK = 1 << 18, 1 << 15
_updating: list[None] = []  # an item for each thread that updates


class Update(NamedTuple):
    """One param's update: its formula and the 1-d float32 arrays ``value``, ``gradient`` and ``state``.

    With ``rows`` (n,), ascending, ``gradient`` is (n, width), for these rows of the value seen as (-1, width). With
    ``whole`` the formula is called once with whole arrays and need not be elementwise. Without both, and without a
    bound of its norm, ``gradient`` may be a :class:`FactoredGradient`. ``copy``, if set, is called with the place of
    each part of the value that has changed, while the caches have it.
    """

    formula: Formula
    value: Array
    gradient: Array
    state: Sequence[Array]
    rows: Array | None = None
    whole: bool = False
    copy: Callable[[slice], None] | None = None


def assign(w: Array, g: Array, slots: Sequence[Array], t: Array, s: Array) -> None:
    """Set w = g, the formula for state that is not trained, such as running means."""
    np.positive(g, out=w)


def apply(update: Update, clip_norm: float = 0.0) -> None:
    """Update one param in place by its optimizer's formula; ``clip_norm`` limits its gradient's norm."""
    if update.rows is None:
        whole = [(slice(None), update.gradient)]
        for part, gradient in update.gradient.parts() if isinstance(update.gradient, FactoredGradient) else whole:
            state = [array[part] for array in update.state]
            _apply(update._replace(value=update.value[part], gradient=gradient, state=state), clip_norm)
            if update.copy is not None:
                update.copy(part)
        return
    width = update.gradient.shape[1]
    tables = [array.reshape(array.size // max(width, 1), width) for array in (update.value, *update.state)]
    value, *state = (table[update.rows] for table in tables)
    flat = [array.reshape(-1) for array in state]
    _apply(Update(update.formula, value.reshape(-1), update.gradient.reshape(-1), flat), clip_norm)
    for table, changed in zip(tables, (value, *state), strict=True):
        table[update.rows] = changed
    if update.copy is not None:
        update.copy(slice(None))


def _apply(update: Update, clip_norm: float) -> None:
    formula, value, gradient, state = update[:4]
    factor = norm_factor(math.sqrt(sum_of_squares(gradient)), clip_norm) if clip_norm else 1.0
    arrays = [value, gradient, *state]
    if not value.size:
        return
    is_on_host = type(value) is np.ndarray
    in_blocks = is_on_host and not update.whole
    if in_blocks and factor == 1.0 and (run := compiled_formula(formula, arrays)):
        run(value, gradient, state, value, value)
        return
    length = min(value.size, BLOCK) if in_blocks else value.size
    scratch: Any = buffers.empty((2, length), dtype=value.dtype) if is_on_host else (value.copy(), value.copy())
    for block in blocks(value.size) if in_blocks else (slice(None),):
        w, g, *slots = (array[block] for array in arrays)
        t, s = scratch[0][: w.size], scratch[1][: w.size]
        formula(w, np.multiply(g, factor, out=t) if factor < 1.0 else g, slots, t, s)


def blocks(size: int) -> Iterator[slice]:
    """Yield blocks of at most BLOCK of ``size`` elements, so that all operations on one stay in the cache."""
    start = 0
    _updating.append(None)
    try:
        while start < size:
            length = min(SHORT_BLOCK, BLOCK) if len(_updating) == 1 else BLOCK
            stop = min(size, start + length)
            yield slice(start, stop)
            start = stop
    finally:
        _updating.pop()


def sum_of_squares(array: Array) -> float:
    """Compute the sum of squares of an array in float64, by blocks, with reproducible bits."""
    array = array.reshape(-1)
    squares = 0.0
    length = max(1, min(array.size, BLOCK) if type(array) is np.ndarray else array.size)  # a device takes it whole
    for start in range(0, array.size, length):
        squares += float(np.square(array[start : start + length], dtype=np.float64).sum())
    return squares


def norm_factor(norm: float, max_norm: float) -> float:
    """Return the factor, at most 1, that scales numbers of this Euclidean norm down to ``max_norm``.

    It is max_norm / norm, as in Keras (PyTorch adds 1e-6 to the norm); 1 if the norm is not finite.
    """
    return max_norm / norm if max_norm < norm < math.inf else 1.0
