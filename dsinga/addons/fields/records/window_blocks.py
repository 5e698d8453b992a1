"""Reads each field that neighbouring windows share once, and keeps it decoded in a bounded cache."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from psutil import virtual_memory

from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.definition import DEFAULT_MEMORY
from dsinga.addons.fields.records.layout import ChannelGroup, Layout
from dsinga.addons.fields.records.readers import Ranges, read_ranges
from dsinga.base.cores import memory_limit
from dsinga.data.chunk_cache import MIXED_BLOCKS, ChunkCache
from dsinga.data.conversion import find_nonfinite

SMALLEST_STEP = 64 << 10  # bytes of a window at one point of time, from which fields are kept point by point
FREE_SHARE = 8  # the part of the free memory that fields may have by default

# A field: its windows, its variable, its place along the variable's dimensions, and its role.
FieldKey = tuple[str, str, tuple[int, ...], str]


class WindowBlocks:
    """Divides a layout's windows into blocks of neighbours, by the layout and a byte limit alone.

    A block has all windows along the last dimensions, as long as their fields fit ``most_bytes``. It has several
    windows along the dimension before, and one along the first dimensions.

    Attributes:
        counts: the windows along each dimension.
        block_counts: the windows of a block along each dimension.
        rows: the windows of a full block, which are consecutive.
    """

    def __init__(self, layout: Layout, most_bytes: int, block_counts: tuple[int, ...] | None = None):
        self.layout = layout
        self.axes = tuple(layout.axes.values())
        self.counts = tuple(len(axis.starts) for axis in self.axes)
        self.block_counts = block_counts or self._block_counts(most_bytes)
        self.rows = math.prod(self.block_counts)
        self._blocks_along = tuple(
            -(-count // part) for count, part in zip(self.counts, self.block_counts, strict=True)
        )

    def __len__(self) -> int:
        return math.prod(self.counts)

    def _block_counts(self, most_bytes: int) -> tuple[int, ...]:
        counts = [1] * len(self.axes)
        for place in reversed(range(len(self.axes))):
            counts[place] = self.counts[place]
            if self.bytes_of(counts) <= most_bytes:
                continue
            low, high = 1, self.counts[place]  # the most windows that fit, by bisection
            while high - low > 1:
                counts[place] = (low + high) // 2
                low, high = (counts[place], high) if self.bytes_of(counts) <= most_bytes else (low, counts[place])
            counts[place] = low
            break
        return tuple(counts)

    def bytes_of(self, counts: Any) -> int:
        """Return the bytes of decoded fields for a block of ``counts`` windows by dimension."""
        ends = {axis.name: (axis, *axis.widest(count)) for axis, count in zip(self.axes, counts, strict=True)}
        layout = self.layout
        inputs = {part.name: part for part in layout.inputs}
        targets = {part.name: part for part in layout.targets}
        points = 0
        for name, part in (inputs | targets).items():
            of_inputs, of_targets, both = _ranges_of([ends[dim] for dim in part.dims])
            if name in inputs and name in targets:
                points += _points(both) if both is not None else _points(of_inputs) + _points(of_targets)
            else:
                points += _points(of_inputs if name in inputs else of_targets)
        return 4 * points

    def places(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the index of each window along each dimension."""
        return np.unravel_index(numbers, self.counts)

    def block_numbers(self, places: tuple[np.ndarray, ...]) -> np.ndarray:
        """Return the number of the block of each window."""
        indices = [place // count for place, count in zip(places, self.block_counts, strict=True)]
        return np.ravel_multi_index(indices, self._blocks_along) if indices else np.zeros(1, np.int64)

    def block_places(self, block: int, dims: Sequence[str]) -> tuple[int, ...]:
        """Return the place of a block among all blocks, along some dimensions."""
        indices = np.unravel_index(block, self._blocks_along)
        return tuple(int(index) for axis, index in zip(self.axes, indices, strict=True) if axis.name in dims)

    @cached_property
    def step_axis(self) -> Axis | None:
        """The dimension, such as time, along which blocks divide windows; None for one block."""
        counts = zip(self.axes, self.block_counts, self.counts, strict=True)
        return next((axis for axis, count, total in counts if 1 < count < total), None)

    @property
    def step_windows(self) -> int:
        """The windows of a block along ``step_axis``."""
        return next(count for axis, count in zip(self.axes, self.block_counts, strict=True) if axis is self.step_axis)

    @cached_property
    def all_bytes(self) -> int:
        """The bytes of all fields that windows are cut from."""
        return self.bytes_of(self.counts)

    @property
    def longest_run(self) -> int:
        """The points of two blocks along ``step_axis``: longer chunks are read in parts, unless all fields are kept."""
        axis = self.step_axis
        return 2 * self.step_windows * axis.stride if axis else 0

    def longest_chunk(self, part: ChannelGroup) -> int:
        """Return the points of a variable's longest chunk along ``step_axis``."""
        axis: Any = self.step_axis
        return int(np.diff(part.reader.chunk_begins(axis.name), append=axis.length).max())

    def needs(self) -> MemoryNeeds:
        """Return how many bytes of fields are worth keeping."""
        chunks = [
            self.longest_chunk(part) for part in (*self.layout.inputs, *self.layout.targets) if self.has_steps(part)
        ]
        short, points = [chunk for chunk in chunks if chunk <= self.longest_run], self.longest_run // 2
        shares = [(-(-points // chunk) + (chunk > 1)) * chunk / points for chunk in short]  # whole chunks at both ends
        mixed = int(MIXED_BLOCKS * max([1.0, *shares]) * self.bytes_of(self.block_counts))
        return MemoryNeeds(min(self.all_bytes, mixed), self.all_bytes if len(short) < len(chunks) else 0)

    def has_steps(self, part: ChannelGroup) -> bool:
        """Whether a variable's fields are kept by point of ``step_axis``, not by block.

        These are fields in files with many numbers of a window at each point.
        """
        axis = self.step_axis
        if axis is None or axis.name not in part.dims or not part.reader.from_files:
            return False
        return 4 * math.prod(part.sizes) >= SMALLEST_STEP * part.sizes[part.dims.index(axis.name)]

    def windows(self, block: int, dims: Sequence[str]) -> int:
        """Return how many windows lie at a block's place along ``dims``."""
        ends = zip(self.ends(block), self.counts, strict=True)
        return math.prod(last - first + 1 if axis.name in dims else total for (axis, first, last), total in ends)

    def ends(self, block: int) -> list[tuple[Axis, int, int]]:
        """Return each dimension with its first and last window of a block."""
        indices = np.unravel_index(block, self._blocks_along)
        return [
            (axis, int(index) * count, min((int(index) + 1) * count, total) - 1)
            for axis, index, count, total in zip(self.axes, indices, self.block_counts, self.counts, strict=True)
        ]


class MemoryNeeds(NamedTuple):
    """How many bytes of fields let each chunk be decoded once an epoch.

    Attributes:
        mixed: for the blocks that shuffling mixes, with whole chunks at their ends.
        whole: for all fields, where chunks are longer than two blocks; 0 elsewhere.
    """

    mixed: int
    whole: int = 0

    def limit(self) -> int:
        """Return the most bytes of fields that this process keeps by default: 256 MiB, or what is needed.

        It is at most an eighth of the memory that is free.
        """
        free = min(virtual_memory().available, memory_limit()) // FREE_SHARE
        return max(DEFAULT_MEMORY, min(self.mixed, free), self.whole if self.whole <= free else 0)


class BlockField(NamedTuple):
    """A variable's decoded numbers that the windows of a block read.

    Attributes:
        numbers: float32, contiguous, with the axes of ``ChannelGroup.dims``, and an axis of one point for each
            dimension of space that the variable lacks.
        is_finite: whether there is no NaN and no infinity.
    """

    numbers: np.ndarray
    lows: Mapping[str, int]
    is_finite: bool


MOST_BETWEEN = 1.25  # times as much may be read as inputs or targets need, where both are read at once
_cache = ChunkCache(0)  # of all windows of a process, which keeps as many bytes as the largest ``memory`` of these


class BlockCache:
    """Keeps decoded fields of blocks, in a cache that all windows of a process share.

    A block is read once, even for concurrent readers. Pickles share the cache of their process.

    Args:
        given: the most bytes of fields that the user allows; None for a default, by the memory of each process.

    Attributes:
        memory: the most bytes of fields, or more if other windows allow it.
        unread: how many windows are still to be cut out of each field, of all variables together.
        nonfinite: the fields with NaN or infinity.
    """

    _by_key: ClassVar[WeakValueDictionary[str, BlockCache]] = WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, given: int | None, needs: MemoryNeeds, key: str | None = None):
        self._given, self._needs, self.key = given, needs, key or uuid.uuid4().hex
        self.memory = needs.limit() if given is None else given
        self._known: dict[tuple[str, int, bool], tuple[FieldKey, Ranges, dict[str, int]]] = {}
        self.nonfinite: set[FieldKey] = set()
        self.unread: dict[FieldKey, int] = {}
        self._by_key[self.key] = self
        _cache.reserve_bytes(self, self.memory)
        _cache.forget_after(self, [self.key])

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockCache.shared, (self._given, self._needs, self.key)

    @classmethod
    def shared(cls, given: int | None, needs: MemoryNeeds, key: str) -> BlockCache:
        """Return this process's cache for the windows with ``key``; create it if necessary."""
        with cls._lock:
            return cls._by_key.get(key) or cls(given, needs, key)

    def for_others(self) -> BlockCache:
        """Return a cache of as many bytes, for other windows of the same data."""
        return BlockCache(self._given, self._needs)

    def read(self, part: ChannelGroup, blocks: WindowBlocks, block: int, is_target: bool, count: int) -> BlockField:
        """Return the field of a variable for the windows of a block; ``count`` of them are cut now."""
        key, ranges, lows = self._describe(part, blocks, block, is_target)

        def load() -> np.ndarray:
            numbers = arranged(read_ranges(part.reader, blocks.layout.axes, ranges, part.masked), part)
            if find_nonfinite(numbers.reshape(1, -1)) is not None:
                self.nonfinite.add(key)
            self.unread[key] = blocks.windows(block, part.dims) * _uses(part.name, blocks.layout, key[-1])
            return numbers

        numbers = _cache.get(key, load)
        self.unread[key] = unread = self.unread.get(key, 0) - count
        if not unread:
            _cache.drop_first(key)
        return BlockField(numbers, lows, key not in self.nonfinite)

    @property
    def chunks(self) -> ChunkCache:
        """The cache of all windows of the process, which has the fields."""
        return _cache

    def _describe(
        self, part: ChannelGroup, blocks: WindowBlocks, block: int, is_target: bool
    ) -> tuple[FieldKey, Ranges, dict[str, int]]:
        where = (part.name, block, is_target)
        if where not in self._known:
            ranges, role = ranges_of_part(part, blocks, block, is_target, part.dims)
            key = self.key, part.name, blocks.block_places(block, part.dims), role
            self._known[where] = key, ranges, {dim: low for dim, (low, _) in ranges.items()}
        return self._known[where]

    @property
    def bytes(self) -> int:
        """The bytes of the fields in the cache."""
        return _cache.bytes_of(self.key)


def _uses(name: str, layout: Layout, role: str) -> int:
    parts = {"input": layout.inputs, "target": layout.targets}.get(role, (*layout.inputs, *layout.targets))
    return sum(part.name == name for part in parts)


def ranges_of_part(
    part: ChannelGroup, blocks: WindowBlocks, block: int, is_target: bool, dims: Sequence[str]
) -> tuple[Ranges, str]:
    """Return the points along ``dims`` that a block reads of a variable, as "input", "target" or "both"."""
    inputs, targets, both = _ranges_of([end for end in blocks.ends(block) if end[0].name in dims])
    layout = blocks.layout
    in_both = all(any(other.name == part.name for other in parts) for parts in (layout.inputs, layout.targets))
    if in_both and both is not None:
        return both, "both"
    return (targets, "target") if is_target else (inputs, "input")


def _ranges_of(ends: Sequence[tuple[Axis, int, int]]) -> tuple[Ranges, Ranges, Ranges | None]:
    """Return the ranges that windows' inputs read, that targets read, and both joined.

    The joined range is None if inputs and targets lie too far apart to be read at once.
    """
    inputs = {axis.name: axis.input_range(first, last) for axis, first, last in ends}
    targets = {axis.name: axis.target_range(first, last) for axis, first, last in ends}
    both = {dim: (min(inputs[dim][0], targets[dim][0]), max(inputs[dim][1], targets[dim][1])) for dim in inputs}
    is_near = _points(both) <= MOST_BETWEEN * max(_points(inputs), _points(targets))
    return inputs, targets, both if is_near else None


def _points(ranges: Ranges) -> int:
    return math.prod(high - low for low, high in ranges.values())


def field_dims(part: ChannelGroup) -> tuple[str, ...]:
    """Return the dimensions of a variable's fields: channels, then all dimensions of space."""
    return *part.dims[: len(part.channel_sizes)], *part.space


def arranged(array: np.ndarray, part: ChannelGroup) -> np.ndarray:
    """Return the numbers that a reader has read, contiguous, with the axes of a :class:`BlockField`."""
    array = array.transpose([part.reader.dims.index(dim) for dim in part.dims])
    index = [slice(None)] * len(part.channel_sizes) + [
        slice(None) if dim in part.dims else np.newaxis for dim in part.space
    ]
    return np.require(array[tuple(index)], requirements=["C", "ALIGNED"])[...]  # a view, since the cache locks it
