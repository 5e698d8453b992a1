"""Reads large fields by runs of points, such as the steps of time of a stored chunk."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.addons.fields.records.layout import ChannelGroup
from dsinga.addons.fields.records.readers import read_ranges
from dsinga.addons.fields.records.window_blocks import (
    BlockCache,
    BlockField,
    FieldKey,
    WindowBlocks,
    arranged,
    field_dims,
    ranges_of_part,
)
from dsinga.data.conversion import find_nonfinite

Run = tuple[int, int]  # points [low, high)


class StepFields:
    """Reads a variable's fields at points of ``WindowBlocks.step_axis``, for the windows of one block.

    Points of one stored chunk, a run, are read together. If all fields fit the cache, they stay there. Otherwise a
    field is the first to go once the last window of an epoch is cut from it, and goes at once if that is its only
    window. Where a process reads a part of an epoch, fields of several windows may still be cut after that count.
    """

    def __init__(self, cache: BlockCache, part: ChannelGroup, blocks: WindowBlocks, block: int, is_target: bool):
        axis: Any = blocks.step_axis
        self._cache, self._part, self._blocks, self._axis = cache, part, blocks, axis
        others = [dim for dim in part.dims if dim != axis.name]
        self._ranges, role = ranges_of_part(part, blocks, block, is_target, others)
        self._lows = {dim: low for dim, (low, _) in self._ranges.items()}
        self._place, self._role = blocks.block_places(block, others), f"{role}, one point"
        self._windows = math.prod(
            last - first + 1 if end.name in part.dims else total
            for (end, first, last), total in zip(blocks.ends(block), blocks.counts, strict=True)
            if end is not axis
        )
        self._begins = part.reader.chunk_begins(axis.name)
        layout = blocks.layout
        roles = {"input": (False,), "target": (True,)}.get(role, (False, True))
        self._offsets = np.array([  # from a window's start, of each point that is cut
            axis.offset(is_target, other.number) + point
            for is_target in roles
            for other in ((*layout.targets, layout.weights) if is_target else layout.inputs)
            if other is not None and other.name == part.name
            for point in range(other.sizes[other.dims.index(axis.name)])
        ])  # fmt: skip
        self._fits = blocks.all_bytes <= cache.memory
        self._is_cut_once = len(self._offsets) * self._windows <= axis.stride and not part.reader.is_remote

    def run_of(self, point: int) -> Run:
        """Return the run of a point: its chunk."""
        begins, length = self._begins, self._axis.length
        if not 0 <= point < length:
            return point, point + 1
        chunk = bisect_right(begins, point)
        return begins[chunk - 1], begins[chunk] if chunk < len(begins) else length

    def key(self, point: int) -> FieldKey:
        """Return what the field at a point is called in the cache."""
        return self._cache.key, self._part.name, (*self._place, point), self._role

    def read(self, run: Run, counts: Mapping[int, int]) -> dict[int, BlockField]:
        """Return fields at points of a run, which is read if one is missing; ``counts`` windows are cut from each."""
        if self._fits:
            return dict.fromkeys(counts, self._whole(run))
        chunks = self._cache.chunks
        with chunks.lock_of(self.key(run[0])):
            fields: dict[int, Any] = {point: chunks.find(self.key(point)) for point in counts}
            missing = [point for point, field in fields.items() if field is None]
            ended = self._count(run, counts, missing)
            if missing:
                self._load(run, fields)
            for key in ended:
                chunks.drop(key) if self._is_cut_once else chunks.drop_first(key)
        return {point: self._field(field, self.key(point), point) for point, field in fields.items()}

    def _whole(self, run: Run) -> BlockField:
        """Return the field of all points of a run, which stays in the cache."""
        key = self._cache.key, self._part.name, (*self._place, *run), self._role

        def load() -> np.ndarray:
            numbers = self._numbers(run)
            if find_nonfinite(numbers.reshape(1, -1)) is not None:
                self._cache.nonfinite.add(key)
            return numbers

        return self._field(self._cache.chunks.get(key, load), key, run[0])

    def _field(self, numbers: np.ndarray, key: FieldKey, point: int) -> BlockField:
        return BlockField(numbers, {**self._lows, self._axis.name: point}, key not in self._cache.nonfinite)

    def _numbers(self, run: Run) -> np.ndarray:
        ranges = {**self._ranges, self._axis.name: run}
        return arranged(read_ranges(self._part.reader, self._blocks.layout.axes, ranges, self._part.masked), self._part)

    def _count(self, run: Run, counts: Mapping[int, int], missing: list[int]) -> list[FieldKey]:
        """Count the windows that are cut now; return the fields from which no more are cut in this epoch."""
        unread, ended = self._cache.unread, []
        if any(self.key(point) not in unread for point in missing):  # an epoch begins
            for point, uses in enumerate(self._uses(run), run[0]):
                if uses:
                    unread.setdefault(self.key(point), uses)
        for point, count in counts.items():
            key = self.key(point)
            left = (unread.pop(key, 0) or self._uses((point, point + 1))[0]) - count
            if left > 0:
                unread[key] = left
            else:
                ended.append(key)
        return ended

    def _load(self, run: Run, fields: dict[int, Any]) -> None:
        """Read a run; add its points to ``fields`` where they are missing, and keep those that are still cut."""
        cache, place = self._cache, field_dims(self._part).index(self._axis.name)
        numbers = self._numbers(run)
        for point in range(*run):
            key, index = self.key(point), slice(point - run[0], point - run[0] + 1)
            is_kept = key in cache.unread or (point in fields and not self._is_cut_once)
            if cache.chunks.find(key) is not None or not (is_kept or point in fields):
                continue
            field = numbers[(slice(None),) * place + (index,)]
            field = field.copy() if is_kept else np.ascontiguousarray(field)  # so that each point is freed by itself
            if is_kept:
                cache.chunks.put(key, field)
            if find_nonfinite(field.reshape(1, -1)) is not None:
                cache.nonfinite.add(key)
            if point in fields:
                fields[point] = field

    def _uses(self, run: Run) -> list[int]:
        """Return how many windows are cut from each point of a run."""
        firsts, starts = np.arange(*run)[:, None] - self._offsets, self._axis.starts
        counts = starts.searchsorted(firsts, "right") - starts.searchsorted(firsts)
        return (counts.sum(1) * self._windows).tolist()
