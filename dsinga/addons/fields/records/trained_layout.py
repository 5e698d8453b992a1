"""How the data lie from which a net is trained, and how other data are read in the same order."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsinga.addons.fields.records.coordinates import (
    as_before,
    date_index,
    is_circle,
    is_date_index,
    months_in,
    other_steps,
    step_text,
    with_begin,
)
from dsinga.addons.fields.records.dataset import check_dataset, is_time, open_dataset, used_variables
from dsinga.addons.fields.records.definition import TrainedLayout, WindowDefinition
from dsinga.addons.fields.records.layout import Layout, make_layout
from dsinga.base.errors import UserError
from dsinga.data.array_order import MOST_POINTS, chosen, has_labels, is_number, point_text, point_texts

SAME_STEP = 0.01  # relative difference of steps that are the same
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Alignment:
    """How a Dataset was put in the order of the data of training.

    Attributes:
        flipped: the dimensions along which it is read backwards.
        rotated: the coordinates, as they were, of longitudes that are read from another one on.
    """

    flipped: tuple[str, ...] = ()
    rotated: Mapping[str, Any] = field(default_factory=dict)

    def undone(self, dataset: Any) -> Any:
        """Return a prediction in the order in which the Dataset lies."""
        for coordinate in self.rotated.values():
            dataset = as_before(dataset, coordinate)
        return backwards(dataset, self.flipped)


def trained_layout_of(dataset: Any, definition: WindowDefinition, layout: Layout) -> TrainedLayout:
    """Return how a Dataset lies: the order of dimensions and of channels, directions and steps, and units."""
    names = [*definition.inputs, *definition.targets, *definition.static]
    names = [name for name in dict.fromkeys(names) if name in dataset.data_vars]
    points, steps, begins = {}, {}, {}
    for dim, axis in layout.axes.items():
        if not has_labels(dataset, dim):
            continue
        along_time = is_time(dataset, dim, definition)
        if is_circle(dataset[dim]):
            begins[dim] = point_text(dataset[dim].values[0])
        if dim in layout.space or along_time:
            if step := step_text(dataset[dim], along_time):
                steps[dim] = step
        elif axis.size == axis.length <= MOST_POINTS:
            points[dim] = point_texts(dataset, dim)
    return TrainedLayout(
        dims={name: tuple(map(str, dataset[name].dims)) for name in names},
        points=points,
        steps=steps,
        units={name: str(units) for name in names if (units := dataset[name].attrs.get("units"))},
        begins=begins,
    )


def with_trained_layout(source: Any, definition: WindowDefinition) -> WindowDefinition:
    """Return a definition with how the Dataset, or the one at a path, lies. Raises UserError where they do not fit."""
    dataset, _ = open_dataset(source, definition)
    check_dataset(dataset, definition)
    dataset = used_variables(dataset, definition)
    layout = make_layout(dataset, definition, has_targets=False)
    return definition.replace(trained=trained_layout_of(dataset, definition, layout))


def align(dataset: Any, definition: WindowDefinition) -> tuple[Any, Alignment]:
    """Return a Dataset as the data of training lay, and what was done for that.

    Points that are channels, such as levels, are chosen by their coordinates. Longitudes round the circle begin where
    they began in training, whether they are counted from -180 or from 0. Other steps, and other units, are said in
    the log. Raises UserError where a coordinate is not there, or steps of time are much longer or shorter.
    """
    layout = definition.trained
    if layout is None:
        return dataset, Alignment()
    for dim, labels in layout.points.items():
        dataset = chosen(dataset, dim, labels)
    flipped = []
    for dim, trained in layout.steps.items():
        _check_times(dataset, dim, definition, trained)
        step = step_text(dataset[dim], is_time(dataset, dim, definition)) if has_labels(dataset, dim) else ""
        if not step or step == trained or months_in(step) and months_in(step) == months_in(trained):
            continue
        if is_number(step) and is_number(trained):
            if float(step) * float(trained) < 0:
                flipped.append(dim)
            if abs(abs(float(step)) - abs(float(trained))) <= SAME_STEP * abs(float(trained)):
                continue
        logger.warning("%r has the step %s, in training it had %s; windows count points", dim, step, trained)
    for name, trained in layout.units.items():
        units = str(dataset[name].attrs.get("units", "")) if name in dataset.data_vars else ""
        if units and plain_units(units) != plain_units(trained):
            logger.warning(
                "%r has the units %s, in training it had %s; see whether to convert it", name, units, trained
            )
    dataset = backwards(dataset, flipped)
    turned: dict[str, Any] = {}
    for dim, begin in layout.begins.items():
        if has_labels(dataset, dim):
            before, dataset = dataset, with_begin(dataset, dim, float(begin))
            turned |= {} if dataset is before else {dim: before[dim]}
    return dataset, Alignment(tuple(flipped), turned)


def _check_times(dataset: Any, dim: str, definition: WindowDefinition, trained: str) -> None:
    """Raise UserError where windows reach over steps of time that are longer or shorter than those of training."""
    reaches = definition.lead.get(dim) or any(definition.context.get(dim, ())) or definition.input_dims.get(dim, -1) > 1
    if definition.over_gaps or not reaches or not has_labels(dataset, dim) or not is_time(dataset, dim, definition):
        return
    index = date_index(dataset[dim])
    if steps := other_steps(index, trained):
        unit = " h" if is_date_index(index) else ""
        raise UserError(
            f"the usual step of {dim!r} is {steps[0]:g}{unit}, in training it was {steps[1]:g}{unit} ({trained}), so "
            "that inputs and targets would lie at other times than those that the net knows; give data of that step "
            "(ds.resample or ds.isel), or train from windows that count points (over_gaps=True)"
        )


def backwards(dataset: Any, dims: Any) -> Any:
    """Return a Dataset whose points along some dimensions are in the opposite order."""
    return dataset.isel({dim: slice(None, None, -1) for dim in dims}) if dims else dataset


def plain_units(units: str) -> str:
    """Return units without the signs in which conventions differ: m2 s-2, m**2 s**-2 and m^2.s^-2 are the same."""
    return re.sub(r"[\s*^.]", "", units).lower()
