"""A piece of the change of a slice: the sum of some elements of all gradients, and the update by it, in one pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.ops import Array, Update, buffers
from dsinga.ops.update import BLOCK

PIECE = 4 * BLOCK  # elements: a fraction of a millisecond, which is much beside what it costs to take a piece


class Piece(NamedTuple):
    """Something to be done once: of how many elements, and what."""

    elements: int
    do: Callable[[], None]


def cut(turn: Update, gradients: Sequence[Array]) -> list[Piece]:
    """Return the pieces of a change by the sum of ``gradients``, which are added in their order; turn's own is unused.

    No array but the value and the state is written.
    """
    bounds = [(start, min(start + PIECE, turn.value.size)) for start in range(0, turn.value.size, PIECE)]
    return [Piece(stop - start, functools.partial(_change, turn, gradients, start, stop)) for start, stop in bounds]


def _change(turn: Update, gradients: Sequence[Array], start: int, stop: int) -> None:
    scratch = buffers.empty((2, min(BLOCK, stop - start)))
    for at in range(start, stop, BLOCK):
        block = slice(at, min(at + BLOCK, stop))
        value, total = turn.value[block], gradients[0][block]
        change, spare = scratch[0][: value.size], scratch[1][: value.size]
        for other in gradients[1:]:
            total = np.add(total, other[block], out=change)
        turn.formula(value, total, [array[block] for array in turn.state], change, spare)
