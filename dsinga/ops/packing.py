"""Packs a batch of sequences for a recurrent kernel by time, the longest first, so that padding is never computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dsinga.base import buffers
from dsinga.ops.layout import contiguous
from dsinga.ops.recorded_array import RecordedArray, check_equal_lengths
from dsinga.ops.types import Array


class Packing(NamedTuple):
    """The order in which the steps of a batch (B, T, ...) are computed, the longest sequences first.

    ``places`` (N,) are the packed rows' indices among the B·T rows, ``counts`` their numbers at each time. ``order``
    (B,) are the rows of the batch, longest first, and ``lengths`` (B,) their lengths.
    """

    places: np.ndarray
    counts: tuple[int, ...]
    order: np.ndarray
    lengths: np.ndarray

    def steps(self) -> Iterator[tuple[int, int, int]]:
        """Yield (count, before, now) for each time: where an array (B + N, ...) has its states.

        The ``count`` rows at ``before`` are the states before this time, the ``count`` rows at ``now`` the states after
        it.
        """
        before, now = 0, len(self.order)
        for count in self.counts:
            yield count, before, now
            before, now = now, now + count

    def before(self, states: Array) -> Array:
        """Return the state before each packed step, (N, ...); a view if sequences are equally long."""
        if len(set(self.counts)) == 1 and self.counts[0] == len(self.order):
            return states[: len(self.places)]
        return np.concatenate([states[before : before + count] for count, before, _ in self.steps()] or [states[:0]])

    def last(self, states: Array) -> Array:
        """Return the last state of each row, (B, ...); its first state without steps."""
        starts = np.array([now for _, _, now in self.steps()], np.int64)
        place = np.arange(len(self.order))
        running = self.lengths > 0
        place[running] += starts[self.lengths[running] - 1]
        return self.unsort(states[place])

    def unsort(self, rows: Array) -> Array:
        """Return packed ``rows`` (B, ...) in the order of the batch."""
        result = np.empty_like(rows)
        result[self.order] = rows
        return result

    def pack(self, x: Array) -> Array:
        """Gather the packed steps (N, n) of x (B, T, n)."""
        rows = contiguous(x).reshape(-1, x.shape[2])
        return np.take(rows, self.places, 0, buffers.empty((len(self.places), x.shape[2]), dtype=x.dtype), "clip")

    def unpack(self, packed: Array, times: int) -> Array:
        """Undo :meth:`pack`: return (B, T, n) with T = ``times``, and zeros for missing steps."""
        batch, columns = len(self.order), packed.shape[1]
        x = buffers.empty((batch, times, columns), dtype=packed.dtype)
        rows = x.reshape(-1, columns)
        if len(self.places) < len(rows):
            rows[...] = 0
        rows[self.places] = packed
        return x


def pack_sequences(batch: int, times: int, lengths: Array | None, reverse: bool) -> Packing:
    """Compute the packing of ``batch`` sequences of ``lengths`` (B,), None for all ``times`` steps."""
    if isinstance(lengths, RecordedArray):
        check_equal_lengths(lengths, times)
        lengths = None
    clipped = np.full(batch, times) if lengths is None else np.clip(np.asarray(lengths, np.int64), 0, times)
    order = np.argsort(-clipped, kind="stable")
    ordered = clipped[order]
    counts = np.searchsorted(-ordered, -np.arange(times), "left") if batch else np.zeros(0, np.int64)
    counts = counts[counts > 0]
    time = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(time)) - np.repeat(np.cumsum(counts) - counts, counts)
    step = ordered[place] - 1 - time if reverse else time
    return Packing(order[place] * times + step, tuple(map(int, counts)), order, ordered)
