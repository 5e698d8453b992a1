"""What several leads ahead take of the windows of a Dataset, where predictions are fed back as inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.layout import ChannelGroup, Layout
from dsinga.addons.fields.records.prediction_windows import PredictionWindows, check_free
from dsinga.addons.fields.records.readers import VariableReader, coordinate_reader
from dsinga.base.errors import UserError

LEAD, VALID_TIME = "lead", "valid_time"


def lead_axis(windows: PredictionWindows) -> Axis:
    """Return the dimension of time along which targets lie ahead. Raises UserError where there is none, or several."""
    return ahead_axis(windows.layout)


def ahead_axis(layout: Layout) -> Axis:
    """Return the dimension of channels along which targets lie ahead. Raises UserError for none, or several."""
    ahead = [axis for dim, axis in layout.axes.items() if axis.lead > 0 and dim not in layout.space]
    if len(ahead) != 1:
        raise UserError(
            f"predictions are fed back along one dimension of time with a lead, but the windows have {len(ahead)}; "
            'train with targets ahead, such as lead={"time": 1}'
        )
    return ahead[0]


def windows_for_leads(windows: PredictionWindows, leads: int) -> PredictionWindows:
    """Return the windows from which predictions for ``leads`` leads can be made by feeding predictions back.

    Inputs along time that are not predicted are read at the later times: windows for which the data end before are
    left out. Coordinates go on beyond the data.

    Raises UserError where the inputs of a later lead are neither predicted nor in the data.
    """
    axis = lead_axis(windows)
    _check(windows, axis)
    layout, predicted = windows.layout, {target.name for target in windows.targets}
    needed = leads - 1
    starts, others = (
        axis.starts,
        [
            part.name
            for part in layout.inputs
            if type(part.reader) is VariableReader and axis.name in part.reader.dims and part.name not in predicted
        ],
    )
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
    """Return a part of the record; a function of the coordinate of time goes on ``points`` points beyond the data."""
    if type(part.reader) is VariableReader or axis.name not in part.reader.dims or not points:
        return part
    dataset = windows.dataset
    coordinate = windows.continued(axis.name, np.arange(axis.length + points))
    coordinates: dict[Any, Any] = {
        name: dataset[name].variable for name in dataset.coords if axis.name not in dataset[name].dims
    }
    longer = type(dataset)(coords={**coordinates, axis.name: coordinate})
    return replace(part, reader=coordinate_reader(longer, part.name, axis.name))


def check_feedback(inputs: Collection[str], targets: Mapping[str, Collection[str]], axis: Axis) -> None:
    """Raise UserError where no target is an input, or the inputs of a later lead are neither predicted nor known.

    ``targets`` has the dimensions of each target, ``axis`` is that along which targets lie ahead.
    """
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


def check_lead_names(layout: Layout, targets: Collection[str]) -> None:
    """Raise UserError where the data have the dimension of leads, or that of their times, already."""
    for name in (LEAD, VALID_TIME):
        check_free(layout, targets, name, ", such as ds.rename(valid_time='time')" if name == VALID_TIME else "")


def _check(windows: PredictionWindows, axis: Axis) -> None:
    """Raise UserError where predictions cannot be fed back."""
    targets = {target.name: target.dims for target in windows.targets}
    check_feedback([part.name for part in windows.layout.inputs], targets, axis)
    check_lead_names(windows.layout, targets)
    for space in windows.space:
        if sum(windows.margins(space)):
            raise UserError(
                f"each lead would lose the context of windows along {space.name!r}, whose edges are 'inside'; train "
                "with edges that say what lies beyond the data"
            )
    for sample in windows.samples:
        if sample.name != axis.name and sample.before + sample.after:
            raise UserError(f"predictions of {sample.name!r} cannot be fed back, since its windows have context there")
