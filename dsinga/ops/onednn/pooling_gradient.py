"""The gradient of max pooling by indices, for cores on which the library's own kernel is slow.

Without AVX-512 oneDNN (3.2 to 3.7) adds to every element of every window by a masked store, ``vmaskmovps``: on an AMD
EPYC of the third generation 5 to 8 ns for eight channels of an element, where the mean's gradient, with plain stores,
takes 1. Here each output adds its gradient to the one element that won, whose place is known from the number that the
forward pass kept. Sums are taken in the order of the outputs, as the library's are of 16 channels and more, with the
same bits; of fewer, the last digits of an element that wins more than two windows may differ.

With x (64, 32, 32, 32), windows of 3x3 and a stride of 2, one thread, it takes 2.2 ms there, not 3.0, where caches are
cold, 1.6, not 2.9, where they are warm. Of 2,303 random shapes :func:`suits` takes 954: of these 92 in 100 take
less time than by the library, 97 no tenth more, half of them 0.72 and less. Other makers' cores without AVX-512 were
not measured.
"""

from __future__ import annotations

from math import prod

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.layout import to_rows
from dsinga.ops.onednn.primitive import LANES
from dsinga.ops.onednn.thread import this
from dsinga.ops.types import Array, Pair

BLOCK = 64 * 1024  # outputs that are done at once: their indices take half a megabyte
# From which on it is quicker. The library's time grows with the elements of a window, this one's does not.
LEAST = 4.5  # elements of a window, with those of the channels that are missing to a multiple of LANES
MANY = 10_000  # outputs


def suits(y: tuple[int, ...], window: Pair, pad: Pair, implementation: str) -> bool:
    """Whether indices are faster than a kernel of the library with this name; of several cores they would use one."""
    area, channels = prod(window), y[1]
    if implementation not in ("jit:avx", "jit:avx2") or area >= 256 or pad != (0, 0) or this.team.size > 1:
        return False
    return prod(y) >= MANY and area * -(-channels // LANES) * LANES >= LEAST * channels


class IndexedGradient:
    """The gradient for images of shape ``x`` (B, C, H, W), not padded, of which the maxima have shape ``y``."""

    def __init__(self, x: tuple[int, ...], y: tuple[int, ...], window: Pair, stride: Pair):
        batch, channels, _, width = x
        self.shape, self.outputs, self.columns = x, y[1] * y[2] * y[3], window[1]
        self.size = x[1] * x[2] * x[3]
        self.records = max(1, min(batch, BLOCK // self.outputs))
        # Of a winner, number n of its window: n times the step to the next column, and what a new row adds to that.
        self.step, self.turn = channels, (width - window[1]) * channels
        self.offset = np.int16 if window[0] * width * channels < 2**15 else np.int32
        axes = (np.arange(count) for count in (self.records, *y[2:], channels))
        steps = (self.size, stride[0] * width * channels, stride[1] * channels, 1)
        places = sum(np.ix_(*(axis * step for axis, step in zip(axes, steps, strict=True))))
        self.places = np.ascontiguousarray(places, np.intp).reshape(-1)  # of the first element of each window

    def __call__(self, dy: Array, workspace: Array) -> Array:
        """Return dx for ``dy`` (B, H', W', C) and the numbers of the winners, uint8, in the same order."""
        dx = buffers.empty(self.shape, channels_last=True)
        flat, gradient, winners = to_rows(dx).reshape(-1), dy.reshape(-1), workspace
        length = self.places.size
        indices = buffers.empty((length,), dtype=np.intp)
        offsets, turns = (buffers.empty((length,), dtype=self.offset) for _ in range(2))
        for record in range(0, self.shape[0], self.records):
            outputs = slice(record * self.outputs, (record + self.records) * self.outputs)
            target = flat[record * self.size : (record + self.records) * self.size]
            won = winners[outputs]
            index, offset, turn = indices[: won.size], offsets[: won.size], turns[: won.size]
            offset[...] = won
            offset *= self.step
            turn[...] = won // self.columns
            turn *= self.turn
            offset += turn
            index[...] = offset
            index += self.places[: won.size]
            target.fill(0)
            np.add.at(target, index, gradient[outputs])
        return dx
