"""Which channel of the record of each lead is read, and which is a prediction, for training on several leads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsinga.addons.fields.leads.plan import LeadChannels, LeadPlan
from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.layout import ChannelGroup, Layout
from dsinga.addons.fields.records.leads import ahead_axis, check_feedback
from dsinga.base.errors import UserError
from dsinga.data.array_order import label_text

Source = tuple[int, int, int, float]  # of a channel: as in a LeadChannels


def lead_plan(layout: Layout, weights: tuple[float, ...], starts: tuple[int, ...]) -> LeadPlan | None:
    """Return how records of several leads are made; None for windows of one lead.

    ``weights`` and ``starts`` are those of the definition. Raises UserError where predictions cannot be fed back.
    """
    if layout.leads == 1:
        return None
    axis = ahead_axis(layout)
    space = [layout.axes[dim] for dim in layout.space]
    _check(layout, axis, space)
    first = layout.of_first_lead()
    records = []
    for number in range(layout.leads):
        parts = [list(_channels(layout, part, axis, number)) for part in first.inputs]
        masks = [list(_masks(layout, part, axis, number)) for part in first.inputs if part.masked]
        records.append(LeadChannels(*zip(*(source for part in (*parts, *masks) for source in part), strict=True)))
    return LeadPlan(
        first.input_shape,
        first.target_shape,
        tuple(records),
        tuple(axis.before for axis in space),
        tuple(axis.after for axis in space),
        tuple("zero" if axis.edge == "inside" else axis.edge for axis in space),  # which has no context
        layout.weights is not None,
        weights or (1,) * layout.leads,
        starts or (0,) * layout.leads,
    )


def _check(layout: Layout, axis: Axis, space: list[Axis]) -> None:
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
    """Yield the source of each channel of a part in the record of a lead."""
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
    """Yield the source of each channel that says which points of a masked part are valid.

    Of points that are predicted these are the points that the last step of the window has.
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
    """Return the number of a channel of a part, whose last dimension of channels has the index ``point``."""
    return int(np.ravel_multi_index((*levels, point), part.channel_sizes))


def _first_channel(layout: Layout, part: ChannelGroup, number: int = 0) -> int:
    """Return the first channel of a part in the record that is read."""
    channel = 0
    for other in layout.inputs:
        if (other.name, other.number) == (part.name, number):
            return channel
        channel += other.channels
    raise AssertionError(part.name)


def _first_mask(layout: Layout, part: ChannelGroup, number: int = 0) -> int:
    """Return the first channel of the mask of a part in the record that is read."""
    masked = [other for other in layout.inputs if other.masked]
    channel = sum(other.channels for other in layout.inputs)
    for other in masked:
        if (other.name, other.number) == (part.name, number):
            return channel
        channel += other.channels
    return -1


def check_ends(layout: Layout) -> None:
    """Raise UserError for an input known in advance that is all NaN at the last lead of the last window."""
    axis = ahead_axis(layout)
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
