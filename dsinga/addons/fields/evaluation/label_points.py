"""The points of the data at which the numbers of labels of windows lie, for each window, channel and point of space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.dataset import is_time
from dsinga.addons.fields.records.field_windows import FieldWindows
from dsinga.addons.fields.records.layout import ChannelGroup
from dsinga.base.errors import UserError
from dsinga.base.registry import listed

NONE = -1  # the group of a number that is in none


class LabelPoints:
    """Finds the points of labels (n, C, *space), which may lie along several variables, levels and steps of time.

    Attributes:
        windows: the windows.
        names: the names of the targets.
        variables: the number of the target of each channel, (C,).
        times: the dimensions of time along which targets lie ahead, or that targets have.

    Raises UserError for windows without targets.
    """

    def __init__(self, windows: FieldWindows):
        if not windows.has_labels:
            raise UserError("the windows have no targets with which predictions could be compared; name them: targets=")
        self.windows, self.layout = windows, windows.layout
        parts = self.layout.targets
        self.names = list(dict.fromkeys(part.name for part in parts))
        numbers = [self.names.index(part.name) for part in parts]
        self.variables = np.repeat(numbers, [part.channels for part in parts])
        self._offsets: dict[str, np.ndarray] = {}  # of each channel in the window, by dimension of channels
        for dim in self.layout.axes:
            columns = [_offsets(part, self.layout.axes[dim]) for part in parts]
            self._offsets[dim] = np.concatenate(columns) if columns else np.empty(0, np.int64)

    @property
    def channels(self) -> int:
        """The number of channels of a label, without that of weights."""
        return len(self.variables)

    @property
    def dims(self) -> list[str]:
        """The dimensions that all targets have."""
        return [dim for dim in self.layout.axes if all(dim in part.dims for part in self.layout.targets)]

    def check_dim(self, dim: str, what: str) -> None:
        """Raise UserError for a dimension that not all targets have."""
        if dim not in self.dims:
            raise UserError(
                f"{what} needs the dimension {dim!r}, which not all targets have; they have {listed(self.dims)}"
            )

    def points(self, dim: str, rows: Any) -> np.ndarray:
        """Return the point along a dimension of each number of labels, in a shape that broadcasts to (n, C, *space).

        Where all windows begin at the same point its first axis has one row.
        """
        axis = self.layout.axes[dim]
        starts = self.windows.positions(rows)[dim] + axis.offset(is_target=True)
        starts = starts[:1] if len(starts) and (starts == starts[0]).all() else starts
        space = self.layout.space
        if dim in space:
            sides = [-1 if each == dim else 1 for each in space]
            points = starts.reshape(-1, 1, *(1,) * len(space)) + np.arange(axis.target_size).reshape(1, 1, *sides)
        else:
            points = (starts[:, None] + self._offsets[dim]).reshape(len(starts), -1, *(1,) * len(space))
        return points % axis.length if axis.edge == "periodic" else points

    def used_points(self, dim: str) -> np.ndarray:
        """Return the points along a dimension that labels have, increasing."""
        rows = np.arange(len(self.windows))
        starts = np.unique(self.windows.positions(rows)[dim], return_index=True)[1]
        return np.unique(self.points(dim, rows[np.sort(starts)]))

    def time(self, what: str) -> str:
        """Return the dimension of time of the targets; raise UserError where there is none."""
        dataset, definition = self.windows.dataset, self.windows.definition
        times = [dim for dim in self.dims if is_time(dataset, dim, definition)]
        if not times:
            raise UserError(f"{what} needs targets that lie along time; these have {listed(self.dims)}")
        return max(times, key=lambda dim: self.layout.axes[dim].lead > 0)  # the first with a lead, else the first

    def leads(self, dim: str) -> np.ndarray:
        """Return how many points after the last one of its inputs each channel lies along a dimension of time, (C,)."""
        axis = self.layout.axes[dim]
        ahead = axis.offset(is_target=True) - (axis.size - 1)
        return ahead + (self._offsets[dim] if dim not in self.layout.space else np.zeros(self.channels, np.int64))


def _offsets(part: ChannelGroup, axis: Axis) -> np.ndarray:
    """Return how far each channel of a target lies along a dimension from the first point of the first lead.

    That is 0 along a dimension that is none of channels.
    """
    dims = part.dims[: len(part.channel_sizes)]
    if axis.name not in dims:
        return np.zeros(math.prod(part.channel_sizes), np.int64)
    later = axis.offset(is_target=True, number=part.number) - axis.offset(is_target=True)
    return later + np.indices(part.channel_sizes)[dims.index(axis.name)].reshape(-1)
