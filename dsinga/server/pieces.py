"""A piece of the change of a slice: the sum of some elements of all gradients, and the update by it, in one pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.ops import Array, Update, buffers
from dsinga.ops.update import BLOCK as PIECE  # a fraction of a millisecond, which is much beside taking a piece


class Piece(NamedTuple):
    """Something to be done once: of how many elements, and what."""

    elements: int
    do: Callable[[], None]


def cut(update: Update, gradients: Sequence[Array]) -> list[Piece]:
    """Return the pieces of an update by the sum of ``gradients``, which are added in their order.

    ``update.gradient`` is not used. No array but the value and the state is written.
    """
    bounds = [(start, min(start + PIECE, update.value.size)) for start in range(0, update.value.size, PIECE)]
    return [Piece(stop - start, functools.partial(_change, update, gradients, start, stop)) for start, stop in bounds]


def _change(update: Update, gradients: Sequence[Array], start: int, stop: int) -> None:
    piece = slice(start, stop)
    change, spare = buffers.empty((2, PIECE))[:, : stop - start]  # the same memory for pieces of every length
    total = gradients[0][piece]
    for other in gradients[1:]:
        total = np.add(total, other[piece], out=change)
    update.formula(update.value[piece], total, [array[piece] for array in update.state], change, spare)
