"""Adds what the blocks of a batch give, in one binary tree over their numbers, so that anybody may add any part of it.

The tree joins numbers by their binary digits: 0 + 1, 2 + 3, then (0 + 1) + (2 + 3), and so on. A node is known by its
first number. So the sum has the same bits, whoever has added the blocks of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from dsinga.base import buffers
from dsinga.ops.factored_gradient import FactoredGradient, to_dense
from dsinga.ops.sparse import SparseRows, add_up

T = TypeVar("T")


def add_in_tree(parts: Mapping[int, T], add: Callable[[T, T], T]) -> T:
    """Add the parts of blocks, or of whole nodes by their first blocks, in the tree."""
    left, right = halves(sorted(parts))
    if not right:
        return parts[left[0]]
    return add(*(add_in_tree({number: parts[number] for number in half}, add) for half in (left, right)))


def halves(numbers: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Divide rising numbers where the tree does; the second half of a single number is empty."""
    digit = (numbers[0] ^ numbers[-1]).bit_length()
    end = sum(number >> digit - 1 == numbers[0] >> digit - 1 for number in numbers) if digit else 1
    return numbers[:end], numbers[end:]


def nodes(numbers: Iterable[int], count: int) -> list[range]:
    """Divide numbers below ``count`` into the fewest nodes of its tree."""
    left, found = sorted(numbers), []
    while left:
        node, larger = range(left[0], left[0] + 1), 2
        while left[0] % larger == 0 and node.stop < count:
            wider = range(left[0], min(left[0] + larger, count))
            if left[: len(wider)] != list(wider):
                break
            node, larger = wider, 2 * larger
        found.append(node)
        left = left[len(node) :]
    return found


def add_gradients(left: Any, right: Any) -> Any:
    """Add two gradients of a param, dense or sparse, in the memory of one of them if both are arrays and it may be."""
    if isinstance(left, FactoredGradient) and isinstance(right, FactoredGradient) and left.bounds == right.bounds:
        return left.plus(right)
    left, right = to_dense(left), to_dense(right)
    if isinstance(left, SparseRows) or isinstance(right, SparseRows):
        return add_up([left, right])
    if type(left) is not np.ndarray:
        left += right
        return left
    out = next((array for array in (left, right) if array.flags.writeable), None)  # not in another process's memory
    return np.add(left, right, out=buffers.empty(left.shape, dtype=left.dtype) if out is None else out)


def most_waiting(blocks: int) -> int:
    """Return how many sums wait at most for others while blocks are added in their order: one at each height."""
    return (blocks - 1).bit_length()


class TreeSum:
    """The sum of several blocks' gradients of a param in the tree, which holds as few of them as it can."""

    def __init__(self, blocks: Sequence[int]):
        self._blocks = blocks
        self._digits = (blocks[0] ^ blocks[-1]).bit_length()
        self._waiting: dict[tuple[int, int], Any] = {}  # by height in the tree and place at this height

    def add(self, block: int, gradient: Any) -> None:
        """Add a block's gradient."""
        for height in range(self._digits):
            place, other = block >> height, block >> height ^ 1
            if (height, other) in self._waiting:
                waiting = self._waiting.pop((height, other))
                gradient = add_gradients(*((waiting, gradient) if other < place else (gradient, waiting)))
            elif any(number >> height == other for number in self._blocks):
                self._waiting[height, place] = gradient
                return
        self._waiting[self._digits, block >> self._digits] = gradient

    def total(self) -> Any:
        """Return the sum of what has come, None for nothing; sparse if all gradients are."""
        parts = {place << height: gradient for (height, place), gradient in self._waiting.items()}
        return add_in_tree(parts, add_gradients) if parts else None
