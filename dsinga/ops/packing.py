"""How a batch of sequences lies while a recurrent kernel runs: the steps of one time together, the longest row first.

A row that has ended has no steps left, so no arithmetic is spent on padding, and the product of one step has the rows
that are still running: the first ``counts[t]`` of those before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.types import Array


class Packing(NamedTuple):
    """Which steps of (B, T, ...) are computed, in which order.

    ``places`` (N,) has the place of each packed row in the B·T rows of the batch; ``counts`` how many there are for
    each time; ``order`` (B,) the rows of the batch, longest first; ``lengths`` (B,) how long each of these is.
    """

    places: np.ndarray
    counts: tuple[int, ...]
    order: np.ndarray
    lengths: np.ndarray

    def steps(self) -> Iterator[tuple[int, int, int]]:
        """Yield (count, before, now) for each time, in states (B + N, ...) whose first B rows are those to begin with.

        The ``count`` rows from ``before`` on are the states before this time, those from ``now`` on the new ones.
        """
        before, now = 0, len(self.order)
        for count in self.counts:
            yield count, before, now
            before, now = now, now + count

    def before(self, states: Array) -> Array:
        """Return (N, ...): the state before each packed step; a view where all rows are equally long."""
        if len(set(self.counts)) == 1 and self.counts[0] == len(self.order):
            return states[: len(self.places)]
        return np.concatenate([states[before : before + count] for count, before, _ in self.steps()] or [states[:0]])

    def last(self, states: Array) -> Array:
        """Return (B, ...): the last state of each row of the batch, the first one where it has no steps."""
        starts = np.array([now for _, _, now in self.steps()], np.int64)
        place = np.arange(len(self.order))
        running = self.lengths > 0
        place[running] += starts[self.lengths[running] - 1]
        return self.unsort(states[place])

    def unsort(self, rows: Array) -> Array:
        """Return ``rows`` (B, ...), which are in the order of the packing, in that of the batch."""
        result = np.empty_like(rows)
        result[self.order] = rows
        return result

    def pack(self, x: Array) -> Array:
        """Return the N steps of x (B, T, n) that are computed, (N, n)."""
        rows = np.ascontiguousarray(x).reshape(-1, x.shape[2])
        return np.take(rows, self.places, 0, buffers.empty((len(self.places), x.shape[2]), dtype=x.dtype), "clip")

    def unpack(self, packed: Array, times: int) -> Array:
        """Return (B, T, n), whose T is ``times``: undo :meth:`pack`, with zeros where there was no step."""
        batch, columns = len(self.order), packed.shape[1]
        x = buffers.empty((batch, times, columns), dtype=packed.dtype)
        rows = x.reshape(-1, columns)
        if len(self.places) < len(rows):
            rows[...] = 0
        rows[self.places] = packed
        return x


def pack_sequences(batch: int, times: int, lengths: Array | None, reverse: bool) -> Packing:
    """Return the packing of ``batch`` sequences of ``lengths`` (B,) out of ``times`` steps, all if None.

    Where ``reverse``, each sequence is run from its own last step to its first.
    """
    each = np.full(batch, times) if lengths is None else np.clip(np.asarray(lengths, np.int64), 0, times)
    order = np.argsort(-each, kind="stable")
    each = each[order]
    counts = np.searchsorted(-each, -np.arange(times), "left") if batch else np.zeros(0, np.int64)
    counts = counts[counts > 0]
    time = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(time)) - np.repeat(np.cumsum(counts) - counts, counts)
    at = each[place] - 1 - time if reverse else time
    return Packing(order[place] * times + at, tuple(map(int, counts)), order, each)
