"""Reads large fields by runs of points, such as the steps of time of a stored chunk."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import numpy as np

from dsinga.addons.fields.records.layout import ChannelGroup
from dsinga.addons.fields.records.window_blocks import BlockCache, BlockField, FieldKey, WindowBlocks, ranges_of_part


class StepFields:
    """Reads a variable's runs of points of ``WindowBlocks.step_axis``, for the windows of one block.

    A run has the points of one stored chunk, which are read and kept together. Blocks share runs.
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

    def run_of(self, point: int) -> FieldKey:
        """Return the run of a point's chunk, as it is called in the cache."""
        begins, low, high = self._begins, point, point + 1
        if 0 <= point < self._axis.length:
            chunk = bisect_right(begins, point)
            low, high = begins[chunk - 1], begins[chunk] if chunk < len(begins) else self._axis.length
        return self._cache.key, self._part.name, (*self._place, low, high), self._role

    def read(self, run: FieldKey, count: int) -> BlockField:
        """Return the field of a run; ``count`` points of windows are cut from it now."""
        cache, axis, ends = self._cache, self._axis.name, run[2][-2:]
        numbers = cache.field(run, self._part, self._blocks, {**self._ranges, axis: ends})
        if not self._fits and cache.is_last_cut(run, lambda: self._uses(*ends), count):
            cache.chunks.drop(run) if self._is_cut_once else cache.chunks.drop_first(run)
        return BlockField(numbers, {**self._lows, axis: ends[0]}, run not in cache.nonfinite)

    def _uses(self, low: int, high: int) -> int:
        """Return how many points of windows are cut from a run."""
        first, last = self._axis.starts.searchsorted([low - self._offsets, high - self._offsets])
        return int((last - first).sum()) * self._windows
