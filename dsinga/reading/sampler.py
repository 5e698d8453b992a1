"""The sampler: which rows of a store make up the batch of each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from dsinga.reading.sequence_lengths import SequenceLengths

MIXED_CHUNKS = 8  # the number of chunks whose records are mixed at any time


@dataclass(frozen=True)
class Sampler:
    """The order of training records: the rows of each batch, as a pure function of seed and step.

    Every epoch visits every record once; a batch may span the end of an epoch. Records are shuffled in two levels, so
    that reading in this order decodes few chunks: the chunks of an epoch are permuted; the records of each chunk are
    permuted and dealt over 8 consecutive *slots*; and each slot, an eighth of each of 8 chunks, is permuted. So batches
    of a store sorted by class mix classes, one new chunk is read per chunk's worth of records, and a step costs
    O(batchsize) on average.

    Attributes:
        length: number of records in the store.
        batchsize: rows of a (global) batch.
        seed: determines the order; ignored if ``shuffle`` is False.
        chunk: rows of a chunk of the store.
        shuffle: False gives the store's order, for test and validation.
        skip: the position of the first record of step 0 in the endless order: SINGA's ``random_skip``, the number of
            records skipped at the start. It is negative where steps before the first one that is read were smaller.
        lengths: those of the records, where batches are of similar lengths; without ``shuffle`` they have no effect.
        grouped: how many batches are then sorted by length at a time.
    """

    length: int
    batchsize: int
    seed: int
    chunk: int
    shuffle: bool = True
    skip: int = 0
    lengths: SequenceLengths | None = None
    grouped: int = 0

    def __post_init__(self) -> None:
        assert min(self.length, self.batchsize, self.chunk) > 0, self

    def rows(self, step: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the row numbers (stop - start,) int64 of a part of the batch of ``step`` = 0, 1, ...

        By default it is the whole batch. What a part costs does not depend on the size of the batch.
        """
        first = self.skip + step * self.batchsize
        start, stop = first + start, first + (self.batchsize if stop is None else stop)
        if not self.shuffle:
            return np.arange(start, stop) % self.length
        if self.lengths is not None and self.grouped:
            return self._rows_by_length(start, stop, self.lengths)
        return self._shuffled(start, stop)

    def _shuffled(self, start: int, stop: int) -> np.ndarray:
        """Return the rows at positions ``start`` to ``stop`` of the endless shuffled order."""
        return np.concatenate([np.empty(0, np.int64), *self._rows_by_slot(start, stop)])

    def _rows_by_length(self, start: int, stop: int, lengths: SequenceLengths) -> np.ndarray:
        """Return the rows at these positions where the rows of ``grouped`` batches are exchanged by their lengths."""
        size = self.grouped * self.batchsize
        parts = [np.empty(0, np.int64)]
        while start < stop:
            group, epoch = (start - self.skip) // size, start // self.length
            first = max(self.skip + group * size, epoch * self.length)
            last = min(self.skip + (group + 1) * size, (epoch + 1) * self.length)
            key = (self.length, self.batchsize, self.seed, self.chunk, self.skip, self.grouped, first)
            rows = lengths.kept(key, partial(self._grouped_rows, first, last, lengths))
            parts.append(rows[start - first : min(stop, last) - first])
            start = min(stop, last)
        return np.concatenate(parts)

    def _grouped_rows(self, first: int, last: int, lengths: SequenceLengths) -> np.ndarray:
        """Return the rows at positions ``first`` to ``last``, of one epoch: batches of similar lengths, shuffled.

        Sorted by length they are dealt out to the batches, or parts of batches, in a random order. Rows of a batch stay
        in the shuffled order, so that parts of it are alike.
        """
        shuffled = self._shuffled(first, last)
        by_length = np.argsort(lengths.of(shuffled), kind="stable")
        inner = np.arange(first + 1, last)
        ends = [*inner[(inner - self.skip) % self.batchsize == 0].tolist(), last]
        starts = [first, *ends[:-1]]
        rows, dealt = np.empty_like(shuffled), 0
        for batch in _permutation(len(ends), self.seed, first // self.length, 3, first % self.length):
            begin, end = starts[batch] - first, ends[batch] - first
            rows[begin:end] = shuffled[np.sort(by_length[dealt : dealt + end - begin])]
            dealt += end - begin
        return rows

    def epochs(self, step: int, start: int, stop: int) -> np.ndarray:
        """Return the number of the epoch, from 0, of each row of a part of the batch, (stop - start,) int64."""
        first = self.skip + step * self.batchsize
        return np.arange(first + start, first + stop) // self.length

    def _rows_by_slot(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yield the rows at positions ``start`` to ``stop`` of the endless order, an array for each slot."""
        while start < stop:
            epoch, position = divmod(start, self.length)
            order = _epoch_order(self.length, self.chunk, self.seed, epoch)
            slot = int(np.searchsorted(order.slot_ends, position, side="right"))
            slot_rows = _slot_rows(self.length, self.chunk, self.seed, epoch, slot)
            first = position - (int(order.slot_ends[slot]) - len(slot_rows))
            rows = slot_rows[first : first + stop - start]
            yield rows
            start += len(rows)


@dataclass(frozen=True)
class _EpochOrder:
    """The order of chunks in one epoch, and the position in the epoch where each slot ends."""

    chunks: np.ndarray
    slot_ends: np.ndarray


# The samplers of a process share these caches, since the worker threads of a group ask for the same slots.


@lru_cache(maxsize=8)
def _epoch_order(length: int, chunk: int, seed: int, epoch: int) -> _EpochOrder:
    count = -(-length // chunk)
    chunks = _permutation(count, seed, epoch, stream=0)
    sizes = np.minimum(chunk, length - chunks * chunk)
    shares = min(MIXED_CHUNKS, count)
    slot_sizes = sum(
        np.roll(_share_start(sizes, share + 1, shares) - _share_start(sizes, share, shares), share)
        for share in range(shares)
    )
    return _EpochOrder(chunks, np.cumsum(slot_sizes))


@lru_cache(maxsize=8)
def _slot_rows(length: int, chunk: int, seed: int, epoch: int, slot: int) -> np.ndarray:
    """Return the rows of a slot: share 0 of its own chunk, share 1 of the chunk before it, and so on, cyclically."""
    chunks = _epoch_order(length, chunk, seed, epoch).chunks
    shares = min(MIXED_CHUNKS, len(chunks))
    parts = []
    for share in range(shares):
        rows = _chunk_rows(length, chunk, seed, epoch, int(chunks[(slot - share) % len(chunks)]))
        parts.append(rows[_share_start(len(rows), share, shares) : _share_start(len(rows), share + 1, shares)])
    rows = np.concatenate(parts)
    return _read_only(rows[_permutation(len(rows), seed, epoch, 1, slot)])


@lru_cache(maxsize=4 * MIXED_CHUNKS)
def _chunk_rows(length: int, chunk: int, seed: int, epoch: int, index: int) -> np.ndarray:
    start = index * chunk
    return _read_only(start + _permutation(min(chunk, length - start), seed, epoch, 2, index))


def _share_start(size: np.ndarray | int, share: int, shares: int) -> np.ndarray | int:
    """Return where share number ``share`` begins when ``size`` records are divided into ``shares`` equal shares."""
    return size * share // shares


def _permutation(count: int, seed: int, epoch: int, stream: int, index: int = 0) -> np.ndarray:
    """Return a permutation of ``count`` numbers, determined by the other arguments.

    It sorts the raw output of Philox, which numpy promises never to change, unlike ``Generator.permutation``.
    """
    key = np.array([seed & 0xFFFF_FFFF_FFFF_FFFF, epoch], np.uint64)  # a list of such numbers becomes float64
    bits = np.random.Philox(key=key, counter=[0, 0, index, stream])
    return np.argsort(bits.random_raw(count), kind="stable")


def _read_only(rows: np.ndarray) -> np.ndarray:
    rows.flags.writeable = False
    return rows
