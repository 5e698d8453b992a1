"""Reads large fields by points, such as steps of time, and all points of a stored chunk together."""

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


class StepFields:
    """Reads a variable's fields at points of ``WindowBlocks.step_axis``, for the windows of one block.

    Points of one stored chunk are read together. If all fields fit the cache, they stay there. Otherwise a field is
    the first to go once the last window of an epoch is cut from it, and goes at once if that is its only window. Where
    a process reads a part of an epoch, fields of several windows may still be cut after that count.
    """

    def __init__(self, cache: BlockCache, part: ChannelGroup, blocks: WindowBlocks, block: int, is_target: bool):
        axis: Any = blocks.step_axis
        self._cache, self._part, self._blocks, self._axis = cache, part, blocks, axis
        self._source, self._ends = (cache.key, part.name), blocks.ends(block)
        others = [dim for dim in part.dims if dim != axis.name]
        self._ranges, role = ranges_of_part(part, blocks, block, is_target, others)
        self._lows = {dim: low for dim, (low, _) in self._ranges.items()}
        self._place, self._role = blocks.block_places(block, others), f"{role}, one point"
        self._windows = math.prod(
            last - first + 1 if end.name in part.dims else total
            for (end, first, last), total in zip(self._ends, blocks.counts, strict=True)
            if end is not axis
        )
        self._begins = part.reader.chunk_begins(axis.name)
        layout = blocks.layout
        roles = {"input": (False,), "target": (True,)}.get(role, (False, True))
        self._reads = [  # the offset from a window's start, and the points, of each use of the variable
            (axis.offset(is_target, other.number), other.sizes[other.dims.index(axis.name)])
            for is_target in roles
            for other in ((*layout.targets, layout.weights) if is_target else layout.inputs)
            if other is not None and other.name == part.name
        ]

    @property
    def _leaves(self) -> bool:
        """Whether each field leaves the cache in an epoch, because not all fit."""
        return self._blocks.all_bytes > self._cache.chunks.limit

    def run_of(self, step: int) -> tuple[int, int]:
        """Return the points [low, high) read together with ``step``: its chunk.

        Without chunks, or with chunks longer than two blocks of fields that do not all fit the cache, they are the
        points of the block.
        """
        axis, begins = self._axis, self._begins
        if not 0 <= step < axis.length:
            return step, step + 1
        chunk = bisect_right(begins, step)
        low, high = int(begins[chunk - 1]), int(begins[chunk]) if chunk < len(begins) else axis.length
        if high - low > self._blocks.longest_run and self._leaves:
            first, last = next(end[1:] for end in self._ends if end[0] is axis)
            ends = (step, step + 1, *axis.input_range(first, last), *axis.target_range(first, last))
            low, high = max(low, min(ends)), min(high, max(ends))
        return low, high

    def read(self, run: tuple[int, int], counts: Mapping[int, int]) -> dict[int, BlockField]:
        """Return fields by point; ``counts`` windows are cut from each.

        The points lie in one ``run`` (:meth:`run_of`), which is read if one is missing.
        """
        cache, chunks, unread, key = self._cache, self._cache.chunks, self._cache.unread, self._key
        leaves = self._leaves
        with cache.lock_of(key(run[0])):
            fields: dict[int, Any] = {step: chunks.find(key(step)) for step in counts}
            is_finite = {step: key(step) not in cache.nonfinite for step in counts}
            missing = [step for step, field in fields.items() if field is None]
            if any(key(step) not in unread for step in missing):  # an epoch begins
                for step in range(*run):
                    if uses := self._uses(step):
                        unread.setdefault(key(step), uses)
            for step, count in counts.items() if leaves else ():
                left = (unread.pop(key(step), 0) or self._uses(step)) - count
                if left > 0:
                    unread[key(step)] = left
            if missing:
                self._read_run(run, missing, fields, is_finite)
            for step in counts if leaves else ():
                if key(step) not in unread:
                    chunks.drop(key(step)) if self._is_cut_once(step) else chunks.drop_first(key(step))
        return {
            step: BlockField(field, {**self._lows, self._axis.name: step}, is_finite[step])
            for step, field in fields.items()
        }

    def _read_run(
        self, run: tuple[int, int], missing: list[int], fields: dict[int, Any], is_finite: dict[int, bool]
    ) -> None:
        """Read a run of points; add missing ones to ``fields``, and keep those that may still be cut."""
        part, chunks, place = self._part, self._cache.chunks, field_dims(self._part).index(self._axis.name)
        ranges = {**self._ranges, self._axis.name: run}
        numbers = arranged(read_ranges(part.reader, self._blocks.layout.axes, ranges, part.masked), part)
        for step in range(*run):
            key = self._key(step)
            is_kept = key in self._cache.unread or (step in fields and not self._is_cut_once(step))
            is_kept = is_kept and chunks.find(key) is None
            if not is_kept and step not in missing:
                continue
            field = numbers[(slice(None),) * place + (slice(step - run[0], step - run[0] + 1),)]
            if is_kept:
                field = field.copy()  # so that each point is freed by itself, and no long-lived array is in the pool
                chunks.put(key, field)
            else:
                field = np.ascontiguousarray(field)
            if find_nonfinite(field.reshape(1, -1)) is not None:
                self._cache.nonfinite.add(key)
                is_finite[step] = False
            if step in fields:
                fields[step] = field

    def _key(self, step: int) -> FieldKey:
        return *self._source, (*self._place, step), self._role

    def _uses(self, step: int) -> int:
        """Return how many windows are cut from the field at a point."""
        ends = np.array([(step - offset, step - offset - size) for offset, size in self._reads])
        counts = np.searchsorted(self._axis.starts, ends, "right")
        return int((counts[:, 0] - counts[:, 1]).sum()) * self._windows

    def _is_cut_once(self, step: int) -> bool:
        """Whether a field in local files is read by a single window. An epoch needs it only once."""
        return not self._part.reader.is_remote and self._uses(step) == 1
