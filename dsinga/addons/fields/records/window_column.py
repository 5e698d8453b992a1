"""Reads inputs or targets of windows from blocks of fields; adds mask and weight channels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import cached_property, partial
from itertools import pairwise
from operator import mul, sub
from typing import Any

import numpy as np

from dsinga.addons.fields.records.layout import ChannelGroup
from dsinga.addons.fields.records.step_fields import Run, StepFields
from dsinga.addons.fields.records.window_blocks import BlockCache, BlockField, FieldKey, WindowBlocks, field_dims
from dsinga.base import buffers
from dsinga.base.errors import UserError
from dsinga.data.column import Column
from dsinga.data.stores.chunk_files import in_threads

SAMPLE_BYTES = 16 << 20
FILTERED_BYTES = 16 << 20  # of windows; their shares of NaN are counted at once
MOST_FIELDS = 256  # variables of blocks, whose places are known
SMALL_WINDOW = 32  # numbers of a variable in a window: up to it, all windows of a block are cut at once

# The copy of a point of a window: its cut, where it goes, the window's index in the cut, and the point.
_StepCopy = tuple["_Cut", np.ndarray, int, int]


class WindowColumn(Column):
    """The inputs, or the targets, of windows: (n, C, *space) float32.

    Args:
        numbers: the number of the window of each row, increasing; None if all windows are rows.
    """

    nan_remedy = "ask for a mask (mask=[{name!r}]), or leave out windows that have NaN (max_nan=0)"

    def __init__(
        self, blocks: WindowBlocks, cache: BlockCache, numbers: np.ndarray | None, is_target: bool, location: str
    ):
        layout = blocks.layout
        self.blocks, self.cache, self.numbers, self.is_target = blocks, cache, numbers, is_target
        self.location = location
        self._fields: dict[tuple[ChannelGroup, int], StepFields] = {}  # by variable and block
        self.parts = layout.targets if is_target else layout.inputs
        length = len(blocks) if numbers is None else len(numbers)
        share = length / len(blocks)
        rows = max(1, min(length, round(blocks.rows * share)))
        shape = layout.target_shape if is_target else layout.input_shape
        super().__init__("targets" if is_target else "inputs", length, shape, np.float32, rows)
        readers = [part.reader for part in self.parts]
        self.from_files = any(reader.from_files for reader in readers)  # type: ignore[misc]

    @property
    def sample_rows(self) -> int:
        """The rows that a check or a summary loads at once, maybe fewer than a block."""
        return max(1, min(super().sample_rows, SAMPLE_BYTES // max(self.row_bytes, 1)))

    def connect(self, client: Callable[[], Any]) -> None:
        """Prepare to read in this process; ``client`` returns the Dask client for kept chunks."""
        weights = self.blocks.layout.weights
        for part in (*self.parts, *([weights] if weights else [])):
            part.reader.connect(client)

    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the windows ``start`` to ``stop``."""
        return self.take(np.arange(start, stop))

    def take(self, rows: np.ndarray, allows_nonfinite: bool = False) -> np.ndarray:
        """Return the windows of ``rows`` (n, C, *space), in the order of ``rows``.

        Raises UserError for NaN that is not masked, and for infinity, unless ``allows_nonfinite``.
        """
        out, is_finite = self._cut(rows)
        self._mask(out, is_finite)
        if not is_finite and not allows_nonfinite:
            self._check(out, rows)
        return out

    def nan_shares(self, rows: np.ndarray) -> np.ndarray:
        """Return the share of NaN among the numbers of variables in each window, (n,) float64."""
        out, is_finite = self._cut(rows)
        if is_finite:
            return np.zeros(len(rows))
        channels = sum(part.channels for part in self.parts)
        return np.isnan(out[:, :channels]).reshape(len(rows), -1).mean(axis=1)

    def place(self, index: Any) -> str:
        """Describe where a number lies: its channel, and its place in the window."""
        layout = self.blocks.layout
        names = layout.target_names() if self.is_target else layout.channel_names()
        return f"channel {names[index[0]]!r}, index {tuple(index)}"

    def _cut(self, rows: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return the windows of ``rows``, (n, C, *space), without masks, and whether all fields are finite."""
        out = buffers.empty((len(rows), *self.shape))
        numbers = rows if self.numbers is None else self.numbers[rows]
        places = self.blocks.places(numbers)
        block_numbers = self.blocks.block_numbers(places)
        order = np.argsort(block_numbers, kind="stable")  # makes the windows of each block adjacent
        block_numbers = block_numbers[order]
        ends = [0, *(np.flatnonzero(block_numbers[1:] != block_numbers[:-1]) + 1).tolist(), len(rows)]
        of_blocks = [(int(block_numbers[start]), slice(start, end)) for start, end in pairwise(ends)]
        starts = {axis.name: axis.starts[place[order]] for axis, place in zip(self.blocks.axes, places, strict=True)}
        channel = 0
        copies: list[Callable[[], bool]] = []
        alone: list[Callable[[], bool]] = []  # copies of what one thread reads, such as a user's function in Dask
        weights = [self.blocks.layout.weights] if self.is_target and self.blocks.layout.weights is not None else []
        for part in (*self.parts, *weights):
            channels = out[:, channel : channel + part.channels]
            channels = channels.reshape(len(rows), *part.channel_sizes, *self.shape[1:])
            points = np.empty((len(rows), len(part.dims)), np.int64)
            for axis, dim in enumerate(part.dims):
                points[:, axis] = starts[dim] + self.blocks.layout.axes[dim].offset(self.is_target, part.number)
            of_part = copies if part.reader.threads > 1 else alone
            if self._large.get(part):
                of_part += self._copies_of_runs(part, channels, points, order, of_blocks)
            else:
                copy = partial(self._copy_block, part, _Cut(part, points), channels, order)
                of_part += [partial(copy, *of_block) for of_block in of_blocks]
            channel += part.channels
        threads = max((part.reader.threads for part in self._large), default=1)
        is_finite = all([*(copy() for copy in alone), *in_threads(copies, threads)])
        for part in weights:
            out[:, -part.channels :] /= self.blocks.layout.scale
        return out, is_finite

    @cached_property
    def _large(self) -> dict[ChannelGroup, bool]:
        """The large variables, and whether they are read by run.

        Those with long chunks are read by block, unless all fields fit.
        """
        blocks, weights = self.blocks, self.blocks.layout.weights
        return {
            part: blocks.all_bytes <= self.cache.memory or blocks.longest_chunk(part) <= blocks.longest_run
            for part in (*self.parts, *([weights] if weights else []))
            if blocks.has_steps(part)
        }

    def _copy_block(
        self, part: ChannelGroup, cut: _Cut, out: np.ndarray, order: np.ndarray, block: int, places: slice
    ) -> bool:
        """Copy windows of a block to ``out``; return whether its field is finite."""
        field = self.cache.read(part, self.blocks, block, self.is_target, places.stop - places.start)
        cut.copy(out, field, order[places], places)
        return field.is_finite

    def _copies_of_runs(
        self, part: ChannelGroup, out: np.ndarray, points: np.ndarray, order: np.ndarray, of_blocks: Any
    ) -> list[Callable[[], bool]]:
        """Return functions that copy windows from a run of points to ``out``, and return whether it is finite.

        ``points`` has each window's first point along the dimensions of ``part``, in the order of blocks.
        """
        axis: Any = self.blocks.step_axis
        column, place = part.dims.index(axis.name), field_dims(part).index(axis.name) + 1
        copies: dict[FieldKey, tuple[StepFields, Run, list[_StepCopy]]] = {}
        for number in range(part.sizes[column]):
            points[:, column] += number > 0
            cut = _Cut(part, points.copy(), axis.name)
            channels = out[(slice(None),) * place + (slice(number, number + 1),)]
            for block, places in of_blocks:
                fields = self._step_fields(part, block)
                for index, point in enumerate(points[places, column].tolist(), places.start):
                    run = fields.run_of(point)
                    of_run = copies.setdefault(fields.key(run[0]), (fields, run, []))
                    of_run[2].append((cut, channels, index, point))
        return [partial(_copy_run, *of_run, order) for of_run in copies.values()]

    def _step_fields(self, part: ChannelGroup, block: int) -> StepFields:
        fields = self._fields.get((part, block))
        if fields is None:
            if len(self._fields) == MOST_FIELDS:
                self._fields.clear()
            fields = self._fields[part, block] = StepFields(self.cache, part, self.blocks, block, self.is_target)
        return fields

    def __getstate__(self) -> dict[str, Any]:
        return {**{name: value for name, value in vars(self).items() if name != "_large"}, "_fields": {}}

    def _mask(self, out: np.ndarray, is_finite: bool) -> None:
        """Fill NaN of masked inputs, and write the channels that mark valid numbers."""
        if self.is_target or not any(part.masked for part in self.parts):
            return
        mask = sum(part.channels for part in self.parts)
        if is_finite:
            out[:, mask:] = 1
            return
        channel = 0
        for part in self.parts:
            if part.masked:
                numbers = out[:, channel : channel + part.channels]
                valid = ~np.isnan(numbers)
                out[:, mask : mask + part.channels] = valid
                np.copyto(numbers, np.float32(part.fill), where=~valid)
                mask += part.channels
            channel += part.channels

    def _check(self, out: np.ndarray, rows: np.ndarray) -> None:
        channel = 0
        for part in self.parts:
            numbers = out[:, channel : channel + part.channels]
            bad = np.isinf(numbers) if part.masked and self.is_target else ~np.isfinite(numbers)
            if bad.any():
                row, *index = (int(place) for place in np.unravel_index(int(np.argmax(bad)), bad.shape))
                raise self._nonfinite(part, int(rows[row]), index, numbers[(row, *index)])
            channel += part.channels

    def _nonfinite(self, part: ChannelGroup, row: int, index: list[int], value: Any) -> UserError:
        layout = self.blocks.layout
        number = row if self.numbers is None else int(self.numbers[row])
        starts = {
            axis.name: int(axis.starts[place])
            for axis, (place,) in zip(self.blocks.axes, self.blocks.places(np.array([number])), strict=True)
        }
        channel = np.unravel_index(index[0], part.channel_sizes) if part.channel_sizes else ()
        inside = {dim: int(place) for dim, place in zip(part.dims, channel, strict=False)}
        inside |= dict(zip(part.space, index[1:], strict=True))
        points = {}
        for dim in part.reader.dims:
            axis = layout.axes[dim]
            point = starts[dim] + axis.offset(self.is_target, part.number) + inside[dim]
            points[dim] = int(axis.positions(point, point + 1)[0][0])
        labels = ", ".join(f"{dim}={layout.label(dim, point)}" for dim, point in points.items())
        what = "NaN" if np.isnan(value) else "infinity"
        remedy = (
            self.nan_remedy.format(name=part.name)
            if what == "NaN"
            else "leave such points out, or put a number in their place"
        )
        return UserError(
            f"{self.location}: variable {part.name!r} has {what} at {labels} (index {tuple(points.values())}); {remedy}"
        )


def window_columns(
    blocks: WindowBlocks, cache: BlockCache, numbers: np.ndarray | None, location: str
) -> list[WindowColumn]:
    """Return the inputs of windows and, if the layout has any, their targets."""
    roles = (False, True) if blocks.layout.targets else (False,)
    return [WindowColumn(blocks, cache, numbers, is_target, location) for is_target in roles]


def window_numbers(blocks: WindowBlocks, cache: BlockCache, location: str, most: float | None) -> np.ndarray | None:
    """Return the numbers of windows with at most a share ``most`` of NaN; None for all."""
    if most is None:
        return None
    columns = window_columns(blocks, cache, None, location)
    step = max(1, FILTERED_BYTES // max(column.row_bytes for column in columns))
    numbers = [
        start + np.flatnonzero(np.max([column.nan_shares(rows) for column in columns], axis=0) <= most)
        for start in range(0, len(blocks), step)
        for rows in [np.arange(start, min(start + step, len(blocks)))]
    ]
    kept = np.concatenate(numbers)
    if not len(kept):
        raise UserError(
            f"{location}: all {len(blocks)} windows have more than max_nan={most:g} of NaN; give a larger share"
        )
    return kept


def _copy_run(fields: StepFields, run: Run, copies: list[_StepCopy], order: np.ndarray) -> bool:
    """Copy points of windows from a run of points; return whether the fields are finite."""
    by_point = fields.read(run, Counter(point for *_, point in copies))
    for cut, channels, index, point in copies:
        cut.copy(channels, by_point[point], order[index : index + 1], slice(index, index + 1))
    return all(field.is_finite for field in by_point.values())


class _Cut:
    """Copies windows of one variable from the fields of their blocks.

    Args:
        points: the first point of each window along the part's dimensions, (n, dimensions) int64.
        step: the dimension along which only one point is copied; None for all points of windows.
    """

    def __init__(self, part: ChannelGroup, points: np.ndarray, step: str | None = None):
        dims = field_dims(part)
        self._dims, self._points = part.dims, points
        self._axes = [dims.index(dim) for dim in part.dims]
        sizes = dict(zip(part.dims, part.sizes, strict=True)) | ({step: 1} if step else {})
        self._shape = tuple(sizes.get(dim, 1) for dim in dims)
        self._is_small = math.prod(self._shape) <= SMALL_WINDOW

    def copy(self, out: np.ndarray, field: BlockField, rows: np.ndarray, places: slice) -> None:
        numbers, shape = field.numbers, self._shape
        strides = [numbers.strides[axis] for axis in self._axes]
        lows = [field.lows[dim] for dim in self._dims]
        if self._is_small:
            offsets = (self._points[places] - lows) @ np.array(strides, np.int64)  # in bytes
            points = np.indices(shape).reshape(len(shape), -1).T @ np.array(numbers.strides, np.int64)
            index = (offsets[:, None] + points).reshape(len(rows), *shape) // numbers.itemsize
            out[rows] = numbers.reshape(-1)[index]
            return
        for row, point in zip(rows.tolist(), self._points[places].tolist(), strict=True):
            offset = sum(map(mul, map(sub, point, lows), strides))
            out[row] = np.ndarray(shape, numbers.dtype, numbers, offset, numbers.strides)
