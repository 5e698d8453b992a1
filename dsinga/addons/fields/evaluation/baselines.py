"""Forecasts that need no net, of the targets of windows: persistence and a climatology."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.addons.fields.evaluation.label_groups import LabelPoints
from dsinga.addons.fields.records.climatology import FieldClimatology, climatology_of
from dsinga.addons.fields.records.definition import SAMPLER_SHARE
from dsinga.addons.fields.records.layout import ChannelGroup, Layout
from dsinga.addons.fields.records.window_blocks import BlockCache, WindowBlocks
from dsinga.addons.fields.records.window_column import WindowColumn
from dsinga.base.arguments import shown
from dsinga.base.errors import UserError

PERSISTENCE, CLIMATOLOGY = "persistence", "climatology"


class Persistence:
    """Forecasts that targets stay as they are at the last point of the inputs.

    Raises UserError for windows whose targets do not lie ahead.
    """

    name = PERSISTENCE

    def __init__(self, points: LabelPoints):
        windows, layout = points.windows, points.layout
        self._ahead = [dim for dim, axis in layout.axes.items() if axis.lead > 0 and dim not in layout.space]
        if not self._ahead:
            raise UserError("persistence is a forecast of targets that lie ahead; these windows have no lead")
        self._column = WindowColumn(
            WindowBlocks(_at_last_point(layout, self._ahead), windows.definition.memory // SAMPLER_SHARE),
            BlockCache(),
            windows.window_numbers,
            is_target=True,
            location=windows.location,
        )
        self._column.cache.register(self, windows.definition.memory)
        self._parts = layout.targets

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the forecasts of windows, (n, C, *space) float32; NaN where the data are masked."""
        numbers = self._column.take(rows)
        forecasts, first = [], 0
        for part, last in zip(self._parts, self._column.parts, strict=True):
            field = numbers[:, first : first + last.channels]
            first += last.channels
            space = field.shape[2:]
            field = field.reshape(len(rows), *last.channel_sizes, *space)
            field = np.broadcast_to(field, (len(rows), *part.channel_sizes, *space))
            forecasts.append(field.reshape(len(rows), part.channels, *space))
        return np.concatenate(forecasts, axis=1)


def _at_last_point(layout: Layout, dims: list[str]) -> Layout:
    """Return a layout whose targets are the last point of the inputs along some dimensions, without context."""
    axes = dict(layout.axes)
    for dim in dims:
        size = axes[dim].size
        axes[dim] = replace(axes[dim], lead=0, target_part=(size - 1, size))

    def of(part: ChannelGroup) -> ChannelGroup:
        return replace(part, sizes=tuple(axes[dim].target_size for dim in part.dims))

    return replace(layout, axes=axes, targets=tuple(map(of, layout.targets)), weights=None)


class Climatological:
    """Forecasts that targets are as a climatology has them at their times.

    Raises UserError where the climatology lacks a target, or one of its points.
    """

    name = CLIMATOLOGY

    def __init__(self, points: LabelPoints, climatology: FieldClimatology):
        self._points, self._dim = points, points.time("a climatology")
        dataset = points.windows.dataset
        names = [part.name for part in points.layout.targets]
        self._fields = climatology.at_points_of(dataset[names], self._dim)
        self._subtracted: Any = None  # from what windows read
        if text := points.windows.definition.climatology:
            subtracted = climatology_of(text)
            names = [name for name in names if name in subtracted.means]
            self._subtracted = subtracted.at_points_of(dataset[names], self._dim)
        self._coordinate = dataset[self._dim]

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the forecasts of windows, (n, C, *space) float32."""
        times = self._points.points(self._dim, rows)
        low, high = int(times.min()), int(times.max()) + 1
        fields = self._fields.at(self._coordinate[low:high])
        if self._subtracted is not None:
            subtracted = self._subtracted.at(self._coordinate[low:high])
            fields = fields.assign({name: fields[name] - subtracted[name] for name in subtracted})
        forecasts = []
        first = 0
        for part in self._points.layout.targets:
            channels = slice(first, first + part.channels)
            first += part.channels
            field = fields[part.name].transpose(*part.reader.dims)
            index = []
            for dim in part.reader.dims:
                at = self._points.points(dim, rows)
                at = at[:, channels] if at.shape[1] > 1 else at
                index.append(at - low if dim == self._dim else at)
            values = field.values[tuple(index)]
            shape = (len(rows), part.channels, *self._points.windows.label_shape[1:])
            forecasts.append(np.broadcast_to(values, shape))
        return np.concatenate(forecasts, axis=1).astype(np.float32)


def make_baselines(points: LabelPoints, against: Any) -> list[Any]:
    """Return the forecasts that ``against`` names: "persistence", a climatology, or several of these."""
    given = list(against) if isinstance(against, (list, tuple)) else [against]
    baselines: list[Any] = []
    for each in given:
        if isinstance(each, FieldClimatology):
            baselines.append(Climatological(points, each))
        elif each == PERSISTENCE:
            baselines.append(Persistence(points))
        else:
            raise UserError(
                "against takes 'persistence' and a climatology, as of dsinga.data.field_climatology(train.dataset), "
                f"not {shown(each)}"
            )
    return baselines
