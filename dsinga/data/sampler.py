"""Which rows make up the batch of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

MIXED = 8  # chunks whose records are mixed at any time


@dataclass(frozen=True)
class Sampler:
    """The global order of records, a pure function of (seed, step): the same rows whoever asks, and however often.

    Every epoch visits every record once; batches run on across the end of an epoch. Records are shuffled by chunk and
    within, so that reading in this order decodes few chunks: the chunks of an epoch are permuted, the records of each
    are permuted and dealt out over 8 consecutive *slots*, and each slot, which so holds an eighth of 8 chunks, is
    permuted. A batch of a store sorted by class still mixes classes, one new chunk is read for a chunk's worth of
    records, and a step costs O(batchsize) on average.

    Attributes:
        length: records in the store.
        batchsize: rows of a (global) batch.
        seed: key of the order; of no effect with ``shuffle`` False.
        chunk: rows of a chunk of the store.
        shuffle: False gives the store's order, for test and validation.
        skip: records passed over at the start, SINGA's ``random_skip``.
    """

    length: int
    batchsize: int
    seed: int
    chunk: int
    shuffle: bool = True
    skip: int = 0

    def __post_init__(self) -> None:
        assert min(self.length, self.batchsize, self.chunk) > 0, self
        assert self.skip >= 0, self

    def rows(self, step: int) -> np.ndarray:
        """Return the row numbers (batchsize,) int64 of the batch of ``step`` = 0, 1, ..."""
        start = self.skip + step * self.batchsize
        if not self.shuffle:
            return np.arange(start, start + self.batchsize) % self.length
        return np.concatenate(list(self._pieces(start, start + self.batchsize)))

    def _pieces(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yield the rows at positions ``start`` to ``stop`` of the endless order, slot by slot."""
        while start < stop:
            epoch, position = divmod(start, self.length)
            order = _epoch(self.length, self.chunk, self.seed, epoch)
            slot = int(np.searchsorted(order.ends, position, side="right"))
            rows = _slot(self.length, self.chunk, self.seed, epoch, slot)
            first = position - (int(order.ends[slot]) - len(rows))
            piece = rows[first : first + stop - start]
            yield piece
            start += len(piece)


@dataclass(frozen=True)
class _Epoch:
    """The order of chunks in one epoch, and the position in the epoch where each slot ends."""

    chunks: np.ndarray
    ends: np.ndarray


# The caches are shared by the samplers of a process: the workers of a group in its threads ask for the same slots.


@lru_cache(maxsize=8)
def _epoch(length: int, chunk: int, seed: int, epoch: int) -> _Epoch:
    count = -(-length // chunk)
    chunks = _permutation(count, seed, epoch, stream=0)
    sizes = np.minimum(chunk, length - chunks * chunk)
    ways = min(MIXED, count)
    slots = sum(np.roll(_cut(sizes, way + 1, ways) - _cut(sizes, way, ways), way) for way in range(ways))
    return _Epoch(chunks, np.cumsum(slots))


@lru_cache(maxsize=8)
def _slot(length: int, chunk: int, seed: int, epoch: int, slot: int) -> np.ndarray:
    """The rows of a slot: share 0 of its own chunk, share 1 of the chunk before, and so on, round the epoch's end."""
    chunks = _epoch(length, chunk, seed, epoch).chunks
    ways = min(MIXED, len(chunks))
    shares = []
    for way in range(ways):
        rows = _chunk(length, chunk, seed, epoch, int(chunks[(slot - way) % len(chunks)]))
        shares.append(rows[_cut(len(rows), way, ways) : _cut(len(rows), way + 1, ways)])
    rows = np.concatenate(shares)
    return _frozen(rows[_permutation(len(rows), seed, epoch, 1, slot)])


@lru_cache(maxsize=4 * MIXED)
def _chunk(length: int, chunk: int, seed: int, epoch: int, index: int) -> np.ndarray:
    start = index * chunk
    return _frozen(start + _permutation(min(chunk, length - start), seed, epoch, 2, index))


def _cut(size: np.ndarray | int, share: int, ways: int) -> np.ndarray | int:
    """Where ``share`` of ``size`` records dealt ``ways`` ways begins."""
    return size * share // ways


def _permutation(count: int, seed: int, epoch: int, stream: int, index: int = 0) -> np.ndarray:
    """A permutation of ``count`` numbers, keyed by the rest.

    It sorts the raw output of Philox, which numpy promises never to change, unlike ``Generator.permutation``.
    """
    key = np.array([seed & 0xFFFF_FFFF_FFFF_FFFF, epoch], np.uint64)  # a list of such numbers becomes float64
    bits = np.random.Philox(key=key, counter=[0, 0, index, stream])
    return np.argsort(bits.random_raw(count), kind="stable")


def _frozen(rows: np.ndarray) -> np.ndarray:
    rows.flags.writeable = False
    return rows
