"""Feeds the prediction for one lead (how far ahead) to the net as input for later leads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from dsinga.addons.fields.lead_plan import LeadChannels, LeadPlan
from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.definition import WindowDefinition
from dsinga.addons.fields.records.layout import ChannelGroup, Layout
from dsinga.addons.fields.records.prediction_windows import PredictionWindows
from dsinga.addons.fields.records.readers import VariableReader, coordinate_reader
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.data.array_kinds import label_text
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Natural, Positive
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.interface.region import Reach
from dsinga.ops import Ops


def lead_axis(layout: Layout) -> Axis:
    """Return the dimension, usually time, along which targets lie ahead of inputs."""
    ahead = [axis for dim, axis in layout.axes.items() if axis.lead > 0 and dim not in layout.space]
    if len(ahead) != 1:
        raise UserError(
            f"predictions are fed back along one dimension of time with a lead, but the windows have {len(ahead)}; "
            'train with targets ahead, such as lead={"time": 1}'
        )
    return ahead[0]


def windows_for_leads(windows: PredictionWindows, leads: int) -> PredictionWindows:
    """Keep the windows with enough data to predict ``leads`` leads by feedback."""
    axis = lead_axis(windows.layout)
    _check(windows, axis)
    layout, predicted = windows.layout, {target.name for target in windows.targets}
    needed = leads - 1
    along = [part for part in layout.inputs if type(part.reader) is VariableReader and axis.name in part.reader.dims]
    starts, others = axis.starts, [part.name for part in along if part.name not in predicted]
    if others:
        starts = starts[starts + needed * axis.lead + axis.size <= axis.length]
        if not len(starts):
            raise UserError(
                f"{leads} leads take {others[0]!r} at {needed * axis.lead} later points of {axis.name!r}, which the "
                f"{axis.length} points of the data do not have after any window; give more data, or fewer leads"
            )
    axis = replace(axis, starts=starts)
    beyond = int(starts[-1]) + axis.size + needed * axis.lead - axis.length  # the last point of the inputs
    inputs = tuple(_going_on(windows, part, axis, max(beyond, 0)) for part in layout.inputs)
    samples = tuple(axis if sample.name == axis.name else sample for sample in windows.samples)
    layout = replace(layout, axes={**layout.axes, axis.name: axis}, inputs=inputs)
    return replace(windows, layout=layout, samples=samples)


def _going_on(windows: PredictionWindows, part: ChannelGroup, axis: Axis, points: int) -> ChannelGroup:
    """Extend an input that is a function of time by ``points`` points beyond the data; return others unchanged."""
    if type(part.reader) is VariableReader or axis.name not in part.reader.dims or not points:
        return part
    dataset = windows.dataset
    coordinate = windows.extrapolated(axis.name, np.arange(axis.length + points))
    coordinates: dict[Any, Any] = {
        name: dataset[name].variable for name in dataset.coords if axis.name not in dataset[name].dims
    }
    longer = type(dataset)(coords={**coordinates, axis.name: coordinate})
    return replace(part, reader=coordinate_reader(longer, part.name, axis.name))


def check_feedback(inputs: Collection[str], targets: Mapping[str, Collection[str]], axis: Axis) -> None:
    """Raise UserError if no target is an input, or later inputs are neither predicted nor known."""
    if not any(name in inputs and axis.name in dims for name, dims in targets.items()):
        raise UserError(
            f"none of the targets ({', '.join(targets)}) is an input of the windows, so that none can be fed back"
        )
    is_gapless = axis.lead == axis.size or (axis.size == 1 and not axis.before)
    if not is_gapless or axis.after or axis.edge != "inside":
        raise UserError(
            f"windows have {axis.before} + {axis.size} + {axis.after} points of {axis.name!r} and a lead of {axis.lead}"
            ": the inputs of the next lead would neither be predicted nor in the data; feed back predictions of a net "
            f"with a lead of {axis.size}, or with a single point of {axis.name!r} as input"
        )


def _check(windows: PredictionWindows, axis: Axis) -> None:
    targets = {target.name: target.dims for target in windows.targets}
    check_feedback([part.name for part in windows.layout.inputs], targets, axis)
    windows.layout.check_lead_names(targets)
    for space in windows.space:
        if sum(windows.margins(space)):
            raise UserError(
                f"each lead would lose the context of windows along {space.name!r}, whose edges are 'inside'; train "
                "with edges that say what lies beyond the data"
            )
    for sample in windows.samples:
        if sample.name != axis.name and sample.before + sample.after:
            raise UserError(f"predictions of {sample.name!r} cannot be fed back, since its windows have context there")


Source = tuple[int, int, int, float]  # of a channel: as in a LeadChannels


def lead_plan(layout: Layout, definition: WindowDefinition) -> LeadPlan | None:
    """Plan how a net is trained on several leads; None for one lead, or leads predicted at once."""
    if layout.leads == 1 or definition.direct:
        return None
    axis = lead_axis(layout)
    space = [layout.axes[dim] for dim in layout.space]
    _check_training(layout, axis, space)
    first = layout.first_lead
    records = []
    for number in range(layout.leads):
        parts = [list(_channels(layout, part, axis, number)) for part in first.inputs]
        masks = [list(_masks(layout, part, axis, number)) for part in first.inputs if part.masked]
        records.append(LeadChannels(*zip(*(source for part in (*parts, *masks) for source in part), strict=True)))
    check_ends(layout, axis)
    return LeadPlan(
        first.input_shape,
        first.target_shape,
        tuple(records),
        tuple(axis.before for axis in space),
        tuple(axis.after for axis in space),
        tuple("zero" if axis.edge == "inside" else axis.edge for axis in space),  # an edge inside has no context
        layout.weights is not None,
        tuple(definition.lead_weights) or (1,) * layout.leads,
        tuple(definition.lead_start) or (0,) * layout.leads,
    )


def _check_training(layout: Layout, axis: Axis, space: list[Axis]) -> None:
    targets = {part.name: part.reader.dims for part in layout.targets}
    check_feedback([part.name for part in layout.inputs], targets, axis)
    for each in space:
        if each.before + each.after and (each.edge == "inside" or each.size < each.length):
            raise UserError(
                f"leads={axis.leads} feeds predictions back, which lack the context of windows along {each.name!r}: "
                "give whole fields (-1 in input_dims) with edges that say what lies beyond them, or no context"
            )
    if len(space) == 1 and space[0].before + space[0].after:
        raise UserError(
            f"leads={axis.leads} pads predictions along two or three axes of space, but windows have context along "
            f"{space[0].name!r} alone; give an axis of one point, ds.expand_dims('y') and input_dims={{'y': 1, ...}}"
        )
    if layout.weights is not None and axis.name in layout.weights.reader.dims:
        raise UserError(
            f"weights of points are the same for all leads, but {layout.weights.name!r} lies along {axis.name!r}; give "
            "weights without it"
        )


def _channels(layout: Layout, part: ChannelGroup, axis: Axis, number: int) -> Iterator[Source]:
    own, masks = _first_channel(layout, part), _first_mask(layout, part)
    target = next((other for other in layout.targets if other.name == part.name), None)
    if axis.name not in part.dims or not number or target is None:
        own = _first_channel(layout, part, number if axis.name in part.dims else 0)
        yield from ((0, own + channel, -1, 0.0) for channel in range(part.channels))  # which is filled already
        return
    predicted = sum(other.channels for other in layout.targets[: layout.targets.index(target)])
    for index in np.ndindex(*part.channel_sizes):
        *levels, point = index  # time is the last dimension of channels
        offset = point - axis.before + number * axis.lead  # from the start of the window
        if offset < axis.size:
            yield 0, own + _place(part, levels, offset + axis.before), -1, 0.0
            continue
        lead, step = divmod(offset, axis.lead)
        mask = masks + _place(part, levels, axis.before + axis.size - 1) if part.masked else -1
        yield number + 1 - lead, predicted + _place(target, levels, step), mask, part.fill


def _masks(layout: Layout, part: ChannelGroup, axis: Axis, number: int) -> Iterator[Source]:
    """Yield the source of each mask channel of a part, which says where the part is valid.

    Predicted points have the mask of the window's last step.
    """
    is_later = axis.name in part.dims and number
    is_fed = any(other.name == part.name for other in layout.targets)
    masks = _first_mask(layout, part, 0 if is_fed or not is_later else number)
    for index in np.ndindex(*part.channel_sizes):
        if is_later and is_fed:
            *levels, point = index
            index = (*levels, min(point + number * axis.lead, axis.before + axis.size - 1))
        yield 0, masks + _place(part, index[:-1], index[-1]) if index else masks, -1, 0.0


def _place(part: ChannelGroup, levels: Any, point: int) -> int:
    return int(np.ravel_multi_index((*levels, point), part.channel_sizes))


def _first_channel(layout: Layout, part: ChannelGroup, number: int = 0) -> int:
    channel = 0
    for other in layout.inputs:
        if (other.name, other.number) == (part.name, number):
            return channel
        channel += other.channels
    raise AssertionError(part.name)


def _first_mask(layout: Layout, part: ChannelGroup, number: int = 0) -> int:
    masked = [other for other in layout.inputs if other.masked]
    channel = sum(other.channels for other in layout.inputs)
    for other in masked:
        if (other.name, other.number) == (part.name, number):
            return channel
        channel += other.channels
    return -1


def check_ends(layout: Layout, axis: Axis) -> None:
    """Raise UserError if an input known in advance is all NaN at the last lead of the last window."""
    last = int(axis.starts[-1]) + axis.size + axis.ahead - 1  # the last point that a later lead reads
    for part in layout.inputs:
        if part.number != axis.leads - 1 or not part.reads_variable:
            continue
        place = part.reader.dims.index(axis.name)

        def has_numbers(point: int, part: ChannelGroup = part, place: int = place) -> bool:
            region = [slice(0, size) for size in part.reader.shape]
            region[place] = slice(point, point + 1)
            return not bool(np.isnan(part.reader.read(tuple(region))).all())

        if has_numbers(last):
            continue
        low, high = -1, last  # the last point with numbers, by bisection
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if has_numbers(middle) else (low, middle)
        labels = layout.coordinates.get(axis.name)
        ends, needed = (str(at) if labels is None else label_text(labels[at].values) for at in (max(low, 0), last))
        raise UserError(
            f"{part.name!r} is known in advance for each of {axis.leads} leads, but has NaN only after {ends}, and "
            f"windows read it until {needed}; end them there (within={{{axis.name!r}: (None, {ends!r})}}), give more "
            "data, or fewer leads"
        )


class _ChannelRun(NamedTuple):
    """Neighbouring channels that are copied from one source; where the mask is 0, they are ``fill``."""

    source: int
    target: slice
    channels: slice
    mask: slice | None
    fill: float


@register("layer", kLeadRecord=893)
class LeadRecord(Layer):
    """Layer that builds the input record of one lead, (B, C, *space), from channels of its source layers.

    The first source is the record that is read, (B, R, *space). The others are predictions of earlier leads. Where the
    channel of a mask is 0, ``fill`` replaces a prediction, which gets no gradient. If the input layer normalises
    records, predictions and masks are normalised in the same way, (x - mean) / std.
    """

    class Conf(Settings):
        """Settings of kLeadRecord, with a number for each channel of the feature."""

        source: list[Natural] = setting([], "the number of the source of each channel")
        channel: list[Natural] = setting([], "the number of each channel in its source")
        mask: list[int] = setting([], "the channel of the first source with the mask of each channel, -1 for none")
        fill: list[float] = setting([], "the number at masked points of each channel")
        mean: float = setting(0.0, "what the input layer subtracts from records, and this layer from predictions")
        std: Positive = setting(1.0, "what the input layer divides records by, and this layer predictions")

    settings: Conf
    cut = Cut(gathered_because="takes channels of several sources", by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        channels: tuple[list[Any], ...] = (settings.source, settings.channel, settings.mask, settings.fill)
        if len({len(numbers) for numbers in channels}) > 1 or not 0 <= max(settings.source, default=-1) < len(
            self.source_shapes
        ):
            text = "needs a source, channel, mask and fill for each of its channels, and as many sources as these name"
            raise self.fail(text, settings, "source")
        rows, _, *space = self.source_shapes[0]
        self.shape, self._runs = (rows, len(settings.channel), *space), list(self._find_runs())
        for run in self._runs:
            shape = self.source_shapes[run.source]
            if shape[2:] != tuple(space) or run.channels.stop > shape[1]:
                raise self.fail(
                    f"takes {run.channels.stop} channels of {shape_text(space) if space else 'single'} points, but "
                    f"{self.source_name(run.source)} gives {shape_text(shape)}",
                    field="srclayers",
                )

    def _find_runs(self) -> Iterator[_ChannelRun]:
        settings, start = self.settings, 0
        channels = zip(settings.source, settings.channel, settings.mask, settings.fill, strict=True)
        offsets = [
            (source, channel - place, None if mask < 0 else mask - place, fill)
            for place, (source, channel, mask, fill) in enumerate(channels)
        ]
        for (source, offset, mask, fill), run in groupby(offsets):
            stop = start + len(list(run))
            masks = None if mask is None else slice(start + mask, stop + mask)
            yield _ChannelRun(source, slice(start, stop), slice(start + offset, stop + offset), masks, fill)
            start = stop

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        record, ops = sources[0], ctx.ops
        y = ops.empty((len(record), *self.shape[1:]), record.dtype)
        for run in self._runs:
            part = sources[run.source][:, run.channels]
            y[:, run.target] = self._normalised(part) if run.source else part
            if run.mask is not None:
                fill = y.dtype.type((run.fill - self.settings.mean) / self.settings.std)
                y[:, run.target] = ops.xp.where(self._is_valid(record[:, run.mask]), y[:, run.target], fill)
        return Output(y)

    def _normalised(self, prediction: Array) -> Array:
        mean, std = self.settings.mean, self.settings.std
        if (mean, std) == (0, 1):
            return prediction
        return (prediction - prediction.dtype.type(mean)) / prediction.dtype.type(std)

    def _is_valid(self, mask: Array) -> Array:
        return mask > (0.5 - self.settings.mean) / self.settings.std

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return tuple(
            self._gradient(number, source, sources[0], grad, ctx.ops) if need else None
            for number, (source, need) in enumerate(zip(sources, needs, strict=True))
        ), ()

    def _gradient(self, number: int, source: Array, record: Array, grad: Array, ops: Ops) -> Array:
        dx = ops.empty(source.shape, grad.dtype)
        dx[...] = 0
        for run in self._runs:
            if run.source == number:
                part = grad[:, run.target]
                part = part / grad.dtype.type(self.settings.std) if number and self.settings.std != 1 else part
                dx[:, run.channels] += part if run.mask is None else part * self._is_valid(record[:, run.mask])
        return dx
