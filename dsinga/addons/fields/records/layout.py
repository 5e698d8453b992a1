"""What a record and a label of a window consist of: which dimensions are space, which numbers are which channel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dsinga.addons.fields.records.axis import Axis, make_axis
from dsinga.addons.fields.records.coordinates import date_index, gaps_of
from dsinga.addons.fields.records.dataset import is_time
from dsinga.addons.fields.records.definition import WindowDefinition
from dsinga.addons.fields.records.readers import VariableReader, coordinate_reader
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import label_text
from dsinga.data.column import PointRanges

MOST_SPACE = 3  # axes of space of a record


@dataclass(frozen=True)
class ChannelGroup:
    """The channels of a record, or of a label, that come from one variable.

    Attributes:
        reader: reads the variable.
        dims: its dimensions in the order of the record: those of channels, of which time is the last, then space.
        space: the dimensions of space of all records; those that the variable lacks are broadcast.
        sizes: points of a window along ``dims``.
        masked: whether NaN is masked.
        fill: the number in place of NaN.
        number: the lead, from 0, for which it is read.
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
        """Whether it is a variable of the data, not a function of a coordinate, which is always known."""
        return type(self.reader) is VariableReader

    @cached_property
    def channel_sizes(self) -> tuple[int, ...]:
        """Points of a window along the dimensions of channels."""
        return tuple(size for dim, size in zip(self.dims, self.sizes, strict=True) if dim not in self.space)

    @cached_property
    def channels(self) -> int:
        """The number of channels."""
        return math.prod(self.channel_sizes)


@dataclass(frozen=True)
class Layout:
    """The parts of records and labels, and the dimensions of a Dataset.

    Attributes:
        axes: the windows along each dimension, in the order of the data.
        space: the dimensions of space, 0 to 3.
        inputs: parts of a record, without the channels of masks, which follow them.
        targets: parts of a label, without that of weights; none where there are no labels.
        weights: the part of a label with the weights of points; None without.
        coordinates: the coordinates by dimension, as an xarray Variable, where there are any.
        scale: what weights are divided by.
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
        """How many targets a window has."""
        return max((axis.leads for axis in self.axes.values()), default=1)

    def of_first_lead(self) -> Layout:
        """Return the layout of the parts that are read for the first lead."""
        inputs, targets = (tuple(part for part in parts if not part.number) for parts in (self.inputs, self.targets))
        return replace(self, inputs=inputs, targets=targets)

    def in_region(self, data: PointRanges | None, labels: PointRanges | None) -> Layout:
        """Return the layout of some points of space of each record, and of each label; None for all."""
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

    def channel_names(self) -> tuple[str, ...]:
        """Return what each channel of a record has, such as "t2m", "z level=500 time-1" or "mask of sst"."""
        names = [name for part in self.inputs for name in self._names(part, lead=False)]
        masks = [f"mask of {name}" for part in self.inputs if part.masked for name in self._names(part, lead=False)]
        return tuple(names + masks)

    def target_names(self) -> tuple[str, ...]:
        """Return what each channel of a label has, such as "t2m time+6"; "weights" is the last where there are any."""
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
        """Return the coordinate of a point as text, its index where there is none."""
        coordinate = self.coordinates.get(dim)
        return str(index) if coordinate is None else label_text(coordinate[index].values)


def make_layout(
    dataset: Any, definition: WindowDefinition, has_targets: bool, starts: Mapping[str, Any] | None = None
) -> Layout:
    """Return the layout of the windows of a Dataset, which :func:`check_dataset` has passed.

    ``starts`` takes the place of the first points of windows by dimension.
    """
    names = [*definition.inputs, *definition.targets, *definition.static]
    dims = tuple(dict.fromkeys(dim for name in names for dim in definition.ordered_dims(name, dataset[name].dims)))
    times = [dim for dim in dims if is_time(dataset, dim, definition)]
    gaps = {dim: time_gaps(dataset, dim, definition) for dim in times}
    axes = {
        dim: make_axis(dim, dataset.sizes[dim], definition, has_targets, (starts or {}).get(dim), gaps.get(dim))
        for dim in dims
    }
    channels = _channel_dims(definition, dims, times)
    space = tuple(dim for dim in dims if dim not in channels)
    if len(space) > MOST_SPACE:
        raise UserError(
            f"windows would have {len(space)} axes of space ({', '.join(space)}), at most {MOST_SPACE} do; name those "
            f"whose points are channels, as channels=[{space[0]!r}]"
        )
    variables = {name: VariableReader(dataset[name].variable, name) for name in dict.fromkeys(names)}
    time = times[0] if times else None
    parts = _ChannelGroups(axes, space, times, definition)
    coordinates = [coordinate_reader(dataset, expression, time) for expression in definition.coordinates]
    inputs = [variables[name] for name in (*definition.inputs, *definition.static)]
    weights, scale = None, 1.0
    if definition.weights and has_targets:
        weights, scale = _weights(dataset, definition, parts, time)
    leads = max(axis.leads for axis in axes.values())
    first = [parts.make(reader, is_target=False) for reader in [*inputs, *coordinates]]
    known = [part for part in first if part.name not in definition.targets and set(part.dims) & _ahead(axes)]
    read = () if definition.direct else range(1, leads)  # each has the inputs that are not predicted
    targets = [parts.make(variables[name], is_target=True) for name in definition.targets] if has_targets else []
    return Layout(
        axes,
        space,
        (*first, *(replace(part, number=number) for number in read for part in known)),
        tuple(replace(part, number=number) for number in range(leads) for part in targets),
        weights,
        {dim: dataset[dim].variable for dim in dims if dim in dataset.coords},
        scale,
    )


def _ahead(axes: Mapping[str, Axis]) -> set[str]:
    """Return the dimensions along which there are several leads."""
    return {name for name, axis in axes.items() if axis.leads > 1}


class _ChannelGroups:
    """Makes parts of the layout that has these dimensions."""

    def __init__(self, axes: Mapping[str, Axis], space: Sequence[str], times: Sequence[str], definition: Any):
        self.axes, self.space, self.times, self.definition = axes, tuple(space), times, definition

    def make(self, reader: VariableReader, is_target: bool) -> ChannelGroup:
        """Return the part of a variable."""
        for dim in reader.dims:
            if dim not in self.axes:
                raise UserError(
                    f"{reader.name!r} has the dimension {dim!r}, which none of the inputs and targets has "
                    f"({', '.join(self.axes)}); choose one of theirs: .isel({dim}=0)"
                )
        ordered = self.definition.ordered_dims(reader.name, reader.dims)
        channels = [dim for dim in ordered if dim not in self.space and dim not in self.times]
        channels += [dim for dim in ordered if dim in self.times and dim not in self.space]
        dims = (*channels, *(dim for dim in self.space if dim in reader.dims))
        sizes = tuple(self.axes[dim].size if is_target else self.axes[dim].input_size for dim in dims)
        is_masked = self.definition.is_masked(reader.name) and _may_mask(reader)
        return ChannelGroup(reader, dims, self.space, sizes, is_masked, self.definition.fill_of(reader.name))


def _may_mask(reader: VariableReader) -> bool:
    """Whether a variable is one of the data: coordinates have no NaN to mask."""
    return type(reader) is VariableReader


def time_gaps(dataset: Any, dim: str, definition: WindowDefinition) -> np.ndarray | None:
    """Return the points of a dimension of time after which there is a gap; None where windows may reach over gaps.

    They may where they have all points.
    """
    conf = definition.along(dim)
    is_whole = conf.size in (None, -1)
    if is_whole or definition.over_gaps or dim not in dataset.indexes or dataset.indexes[dim].nlevels > 1:
        return None
    return gaps_of(date_index(dataset[dim]), conf.step)


def _channel_dims(definition: WindowDefinition, dims: Iterable[str], times: Iterable[str]) -> list[str]:
    """Return the dimensions whose points are channels; docs/fields.md has the rule."""
    if definition.channels:
        return [dim for dim in definition.channels if dim]
    single = [dim.name for dim in definition.dim if dim.size == 1 and not dim.before + dim.after]
    channels = list(dict.fromkeys([*times, *single]))
    if set(definition.input_dims) - set(times):
        channels += [dim for dim in dims if dim not in definition.input_dims]
    return channels


def _weights(
    dataset: Any, definition: WindowDefinition, parts: _ChannelGroups, time: str | None
) -> tuple[ChannelGroup, float]:
    """Return the part of the weights of points, and their mean over the data."""
    name = definition.weights
    is_variable = name in dataset.data_vars
    reader = VariableReader(dataset[name].variable, name) if is_variable else coordinate_reader(dataset, name, time)
    part = parts.make(reader, is_target=True)
    if part.channels != 1:
        raise UserError(f"the weights {name!r} have {part.channels} numbers for a point of a window; give one for each")
    values = reader.read(tuple(slice(0, size) for size in reader.shape)).astype(np.float64)
    mean = float(values.mean())
    if not values.min() > -1e-6 or not mean > 0:  # a cosine at the pole may be a little below 0
        raise UserError(f"the weights {name!r} have a number below 0, NaN, or zeros only; give numbers from 0")
    return part, mean
