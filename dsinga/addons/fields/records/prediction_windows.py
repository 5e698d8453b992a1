"""Applies a trained net's windows to another Dataset for prediction, with whole fields."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.coordinate_extrapolation import extrapolated, goes_on
from dsinga.addons.fields.records.dataset import open_dataset, related_names, used_variables
from dsinga.addons.fields.records.definition import WindowDefinition
from dsinga.addons.fields.records.layout import Layout, WindowDims, make_layout, window_dims
from dsinga.addons.fields.records.trained_layout import Alignment, align
from dsinga.addons.fields.records.window_warnings import gap_texts
from dsinga.base.errors import UserError

CLASS = "class"  # the dimension of scores of classes
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """A variable that is predicted.

    Attributes:
        dims: its dimensions, in the order of the result.
        channel_dims: the dimensions that are channels of the net's feature, in their order.
        known: whether the Dataset has it, so that the result has its attributes.
    """

    name: str
    dims: tuple[str, ...]
    channel_dims: tuple[str, ...]
    known: bool = True


@dataclass(frozen=True)
class PredictionWindows:
    """The windows of a definition in another Dataset: same steps and levels, but whole fields.

    Attributes:
        layout: which variable and which point is which channel. Windows of one step of time begin at each step; longer
            windows follow one another.
        samples: the dimensions along which there are several windows, or channels.
        alignment: how the Dataset was reordered like the training data.
        related: grid mappings and bounds of CF, as xarray Variables by name, in the order of the Dataset.
        numbers: the dimension, and its coordinates, of several predicted numbers for each number of a target, such as
            scores of classes or quantiles; None for one number.
    """

    dataset: Any
    definition: WindowDefinition
    layout: Layout
    samples: tuple[Axis, ...]
    times: tuple[str, ...]
    targets: tuple[Target, ...]
    alignment: Alignment = Alignment()
    related: Mapping[str, Any] = field(default_factory=dict)
    numbers: tuple[str, Sequence[Any]] | None = None

    @property
    def space(self) -> tuple[Axis, ...]:
        """The dimensions of space, along which whole fields are predicted."""
        return tuple(self.layout.axes[dim] for dim in self.layout.space)

    def margins(self, axis: Axis) -> tuple[int, int]:
        """Return how many points along an axis of space lack context, and are not predicted."""
        return (axis.before, axis.after) if axis.edge == "inside" else (0, 0)

    def step(self, dim: str) -> str:
        """Return the step of a coordinate in training as text; "" if unknown."""
        return self.definition.along(dim).step

    def goes_on(self, dim: str, before: bool = False) -> bool:
        """Whether the coordinate of a dimension has regular steps to extend beyond, or before, the data."""
        return goes_on(self.dataset[dim], self.step(dim), self.axis(dim).gaps, before)

    def extrapolated(self, dim: str, points: np.ndarray) -> Any:
        """Return a dimension's coordinate at points in or beyond the data, as an xarray Variable."""
        return extrapolated(self.dataset[dim], points, self.step(dim), self.axis(dim).gaps)

    def axis(self, dim: str) -> Axis:
        """Return the axis of a dimension of the data, or of ``numbers``."""
        if self.numbers is not None and dim == self.numbers[0]:
            count = len(self.numbers[1])
            return Axis(dim, count, count, count)
        return self.layout.axes[dim]

    def channels(self, target: Target) -> int:
        """Return the number of channels of a target."""
        return math.prod(self.axis(dim).size for dim in target.channel_dims)

    def with_numbers(self, dim: str, coordinates: Sequence[Any]) -> PredictionWindows:
        """Let the net predict several numbers per target number, such as quantiles, along a new ``dim``.

        It comes before the dimensions of space, and its channels are neighbours.
        """
        self.layout.check_free([target.name for target in self.targets], dim)
        targets = []
        for target in self.targets:
            place = min((target.dims.index(name) for name in self.layout.space), default=len(target.dims))
            dims = (*target.dims[:place], dim, *target.dims[place:])
            targets.append(replace(target, dims=dims, channel_dims=(*target.channel_dims, dim)))
        return replace(self, targets=tuple(targets), numbers=(dim, coordinates))

    def channel_slice(self, target: Target) -> slice:
        """Return the slice of all channels that belongs to a target."""
        first = sum(self.channels(other) for other in self.targets[: self.targets.index(target)])
        return slice(first, first + self.channels(target))


def apply_windows(
    source: Any, definition: WindowDefinition, starts: Mapping[str, Any] | None = None
) -> PredictionWindows:
    """Cut windows of ``definition`` out of another Dataset for prediction; it may lack the targets.

    ``starts`` replaces the regular first points of windows along dimensions other than space.
    """
    dataset, _ = open_dataset(source, definition)
    if not definition.targets:
        raise UserError("the windows have no targets, so that nothing says what is predicted; name them: targets=[...]")
    known = [name for name in definition.targets if name in dataset.data_vars]
    inputs = definition.replace(
        targets=known, within={}, weights="", max_nan=None, input_overlap={}, leads=1, direct=False, lead_weights=[],
        lead_start=[],
    )  # fmt: skip
    names = related_names(dataset)
    used = used_variables(dataset, inputs)
    dataset, alignment = align(used.assign({name: dataset[name] for name in names}), definition)
    related = {name: dataset[name].variable for name in names}
    dataset = dataset.drop_vars([name for name in names if name not in used.data_vars])
    dims = window_dims(dataset, inputs)
    channels = tuple(dim for dim in dims.confs if dim not in dims.space)
    whole = inputs.replace(input_dims=_field_sizes(dataset, inputs, dims), channels=channels or [""])
    given = {dim: points for dim, points in (starts or {}).items() if dim in channels}
    layout = make_layout(_without_numbers(dataset), whole, has_targets=False, starts=given)
    targets = tuple(_target(dataset, layout, name, dims.times, definition) for name in definition.targets)
    for sentence in gap_texts(layout.axes, layout.coordinates):
        logger.warning("%s", sentence)
    samples = tuple(layout.axes[dim] for dim in channels)
    times = tuple(dim for dim in channels if dim in dims.times)
    return PredictionWindows(dataset, definition, layout, samples, times, targets, alignment, related)


def _field_sizes(dataset: Any, inputs: WindowDefinition, dims: WindowDims) -> dict[str, int]:
    """Compute window sizes for prediction: whole fields minus inside context; 1 and time as in training."""
    sizes = {dim: size if size == 1 or dim in dims.times else -1 for dim, size in inputs.input_dims.items()}
    for dim in dims.space:
        conf = dims.confs[dim]
        context = conf.before + conf.after
        sizes[dim] = dataset.sizes[dim] - (context if conf.edges == "inside" else 0)
        if sizes[dim] < 1:
            raise UserError(
                f"the context of windows takes {context} points of {dim!r}, but the data have {dataset.sizes[dim]}; "
                "predict larger fields, or give edges other than 'inside'"
            )
    return sizes


def with_known_times(windows: PredictionWindows, leads: int) -> PredictionWindows:
    """Keep the windows with targets, ``leads`` leads ahead, at known coordinates."""
    axes = dict(windows.layout.axes)
    for axis in windows.samples:
        if not axis.lead or axis.name not in windows.dataset.coords:
            continue
        ahead = leads * axis.lead
        over_gap = axis.over_gaps(ahead)
        low, high = axis.starts + ahead, axis.starts + ahead + axis.size
        beyond = np.zeros(len(low), bool)
        for is_outside, before in ((low < 0, True), (high > axis.length, False)):
            if is_outside.any() and not windows.goes_on(axis.name, before):
                beyond |= is_outside
        faults = {
            "beyond a gap of time, at other times than those of training": over_gap,
            "beyond the data, and the coordinate follows no rule by which it could go on": beyond & ~over_gap,
        }
        kept = ~(over_gap | beyond)
        for where, is_left_out in faults.items():
            if not is_left_out.any():
                continue
            sentence = f"{is_left_out.sum()} of {len(low)} windows along {axis.name!r} are not predicted: their targets"
            sentence += f" lie {where}"
            if not kept.any():
                raise UserError(f"{sentence}; give more data, or a regular coordinate")
            logger.warning("%s", sentence)
        axes[axis.name] = replace(axis, starts=axis.starts[kept])
    samples = tuple(axes[axis.name] for axis in windows.samples)
    return replace(windows, layout=replace(windows.layout, axes=axes), samples=samples)


def _without_numbers(dataset: Any) -> Any:
    variables = {
        name: (array.dims, np.broadcast_to(np.zeros((), array.dtype), array.shape), array.attrs)
        for name, array in dataset.data_vars.items()
    }
    return dataset.assign(variables)


def _target(dataset: Any, layout: Layout, name: str, times: tuple[str, ...], definition: WindowDefinition) -> Target:
    """Describe a target; if the Dataset lacks it, with the dimensions of training, or of time and space."""
    known = name in dataset.data_vars
    trained = definition.trained_dims(name)
    if known:
        dims = tuple(map(str, dataset[name].dims))
    elif trained and set(trained) <= set(layout.axes):
        dims = trained
    else:
        dims = (*times, *layout.space)
    missing = [
        dim
        for dim in (*layout.space, *(axis.name for axis in layout.axes.values() if len(axis.starts) > 1))
        if dim not in dims
    ]
    ordered = definition.ordered_dims(name, dims)
    channels = [dim for dim in ordered if dim not in layout.space and dim not in times]
    channels += [dim for dim in ordered if dim in times]
    return Target(name, (*missing, *dims), tuple(channels), known)
