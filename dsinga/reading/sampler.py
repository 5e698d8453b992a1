"""Chooses which records each batch has: shuffled, or of similar sequence lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.record_source import RecordSource

MIXED_CHUNKS = 8  # the number of chunks whose records are mixed at any time
IN_ORDER = 4096  # rows of a run that is not shuffled

# Consecutive rows of an order that are found together: the position of the first of them, and their numbers.
Run = tuple[int, np.ndarray]
Chunk = int | tuple[int, ...]  # rows of each chunk, or the row after each of unequal ones


@dataclass(frozen=True)
class Sampler:
    """Shuffles training records: gives the rows of each batch, which depend on seed and step only.

    Every epoch visits every record once; a batch may span epochs. To decode few chunks of a store:

    - The chunks of an epoch are permuted.
    - The records of each chunk are permuted and dealt over 8 consecutive *slots*.
    - Each slot, an eighth of each of 8 chunks, is permuted.

    So batches of a store sorted by class mix classes, and one new chunk is read per chunk's worth of records. With
    chunks of unequal rows, a batch's rows are sorted by the turns 0 to 7 of their chunks, so that each worker's
    consecutive rows need few chunks.

    Attributes:
        length: number of records in the store.
        batchsize: rows of a (global) batch.
        seed: determines the order; ignored if ``shuffle`` is False.
        chunk: rows of a chunk; for unequal chunks, the row after each.
        shuffle: False gives the store's order, for test and validation.
        skip: the records skipped at the start: SINGA's ``random_skip``. Negative if earlier steps had smaller batches.
        lengths: the records' lengths, for batches of similar lengths; unused without ``shuffle``.
        grouped: how many batches are sorted by length at a time.
    """

    length: int
    batchsize: int
    seed: int
    chunk: Chunk
    shuffle: bool = True
    skip: int = 0
    lengths: SequenceLengths | None = None
    grouped: int = 0

    def __post_init__(self) -> None:
        assert min(self.length, self.batchsize) > 0, self

    def rows(self, step: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the record numbers (stop - start,) int64 of a batch, or a part of it."""
        first = self.skip + step * self.batchsize
        return _between(first + start, first + (self.batchsize if stop is None else stop), self.run)

    def run(self, position: int) -> Run:
        """Return consecutive rows of the shuffled order around ``position``, which may be read together."""
        if not self.shuffle:
            first = position - position % IN_ORDER
            return first, np.arange(first, first + IN_ORDER) % self.length
        if self.lengths is not None and self.grouped:
            return self._group(position, self.lengths)
        return self._slot(position) if isinstance(self.chunk, int) else self._sorted_batch(position, self.chunk)

    def _slot(self, position: int) -> Run:
        epoch, within = divmod(position, self.length)
        ends = _epoch_order(self.length, self.chunk, self.seed, epoch).slot_ends
        number = int(ends.searchsorted(within, side="right"))
        rows = _slot_rows(self.length, self.chunk, self.seed, epoch, number)
        return epoch * self.length + int(ends[number]) - len(rows), rows

    def _sorted_batch(self, position: int, ends: tuple[int, ...]) -> Run:
        """Return the batch around a position, sorted so that each worker needs few chunks."""
        first, last = self._stretch(position, self.batchsize)
        rows = _between(first, last, self._slot)
        turns = _epoch_order(self.length, ends, self.seed, position // self.length).turns
        return first, rows[np.argsort(turns[np.searchsorted(ends, rows, side="right")], kind="stable")]

    def _stretch(self, position: int, size: int) -> tuple[int, int]:
        """Return where the group of ``size`` positions around one starts and ends, within one epoch."""
        number, epoch = (position - self.skip) // size, position // self.length
        first = max(self.skip + number * size, epoch * self.length)
        return first, min(self.skip + (number + 1) * size, (epoch + 1) * self.length)

    def _group(self, position: int, lengths: SequenceLengths) -> Run:
        first, last = self._stretch(position, self.grouped * self.batchsize)
        return first, self._grouped_rows(first, last, lengths)

    def _grouped_rows(self, first: int, last: int, lengths: SequenceLengths) -> np.ndarray:
        """Order rows of an epoch so that each batch has sequences of similar lengths."""
        shuffled = _between(first, last, self._slot)
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
        """Return the epoch, from 0, of each row of a part of a batch: (stop - start,) int64."""
        first = self.skip + step * self.batchsize
        return np.arange(first + start, first + stop) // self.length


def _between(start: int, stop: int, run: Callable[[int], Run]) -> np.ndarray:
    """Join the rows at positions ``start`` to ``stop`` - 1 of an endless order."""
    parts = [np.empty(0, np.int64)]
    while start < stop:
        first, rows = run(start)
        parts.append(rows[start - first : stop - first])
        start += len(parts[-1])
    return np.concatenate(parts)


@dataclass(frozen=True)
class _EpochOrder:
    """The shuffled order of chunks in one epoch, and where each group of mixed rows ends."""

    chunks: np.ndarray
    slot_ends: np.ndarray
    turns: np.ndarray


# The samplers of a process share these caches, since the worker threads of a group ask for the same slots.


@lru_cache(maxsize=8)
def _epoch_order(length: int, chunk: Chunk, seed: int, epoch: int) -> _EpochOrder:
    count = -(-length // chunk) if isinstance(chunk, int) else len(chunk)
    chunks = _permutation(count, seed, epoch, stream=0)
    if isinstance(chunk, int):
        sizes = np.minimum(chunk, length - chunks * chunk)
    else:
        sizes = np.diff(chunk, prepend=0)[chunks]
    shares = min(MIXED_CHUNKS, count)
    slot_sizes = sum(
        np.roll(_share_start(sizes, share + 1, shares) - _share_start(sizes, share, shares), share)
        for share in range(shares)
    )
    turns = np.empty(count, np.uint8)
    turns[chunks] = np.arange(count) % MIXED_CHUNKS
    return _EpochOrder(chunks, np.cumsum(slot_sizes), turns)


@lru_cache(maxsize=8)
def _slot_rows(length: int, chunk: Chunk, seed: int, epoch: int, slot: int) -> np.ndarray:
    """Return rows that are shuffled together: one share of each of several chunks."""
    chunks = _epoch_order(length, chunk, seed, epoch).chunks
    shares = min(MIXED_CHUNKS, len(chunks))
    parts = []
    for share in range(shares):
        rows = _chunk_rows(length, chunk, seed, epoch, int(chunks[(slot - share) % len(chunks)]))
        parts.append(rows[_share_start(len(rows), share, shares) : _share_start(len(rows), share + 1, shares)])
    rows = np.concatenate(parts)
    return _read_only(rows[_permutation(len(rows), seed, epoch, 1, slot)])


@lru_cache(maxsize=4 * MIXED_CHUNKS)
def _chunk_rows(length: int, chunk: Chunk, seed: int, epoch: int, index: int) -> np.ndarray:
    if isinstance(chunk, int):
        start, stop = index * chunk, min((index + 1) * chunk, length)
    else:
        start, stop = chunk[index - 1] if index else 0, chunk[index]
    return _read_only(start + _permutation(stop - start, seed, epoch, 2, index))


def _share_start(size: np.ndarray | int, share: int, shares: int) -> np.ndarray | int:
    return size * share // shares


def _permutation(count: int, seed: int, epoch: int, stream: int, index: int = 0) -> np.ndarray:
    """Return a random permutation of ``count`` numbers that is the same in all versions of numpy."""
    key = np.array([seed & 0xFFFF_FFFF_FFFF_FFFF, epoch], np.uint64)  # a list of such numbers becomes float64
    bits = np.random.Philox(key=key, counter=[0, 0, index, stream]).random_raw(count)
    order = np.argsort(bits)  # four times faster than a stable sort, and the same where all numbers differ
    ordered = bits[order]
    return np.argsort(bits, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def _read_only(rows: np.ndarray) -> np.ndarray:
    rows.flags.writeable = False
    return rows


class SequenceLengths:
    """The lengths of a source's sequences, for batches of similar lengths; read on first use.

    A record's length is the number of its codes, or labels by step, that are not -1.

    Args:
        steps: the number of steps of a record in the net, perhaps fewer than stored.
    """

    def __init__(self, source: RecordSource, steps: int | None = None):
        self._has_codes = len(source.shape) == 1 and _are_codes(source)
        if not self._has_codes and not (source.label_dtype == np.int64 and len(source.label_shape) == 1):
            raise UserError("takes sequences: records of codes, or with a label for each step, -1 after the end")
        self._source = source.without_labels() if self._has_codes else source
        stored = source.shape[0] if self._has_codes else source.label_shape[0]
        self.steps = min(stored, steps or stored)
        self._blocks: dict[int, np.ndarray] = {}

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the lengths (n,) int64 of records, by their numbers (n,)."""
        block = self._source.block
        lengths = np.empty(len(rows), np.int64)
        for number in np.unique(rows // block).tolist():
            chosen = rows // block == number
            lengths[chosen] = self._of_block(number)[rows[chosen] - number * block]
        return lengths

    def _of_block(self, number: int) -> np.ndarray:
        if number not in self._blocks:
            start = number * self._source.block
            rows = np.arange(start, min(start + self._source.block, len(self._source)))
            codes: Any = self._source.read(rows)[0] if self._has_codes else self._source.read_labels(rows)
            self._blocks[number] = (codes[:, : self.steps] != -1).sum(axis=1)
        return self._blocks[number]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_blocks": {}}


def _are_codes(source: RecordSource) -> bool:
    """Whether records look like sequences of codes: the first one has whole numbers from -1."""
    if source.dtype == np.int32:
        return True
    numbers = source.without_labels().read(np.arange(1))[0]
    return bool((numbers == np.round(numbers)).all() and (numbers >= -1).all())


def padding_share(lengths: Sequence[np.ndarray]) -> float:
    """Return which share of batches is padding; ``lengths`` (n,) are each batch's sequence lengths.

    >>> padding_share([np.array([4, 2]), np.array([1, 1])])
    0.2
    """
    computed = sum(len(batch) * int(batch.max(initial=0)) for batch in lengths)
    return 1 - sum(int(batch.sum()) for batch in lengths) / computed if computed else 0.0
