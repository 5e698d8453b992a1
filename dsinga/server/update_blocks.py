"""A block of the change of a slice: the sum of some elements of all gradients, and the update by it, in one pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.ops import Array, Update, buffers
from dsinga.ops.update import BLOCK  # computing a block takes much longer than taking one from the queue


class UpdateBlock(NamedTuple):
    """A block of an update, computed once by any thread: its number of elements, and the call that computes it."""

    elements: int
    do: Callable[[], None]


def split_update(update: Update, gradients: Sequence[Array]) -> list[UpdateBlock]:
    """Split an update by the sum of ``gradients``, added in their order, into blocks of elements.

    ``update.gradient`` is not used. Only the value and the state are written.
    """
    bounds = [(start, min(start + BLOCK, update.value.size)) for start in range(0, update.value.size, BLOCK)]
    return [
        UpdateBlock(stop - start, functools.partial(_change, update, gradients, start, stop)) for start, stop in bounds
    ]


def _change(update: Update, gradients: Sequence[Array], start: int, stop: int) -> None:
    block = slice(start, stop)
    change, spare = buffers.empty((2, BLOCK))[:, : stop - start]  # the same memory for blocks of every length
    total = gradients[0][block]
    for other in gradients[1:]:
        total = np.add(total, other[block], out=change)
    update.formula(update.value[block], total, [array[block] for array in update.state], change, spare)
