"""Splitting the update of a slice into blocks: each adds up the gradients of some elements and applies them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.ops import Array, Update, buffers
from dsinga.ops.update import BLOCK  # so large that computing a block takes much longer than taking it from a queue


class UpdateBlock(NamedTuple):
    """A block of an update: its number of elements, and the function that computes it, called once by any thread."""

    elements: int
    do: Callable[[], None]


def split_update(update: Update, gradients: Sequence[Array]) -> list[UpdateBlock]:
    """Return the blocks of an update by the sum of ``gradients``, which are added in their order.

    ``update.gradient`` is not used. The blocks write to the value and the state only.
    """
    bounds = [(start, min(start + BLOCK, update.value.size)) for start in range(0, update.value.size, BLOCK)]
    return [
        UpdateBlock(stop - start, functools.partial(_change, update, gradients, start, stop)) for start, stop in bounds
    ]


def _change(update: Update, gradients: Sequence[Array], start: int, stop: int) -> None:
    block = slice(start, stop)
    change, spare = buffers.empty((2, BLOCK))[:, : stop - start]  # shorter blocks reuse the buffer of full ones
    total = gradients[0][block]
    for gradient in gradients[1:]:
        total = np.add(total, gradient[block], out=change)
    update.formula(update.value[block], total, [array[block] for array in update.state], change, spare)
