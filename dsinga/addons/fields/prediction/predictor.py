"""Computes blocks of a prediction from variables of a Dataset, in calls of fixed shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dsinga.addons.fields.prediction.tiles import AxisTiles, Tile
from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.layout import ChannelGroup, Layout
from dsinga.addons.fields.records.readers import Region, VariableReader, as_float32
from dsinga.addons.fields.records.window_blocks import BlockCache, BlockField, MemoryNeeds, WindowBlocks
from dsinga.addons.fields.records.window_column import WindowColumn
from dsinga.layers import Records
from dsinga.passes.predictor import Predictor

UNBOUNDED = 1 << 62  # bytes


class MemoryReader(VariableReader):
    """Reads a variable's regions from points in memory; without points it only describes the variable."""

    def __init__(self, reader: VariableReader, points: Sequence[np.ndarray] = (), values: np.ndarray | None = None):
        self.name, self.dims, self.shape = reader.name, reader.dims, reader.shape
        self.is_lazy = self.from_files = False
        self._points = tuple(points)
        self._values = None if values is None else as_float32(values, self.name)

    @property
    def chunk_shape(self) -> None:
        """None: data in memory have no chunks."""
        return None

    def read(self, region: Region) -> np.ndarray:
        """Return the numbers of a region that is in memory; float32, a view."""
        assert self._values is not None, "it has numbers"
        bounds = [
            np.searchsorted(points, (part.start, part.stop)) for points, part in zip(self._points, region, strict=True)
        ]
        values = self._values[tuple(slice(*pair) for pair in bounds)]
        assert values.shape == tuple(part.stop - part.start for part in region), "its points are in memory"
        return values


NAN_REMEDY = (
    "the model was trained without a mask of it: make the windows with dsinga.windows(..., mask=[{name!r}]) and train "
    "again, or fill the NaN of the Dataset: ds.fillna(ds.mean())"
)


def described(layout: Layout) -> Layout:
    """Drop the data of a layout's variables and keep their coordinates, to send less to workers."""

    def of_part(part: ChannelGroup) -> ChannelGroup:
        is_variable = type(part.reader) is VariableReader
        return replace(part, reader=MemoryReader(part.reader)) if is_variable else part

    return replace(layout, inputs=tuple(map(of_part, layout.inputs)), targets=(), weights=None)


def memory_windows(layout: Layout, readers: Mapping[str, VariableReader], axes: Mapping[str, Axis]) -> WindowColumn:
    """Create the inputs of windows along ``axes`` from the ``readers`` of variables by name."""

    def of_window(part: ChannelGroup) -> ChannelGroup:
        sizes = tuple(axes[dim].input_size for dim in part.dims)
        return replace(part, reader=readers.get(part.name, part.reader), sizes=sizes)

    layout = replace(layout, axes=axes, inputs=tuple(map(of_window, layout.inputs)))
    column = WindowColumn(WindowBlocks(layout, UNBOUNDED), KeptFields(), None, False, "the Dataset")
    column.nan_remedy = NAN_REMEDY
    return column


class KeptFields(BlockCache):
    """A cache that reads each variable's fields of a single block once."""

    def __init__(self) -> None:
        super().__init__(0, MemoryNeeds(0))
        self._fields: dict[ChannelGroup, BlockField] = {}

    def read(self, part: ChannelGroup, blocks: WindowBlocks, block: int, is_target: bool, count: int) -> BlockField:
        """Return the field of a variable that the block's windows read."""
        if part not in self._fields:
            self._fields[part] = super().read(part, blocks, block, is_target, count)
        return self._fields[part]


Range = tuple[int, int]  # the first and the last one, of windows or tiles


class PredictionBlock(NamedTuple):
    """A part of a prediction: ranges of windows by dimension of samples, of tiles by axis."""

    samples: tuple[Range, ...]
    tiles: tuple[Range, ...]


class MaskedTarget(NamedTuple):
    """A target that is NaN in the prediction where the last input step is NaN.

    Attributes:
        mask: its mask channels in a record, which say where points are valid.
        numbers: neighbouring channels of the feature for each channel of the target.
    """

    channels: slice
    mask: slice
    sizes: tuple[int, ...]
    taken: tuple[tuple[int, ...], ...]
    numbers: int = 1


class FieldPredictor:
    """Computes a layer for blocks of windows and tiles; callable in any thread of any process.

    Every call of the net has ``batch`` rows of a tile's size.

    Args:
        samples: the dimensions along which there are several windows.
        masked: targets that are NaN where the inputs are.
    """

    def __init__(
        self,
        predictor: Predictor,
        source: str,
        layer: str,
        layout: Layout,
        samples: Sequence[str],
        tiles: Sequence[AxisTiles],
        batch: int,
        channels: int,
        masked: Sequence[MaskedTarget] = (),
    ):
        self._predictor, self._source, self._layer = predictor, source, layer
        self.layout, self.samples, self.tiles, self.batch = layout, tuple(samples), tuple(tiles), batch
        self.channels, self._masked = channels, tuple(masked)
        self._known: dict[tuple[str, Range], np.ndarray] = {}  # points of ranges along a dimension

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}}

    @property
    def variables(self) -> tuple[ChannelGroup, ...]:
        """The inputs that are read from variables, not computed from coordinates."""
        return tuple(part for part in self.layout.inputs if isinstance(part.reader, MemoryReader))

    def points(self, part: ChannelGroup, block: PredictionBlock) -> tuple[np.ndarray, ...]:
        """Return the increasing points along each dimension of a variable that a block needs."""
        return tuple(self._points(dim, block) for dim in part.reader.dims)

    def _points(self, dim: str, block: PredictionBlock) -> np.ndarray:
        if dim not in self.samples:
            return self.space_points(dim, block)
        ends = block.samples[self.samples.index(dim)]
        if (dim, ends) not in self._known:
            axis = self.layout.axes[dim]
            self._known[dim, ends] = np.unique(axis.positions(*axis.input_range(*ends))[0])
        return self._known[dim, ends]

    def space_points(self, dim: str, block: PredictionBlock) -> np.ndarray:
        """Return the increasing points along a dimension of space that a block needs."""
        place = self.layout.space.index(dim)
        ends = block.tiles[place]
        if (dim, ends) not in self._known:
            first, last = (self.tiles[place].tile(index) for index in ends)
            axis = self._tile_axis(place, first)
            points = axis.positions(int(axis.starts[0]), self._start(place, last) + last.size)[0]
            self._known[dim, ends] = np.unique(points)
        return self._known[dim, ends]

    def predict(self, values: Mapping[str, np.ndarray], block: PredictionBlock) -> np.ndarray:
        """Predict a block; return an array (windows of each dimension of samples ..., C', points of space ...).

        ``values`` are the numbers of each variable at :meth:`points`. Points that lack context are NaN.
        """
        readers = {
            part.name: MemoryReader(part.reader, self.points(part, block), values[part.name]) for part in self.variables
        }
        return self.predict_windows(readers, self.sample_axes(block), block)

    def predict_windows(
        self, readers: Mapping[str, VariableReader], samples: Mapping[str, Axis], block: PredictionBlock
    ) -> np.ndarray:
        """Predict a block of windows along the axes ``samples``."""
        counts = tuple(last - first + 1 for first, last in block.samples)
        chosen = [
            [tiles.tile(index) for index in range(first, last + 1)]
            for tiles, (first, last) in zip(self.tiles, block.tiles, strict=True)
        ]
        starts = [tiles.core * first for tiles, (first, _) in zip(self.tiles, block.tiles, strict=True)]
        shape = [
            sum(tiles.chunks[first : last + 1]) for tiles, (first, last) in zip(self.tiles, block.tiles, strict=True)
        ]
        rows_of_block = math.prod(counts)
        out = np.full((rows_of_block, self.channels, *shape), np.nan, np.float32)
        for tile in product(*chosen):
            if any(part.first >= part.stop for part in tile):
                continue
            axes = {dim: samples.get(dim) or self._space_axis(dim, tile) for dim in self.layout.axes}
            column = memory_windows(self.layout, readers, axes)
            place = [slice(part.first - start, part.stop - start) for part, start in zip(tile, starts, strict=True)]
            for first in range(0, rows_of_block, self.batch):
                rows = np.arange(first, min(first + self.batch, rows_of_block))
                out[(slice(first, first + len(rows)), slice(None), *place)] = self._compute(column.take(rows), tile)
        return out.reshape(*counts, *out.shape[1:])

    def _compute(self, records: np.ndarray, tile: Sequence[Tile]) -> np.ndarray:
        rows = len(records)
        if rows < self.batch:  # the last record again, so that each call has one shape
            records = np.concatenate([records, np.broadcast_to(records[-1:], (self.batch - rows, *records.shape[1:]))])
        batch = {self._source: Records(np.ascontiguousarray(records), None)}
        features, _ = self._predictor.forward(batch, self.batch, (self._layer,))
        inside = tuple(slice(part.skip, part.skip + part.stop - part.first) for part in tile)
        feature = features[self._layer].data[(slice(rows), slice(None), *inside)]
        if self._masked:
            feature = feature.copy()
            for target in self._masked:
                self._mask(feature[:, target.channels], records[:rows, target.mask], target, tile)
        return feature

    def _mask(self, feature: np.ndarray, valid: np.ndarray, target: MaskedTarget, tile: Sequence[Tile]) -> None:
        """Set points of a target to NaN if the last step of the inputs masks them."""
        befores = [self.layout.axes[dim].before for dim in self.layout.space]
        inside = tuple(
            slice(part.skip + before, part.skip + before + part.stop - part.first)
            for part, before in zip(tile, befores, strict=True)
        )
        valid = valid.reshape(len(valid), *target.sizes, *valid.shape[2:])
        for axis, points in enumerate(target.taken):
            valid = valid.take(points, axis=axis + 1)
        valid = valid.reshape(len(valid), -1, *valid.shape[1 + len(target.sizes) :])[
            (slice(None), slice(None), *inside)
        ]
        feature[(valid == 0).repeat(target.numbers, axis=1)] = np.nan

    def sample_axes(self, block: PredictionBlock) -> dict[str, Axis]:
        """Return the axes of samples, with the windows of a block."""
        return {
            dim: replace(self.layout.axes[dim], starts=self.layout.axes[dim].starts[first : last + 1])
            for dim, (first, last) in zip(self.samples, block.samples, strict=True)
        }

    def _space_axis(self, dim: str, tile: Sequence[Tile]) -> Axis:
        place = self.layout.space.index(dim)
        return self._tile_axis(place, tile[place])

    def _tile_axis(self, place: int, tile: Tile) -> Axis:
        axis = self.layout.axes[self.layout.space[place]]
        start = np.array([self._start(place, tile)])
        edge = "periodic" if self.tiles[place].periodic else axis.edge
        return Axis(axis.name, axis.length, tile.size, tile.size, edge=edge, has_targets=False, starts=start)

    def _start(self, place: int, tile: Tile) -> int:
        axis = self.layout.axes[self.layout.space[place]]
        return int(axis.starts[0]) - axis.before + tile.start
