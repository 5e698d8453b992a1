"""Windows of points that are in memory already, such as the part of a Dataset that a task has got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.layout import ChannelGroup, Layout
from dsinga.addons.fields.records.readers import Region, VariableReader, as_float32
from dsinga.addons.fields.records.window_blocks import BlockCache, BlockField, WindowBlocks
from dsinga.addons.fields.records.window_column import WindowColumn

UNBOUNDED = 1 << 62  # bytes


class MemoryReader(VariableReader):
    """Reads regions of a variable of which some points are in memory; without any it only describes the variable.

    Args:
        reader: the variable's reader, of which name, dimensions and shape are taken.
        points: the increasing points along each dimension that are in memory.
        values: the numbers at these points.
    """

    def __init__(self, reader: VariableReader, points: Sequence[np.ndarray] = (), values: np.ndarray | None = None):
        self.name, self.dims, self.shape = reader.name, reader.dims, reader.shape
        self.is_lazy = self.from_files = False
        self._points = tuple(points)
        self._values = None if values is None else as_float32(values, self.name)

    @property
    def chunk_shape(self) -> None:
        """None: it has no chunks."""
        return None

    def read(self, region: Region) -> np.ndarray:
        """Return the numbers of a region, all of whose points are in memory; float32, a view."""
        assert self._values is not None, "it has numbers"
        bounds = [
            np.searchsorted(points, (part.start, part.stop)) for points, part in zip(self._points, region, strict=True)
        ]
        values = self._values[tuple(slice(*pair) for pair in bounds)]
        assert values.shape == tuple(part.stop - part.start for part in region), "its points are in memory"
        return values


def described(layout: Layout) -> Layout:
    """Return a layout without the data of variables, which does not grow with them; coordinates it keeps."""

    def of_part(part: ChannelGroup) -> ChannelGroup:
        is_variable = type(part.reader) is VariableReader
        return replace(part, reader=MemoryReader(part.reader)) if is_variable else part

    return replace(layout, inputs=tuple(map(of_part, layout.inputs)), targets=(), weights=None)


def memory_windows(layout: Layout, readers: Mapping[str, VariableReader], axes: Mapping[str, Axis]) -> WindowColumn:
    """Return the inputs of windows along ``axes``, whose variables ``readers`` read, by name."""

    def of_window(part: ChannelGroup) -> ChannelGroup:
        sizes = tuple(axes[dim].input_size for dim in part.dims)
        return replace(part, reader=readers.get(part.name, part.reader), sizes=sizes)

    layout = replace(layout, axes=axes, inputs=tuple(map(of_window, layout.inputs)))
    fields = KeptFields()
    column = WindowColumn(WindowBlocks(layout, UNBOUNDED), fields, None, False, "the Dataset")
    fields.register(column, 0)  # so that the cache of the process forgets them
    return column


class KeptFields(BlockCache):
    """Keeps the fields of its only block, which is read once for each variable."""

    def __init__(self) -> None:
        super().__init__()
        self._fields: dict[ChannelGroup, BlockField] = {}

    def read(self, part: ChannelGroup, blocks: WindowBlocks, block: int, is_target: bool, count: int) -> BlockField:
        """Return the field of a part that the windows of the block read."""
        if part not in self._fields:
            self._fields[part] = super().read(part, blocks, block, is_target, count)
        return self._fields[part]
