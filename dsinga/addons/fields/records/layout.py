"""Decides which dimensions are space, and assigns channels to variables and other points."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dsinga.addons.fields.records.axis import Axis, make_axis
from dsinga.addons.fields.records.coordinates import is_time, time_gaps
from dsinga.addons.fields.records.definition import WindowDefinition, WindowDimConf
from dsinga.addons.fields.records.readers import VariableReader, coordinate_reader
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import label_text
from dsinga.data.column import PointRanges

LEAD, VALID_TIME = "lead", "valid_time"  # the dimension of leads, and the coordinate of their times
MOST_SPACE = 3  # axes of space of a record


@dataclass(frozen=True)
class ChannelGroup:
    """The channels of a record or label that come from one variable or coordinate.

    Attributes:
        dims: its dimensions in the order of the record: dimensions of channels, time last, then space.
        space: the dimensions of space of all records; dimensions that the variable lacks are broadcast.
        sizes: points of a window along ``dims``.
        fill: the number in place of NaN.
        number: its lead, from 0.
    """

    reader: VariableReader
    dims: tuple[str, ...]
    space: tuple[str, ...]
    sizes: tuple[int, ...]
    masked: bool = False
    fill: float = 0.0
    number: int = 0

    @property
    def name(self) -> str:
        """The name of the variable, or the expression of the coordinate."""
        return self.reader.name

    @property
    def reads_variable(self) -> bool:
        """Whether the channels come from a variable; functions of a coordinate are known beyond the data."""
        return type(self.reader) is VariableReader

    @cached_property
    def channel_sizes(self) -> tuple[int, ...]:
        """The number of points of a window along each dimension of channels."""
        return tuple(size for dim, size in zip(self.dims, self.sizes, strict=True) if dim not in self.space)

    @cached_property
    def channels(self) -> int:
        """The number of channels of the variable in a record or label."""
        return math.prod(self.channel_sizes)


@dataclass(frozen=True)
class Layout:
    """How windows become records and labels: their parts by variable, and the dimensions.

    Attributes:
        axes: the windows along each dimension, in the order of the data.
        space: the dimensions of space, 0 to 3.
        inputs: parts of a record, without mask channels, which follow them.
        targets: parts of a label, without weights; empty without labels.
        weights: the part of a label with the weights of points; None without weights.
        coordinates: existing coordinates by dimension, as xarray Variables.
        scale: the divisor of weights.
    """

    axes: Mapping[str, Axis]
    space: tuple[str, ...]
    inputs: tuple[ChannelGroup, ...]
    targets: tuple[ChannelGroup, ...]
    weights: ChannelGroup | None
    coordinates: Mapping[str, Any]
    scale: float = 1.0

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a record: channels, then space with its context."""
        channels = sum(part.channels * (2 if part.masked else 1) for part in self.inputs)
        return channels, *(self.axes[dim].input_size for dim in self.space)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of a label: channels, then space without context."""
        channels = sum(part.channels for part in self.targets) + (self.weights is not None)
        return channels, *(self.axes[dim].target_size for dim in self.space)

    @property
    def leads(self) -> int:
        """The number of leads: targets of a window, one after another."""
        return max((axis.leads for axis in self.axes.values()), default=1)

    @property
    def first_lead(self) -> Layout:
        """The layout that reads only the first lead."""
        inputs, targets = (tuple(part for part in parts if not part.number) for parts in (self.inputs, self.targets))
        return replace(self, inputs=inputs, targets=targets)

    def in_region(self, data: PointRanges | None, labels: PointRanges | None) -> Layout:
        """Restrict the layout to some points of space of each record and label; None for all points."""
        ranges = [parts[1:] if parts else (None,) * len(self.space) for parts in (data, labels)]
        axes = {
            **self.axes,
            **{
                dim: replace(self.axes[dim], input_part=inputs, target_part=targets)
                for dim, inputs, targets in zip(self.space, *ranges, strict=True)
            },
        }

        def of(part: ChannelGroup, is_target: bool) -> ChannelGroup:
            sizes = (axes[dim].target_size if is_target else axes[dim].input_size for dim in part.dims)
            return replace(part, sizes=tuple(sizes))

        return replace(
            self,
            axes=axes,
            inputs=tuple(of(part, is_target=False) for part in self.inputs),
            targets=tuple(of(part, is_target=True) for part in self.targets),
            weights=None if self.weights is None else of(self.weights, is_target=True),
        )

    def check_free(self, targets: Collection[str], name: str, example: str = "") -> None:
        """Raise UserError if a dimension or target has a name that predictions need."""
        if name in self.axes or name in targets:
            raise UserError(
                f"the data have {name!r} already, which predictions need for themselves; rename it{example}"
            )

    def check_lead_names(self, targets: Collection[str]) -> None:
        """Raise UserError if the data use the names of leads or their times in predictions."""
        self.check_free(targets, LEAD)
        self.check_free(targets, VALID_TIME, ", such as ds.rename(valid_time='time')")

    def channel_names(self) -> tuple[str, ...]:
        """Return a name for each channel of a record, such as "t2m", "z level=500 time-1" or "mask of sst"."""
        names = [name for part in self.inputs for name in self._names(part, lead=False)]
        masks = [f"mask of {name}" for part in self.inputs if part.masked for name in self._names(part, lead=False)]
        return tuple(names + masks)

    def target_names(self) -> tuple[str, ...]:
        """Return a name for each channel of a label, such as "t2m time+6"; "weights" is last if there are any."""
        names = [name for part in self.targets for name in self._names(part, lead=True)]
        return tuple(names + ["weights"] * (self.weights is not None))

    def _names(self, part: ChannelGroup, lead: bool) -> list[str]:
        names = []
        dims = part.dims[: len(part.channel_sizes)]
        for index in np.ndindex(*part.channel_sizes):
            words = [part.name]
            for dim, place in zip(dims, index, strict=True):
                axis = self.axes[dim]
                whole = axis.size == axis.length and not axis.lead and len(axis.starts) == 1
                if whole:
                    words.append(f"{dim}={self.label(dim, place)}")
                elif step := place + axis.offset(lead, part.number) - (axis.size - 1):
                    words.append(f"{dim}{step:+d}")
            names.append(" ".join(words))
        return names

    def label(self, dim: str, index: int) -> str:
        """Return the coordinate of a point as text, or its index if there is none."""
        coordinate = self.coordinates.get(dim)
        return str(index) if coordinate is None else label_text(coordinate[index].values)


def make_layout(
    dataset: Any, definition: WindowDefinition, has_targets: bool, starts: Mapping[str, Any] | None = None
) -> Layout:
    """Assign channels and axes of space to the windows of a Dataset from :func:`used_variables`.

    ``starts`` replaces the regular first points of windows by dimension.
    """
    names, confs, times, space = window_dims(dataset, definition)
    gaps = {dim: time_gaps(dataset, confs[dim], definition.over_gaps) for dim in times}
    leads = definition.leads if has_targets else 1
    axes = {
        conf.name: make_axis(
            conf, dataset.sizes[conf.name], leads, has_targets, (starts or {}).get(conf.name), gaps.get(conf.name)
        )
        for conf in confs.values()
    }
    time = times[0] if times else None
    weighted = [definition.weights] if definition.weights and has_targets else []
    expressions = [*definition.coordinates, *(name for name in weighted if name not in dataset.data_vars)]
    coordinates = {name: coordinate_reader(dataset, name, time) for name in expressions}
    variables = [*names, *(name for name in weighted if name in dataset.data_vars)]
    readers = {name: VariableReader(dataset[name].variable, name) for name in variables}
    groups = _ChannelGroups(definition, axes, space, times, names)
    first = [groups.of_inputs(readers[name]) for name in (*definition.inputs, *definition.static)]
    first += [groups.of_inputs(coordinates[name]) for name in definition.coordinates]
    targets = [groups.of_targets(readers[name]) for name in definition.targets] if has_targets else []
    weights = [groups.of_targets(readers.get(name) or coordinates[name]) for name in weighted]
    ahead = {name for name, axis in axes.items() if axis.leads > 1}
    later = [part for part in first if part.name not in definition.targets and set(part.dims) & ahead]
    numbers = range(1, leads if ahead and not definition.direct else 1)  # of leads that read their own inputs
    return Layout(
        axes,
        space,
        (*first, *(replace(part, number=number) for number in numbers for part in later)),
        tuple(replace(part, number=number) for number in range(leads if ahead else 1) for part in targets),
        weights[0] if weights else None,
        {dim: dataset[dim].variable for dim in axes if dim in dataset.coords},
        _mean_weight(weights[0]) if weights else 1.0,
    )


@dataclass(frozen=True)
class _ChannelGroups:
    """Assigns channels of records and labels to variables; ``orders`` has the dimensions of each variable."""

    definition: WindowDefinition
    axes: Mapping[str, Axis]
    space: tuple[str, ...]
    times: Sequence[str]
    orders: Mapping[str, tuple[str, ...]]

    def of_inputs(self, reader: VariableReader) -> ChannelGroup:
        """Return the channels of records for a variable or coordinate; coordinates have no mask."""
        fills = {fill.variable: fill.value for fill in self.definition.fill}
        is_masked = type(reader) is VariableReader and not {"*", reader.name}.isdisjoint(self.definition.mask)
        dims = self._dims(reader)
        sizes = tuple(self.axes[dim].input_size for dim in dims)
        return ChannelGroup(reader, dims, self.space, sizes, is_masked, fills.get(reader.name, fills.get("*", 0.0)))

    def of_targets(self, reader: VariableReader) -> ChannelGroup:
        part = self.of_inputs(reader)
        return replace(part, sizes=tuple(self.axes[dim].size for dim in part.dims))

    def _dims(self, reader: VariableReader) -> tuple[str, ...]:
        for dim in reader.dims:
            if dim not in self.axes:
                raise UserError(
                    f"{reader.name!r} has the dimension {dim!r}, which none of the inputs and targets has "
                    f"({', '.join(self.axes)}); choose one of theirs: .isel({dim}=0)"
                )
        channels = [dim for dim in self.orders.get(reader.name, reader.dims) if dim not in self.space]
        channels.sort(key=lambda dim: dim in self.times)
        return (*channels, *(dim for dim in self.space if dim in reader.dims))


class WindowDims(NamedTuple):
    """The dimensions of each variable in the order of training, all dimensions' settings, times and space."""

    by_name: Mapping[str, tuple[str, ...]]
    confs: Mapping[str, WindowDimConf]
    times: tuple[str, ...]
    space: tuple[str, ...]


def window_dims(dataset: Any, definition: WindowDefinition) -> WindowDims:
    """Decide the dimensions of windows; points along dimensions other than space are channels."""
    names = dict.fromkeys([*definition.inputs, *definition.targets, *definition.static])
    by_name = {name: definition.ordered_dims(name, dataset[name].dims) for name in names}
    dims = tuple(dict.fromkeys(dim for dims in by_name.values() for dim in dims))
    confs = {dim: definition.along(dim) for dim in dims}
    times = tuple(dim for dim in dims if is_time(dataset, confs[dim]))
    if definition.channels:
        channels = [dim for dim in definition.channels if dim]
    else:
        channels = [*times, *(dim.name for dim in definition.dim if dim.size == 1 and not dim.before + dim.after)]
        if set(definition.input_dims) - set(times):
            channels += [dim for dim in dims if dim not in definition.input_dims]
    space = tuple(dim for dim in dims if dim not in channels)
    if len(space) > MOST_SPACE:
        raise UserError(
            f"windows would have {len(space)} axes of space ({', '.join(space)}), at most {MOST_SPACE} do; name those "
            f"whose points are channels, as channels=[{space[0]!r}]"
        )
    return WindowDims(by_name, confs, times, space)


def _mean_weight(part: ChannelGroup) -> float:
    if part.channels != 1:
        raise UserError(
            f"the weights {part.name!r} have {part.channels} numbers for a point of a window; give one for each"
        )
    reader = part.reader
    values = reader.read(tuple(slice(0, size) for size in reader.shape)).astype(np.float64)
    mean = float(values.mean())
    if not values.min() > -1e-6 or not mean > 0:  # a cosine at the pole may be a little below 0
        raise UserError(f"the weights {reader.name!r} have a number below 0, NaN, or zeros only; give numbers from 0")
    return mean
