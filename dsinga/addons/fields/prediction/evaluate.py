"""Computes prediction errors of a Dataset by variable, lead (how far ahead), season, region or point."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsinga.addons.fields.prediction.field_error import correlations, error_terms
from dsinga.addons.fields.prediction.label_groups import NONE, LabelPoints, make_groupings
from dsinga.addons.fields.prediction.rollout_records import rollout_records
from dsinga.addons.fields.records.climatology import ANOMALY, FieldClimatology, climatology_of
from dsinga.addons.fields.records.field_windows import FieldWindows
from dsinga.addons.fields.records.layout import ChannelGroup, Layout
from dsinga.addons.fields.records.window_blocks import WindowBlocks
from dsinga.addons.fields.records.window_column import WindowColumn
from dsinga.api.argument_types import typed
from dsinga.api.engines import awaitable
from dsinga.api.inference import open_phase
from dsinga.api.jobs_with_data import Result, warn_of_overlaps
from dsinga.base.arguments import value_text
from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.job import Job
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.metrics.composed_metrics import errors_of

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client

PERSISTENCE, CLIMATOLOGY = "persistence", "climatology"


class Persistence:
    """A baseline forecast: targets keep their values at the last point of the inputs."""

    name = PERSISTENCE

    def __init__(self, points: LabelPoints):
        windows, layout = points.windows, points.layout
        self._ahead = [dim for dim, axis in layout.axes.items() if axis.lead > 0 and dim not in layout.space]
        if not self._ahead:
            raise UserError("persistence is a forecast of targets that lie ahead; these windows have no lead")
        self._column = WindowColumn(
            WindowBlocks(_at_last_point(layout, self._ahead), windows.definition.block_bytes),
            windows.new_cache(),
            windows.window_numbers,
            is_target=True,
            location=windows.location,
        )
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
    """Replace a layout's targets by the last input point along ``dims``, without context."""
    axes = dict(layout.axes)
    for dim in dims:
        size = axes[dim].size
        axes[dim] = replace(axes[dim], lead=0, target_part=(size - 1, size))

    def of(part: ChannelGroup) -> ChannelGroup:
        return replace(part, sizes=tuple(axes[dim].target_size for dim in part.dims))

    return replace(layout, axes=axes, targets=tuple(map(of, layout.targets)), weights=None)


class Climatological:
    """A baseline forecast: targets have the values of a climatology at their times."""

    name = CLIMATOLOGY

    def __init__(self, points: LabelPoints, climatology: FieldClimatology):
        self._points, self._dim = points, points.time("a climatology")
        dataset = points.windows.dataset
        names = [part.name for part in points.layout.targets]
        self._fields = climatology.at_points_of(dataset[names], self._dim)
        self._subtracted: Any = None  # the climatology that windows subtract
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
    """Create the baseline forecasts in ``against``: "persistence", a climatology, or several of them."""
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
                f"not {value_text(each)}"
            )
    return baselines


FORECAST, MODEL = "forecast", "model"
PART_NUMBERS = 1 << 20  # of labels; their errors are added at once
MOST_GROUPS = 1 << 26


class GroupedErrors:
    """Accumulates the errors of predictions by group, such as variable, lead or region.

    Errors are computed as by kFieldError: over unmasked points, weighted if the windows have weights. A point that one
    baseline lacks is left out for all forecasts. With several leads fed back, points masked in the last input step have
    no prediction and are left out, too.
    """

    def __init__(self, windows: FieldWindows, by: Any = (), against: Any = ()):
        self.windows, self._points = windows, LabelPoints(windows)
        self._groupings = make_groupings(self._points, by)
        self._baselines = make_baselines(self._points, against)
        self._masks = _masks(self._points)
        self._names = [MODEL, *(baseline.name for baseline in self._baselines)]
        if len(set(self._names)) < len(self._names):
            raise UserError("against has one baseline of a kind; compare others in a further call")
        if any(grouping.dim == FORECAST for grouping in self._groupings):
            raise UserError(
                f"by names {FORECAST!r}, which the dimension of baselines is called; rename that of the data"
            )
        self._sizes = tuple(grouping.count for grouping in self._groupings)
        groups = math.prod(self._sizes)
        if groups > MOST_GROUPS:
            raise UserError(f"by makes {groups} groups; give fewer names, at most {MOST_GROUPS} groups")
        terms = 12 if CLIMATOLOGY in self._names else 5
        self.sums = np.zeros((len(self._names), terms, groups))

    def add_all(self, predictions: Iterable[np.ndarray]) -> GroupedErrors:
        """Add predictions of the windows in order, (n, C, *space) or with flattened rows."""
        first = 0
        for part in self._parts(predictions):
            self._add(np.arange(first, first + len(part)), part)
            first += len(part)
        return self

    def _parts(self, predictions: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Split predictions into parts (n, C, *space); n does not depend on batches."""
        size = math.prod(self._shape)
        step, kept = max(1, PART_NUMBERS // size), np.empty((0, *self._shape), np.float32)
        for batch in predictions:
            if math.prod(batch.shape[1:]) != size:
                raise UserError(
                    f"the prediction has {shape_text(batch.shape[1:])} for a window, but the targets "
                    f"{shape_text(self._shape)}; errors are those of predictions of the targets themselves: of "
                    "quantiles and others compare one with the data, as predict(dataset).sel(quantile=0.5)"
                )
            batch = batch.reshape(len(batch), *self._shape)
            kept = np.concatenate([kept, batch]) if len(kept) else batch
            whole = len(kept) - len(kept) % step
            yield from (kept[start : start + step] for start in range(0, whole, step))
            kept = kept[whole:]
        if len(kept):
            yield kept

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self._points.channels, *self.windows.label_shape[1:])

    def _add(self, rows: np.ndarray, prediction: np.ndarray) -> None:
        fields = self.windows.read_labels(rows)
        assert fields is not None, "windows with targets have labels"
        channels = self._points.channels
        labels, weights = fields[:, :channels], fields[:, channels:] if fields.shape[1] > channels else None
        forecasts = [prediction, *(baseline.read(rows) for baseline in self._baselines)]
        valid: Any = ~np.isnan(labels)
        for forecast in forecasts[1:]:
            valid &= ~np.isnan(forecast)
        if self._masks is not None:
            is_masked, last = self._masks
            valid &= ~(np.isnan(last.read(rows)) & is_masked)
        known = None if valid.all() else valid
        climatology = None
        if CLIMATOLOGY in self._names:
            climatology = forecasts[self._names.index(CLIMATOLOGY)]
            climatology = np.where(valid, climatology, 0) if known is not None else climatology
        terms = [error_terms(forecast, labels, known, weights, climatology) for forecast in forecasts]
        for index in self._indices(rows):
            self._add_groups(terms, index)

    def _indices(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        ones = (1,) * (2 + len(self.windows.layout.space))
        for combination in itertools.product(*(grouping.groups(rows) for grouping in self._groupings)):
            index, is_out = np.zeros(ones, np.int64), np.zeros(ones, bool)
            for numbers, size in zip(combination, self._sizes, strict=True):
                index, is_out = index * size + numbers, is_out | (numbers == NONE)
            yield np.where(is_out, NONE, index)

    def _add_groups(self, terms: Sequence[Sequence[np.ndarray]], index: np.ndarray) -> None:
        alike = tuple(axis for axis, size in enumerate(index.shape) if size == 1)  # axes of one group
        inside = index.reshape(-1) != NONE
        groups = index.reshape(-1)[inside]
        shape = np.broadcast_shapes(*(term.shape for term in terms[0]))
        for sums, of_forecast in zip(self.sums, terms, strict=True):
            for total, term in zip(sums, of_forecast, strict=True):
                added = np.broadcast_to(term, shape).sum(axis=alike, dtype=np.float64, keepdims=True)
                added = np.broadcast_to(added, index.shape).reshape(-1)[inside]
                total += np.bincount(groups, added, len(total))

    def dataset(self) -> Any:
        """Return the errors as a Dataset of "rmse", "mae", "bias", "count" and maybe "anomaly_correlation" by group."""
        import xarray

        dims, has_baselines = [grouping.dim for grouping in self._groupings], len(self._names) > 1
        figures = [{**errors_of(sums), **correlations(sums), "count": sums[1]} for sums in self.sums]
        variables = {}
        for name in figures[0]:
            values = np.stack([figure[name].reshape(self._sizes) for figure in figures])
            if name == "count":
                variables[name] = (dims, values[0].astype(np.int64))
            else:
                variables[name] = ([FORECAST, *dims], values) if has_baselines else (dims, values[0])
        coordinates = {
            grouping.dim: (grouping.dim, grouping.labels)
            if isinstance(grouping.labels, (list, np.ndarray))
            else grouping.labels
            for grouping in self._groupings
        }
        names = {FORECAST: self._names} if has_baselines else {}
        return xarray.Dataset(variables, {**names, **coordinates, **self._others()})

    def _others(self) -> dict[str, Any]:
        points = {grouping.dim: grouping.points for grouping in self._groupings if grouping.points is not None}
        return {
            str(name): array.variable.isel({dim: points[dim] for dim in array.dims})
            for name, array in self.windows.dataset.coords.items()
            if name not in {*points, ANOMALY} and array.dims and set(array.dims) <= set(points)
        }


def _masks(points: LabelPoints) -> tuple[np.ndarray, Persistence] | None:
    """Return which channels (C, 1, ...) are masked like the last inputs, and these inputs; None for no masks."""
    layout = points.layout
    masked = {part.name for part in layout.inputs if part.masked} if points.windows.leads is not None else set()
    channels = np.array([points.names[variable] in masked for variable in points.variables])
    return (channels.reshape(-1, *(1,) * len(layout.space)), Persistence(points)) if channels.any() else None


@register("definition", "WindowDefinition.evaluate")
@awaitable
@typed()
def evaluate_fields(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    layer: str,
    phase: str = "test",
    client: Client | None = None,
    *,
    by: Any = (),
    against: Any = (),
    data: Any = None,
    data_root: str | os.PathLike[str] | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
) -> Any:
    """Return the errors of ``layer`` as a prediction of windows' targets, by group, as an xarray Dataset.

    It has "rmse", "mae", "bias" (prediction - target), and "count", the numbers that were compared. Masked points are
    left out; windows with weights weight their points.

    All forecasts are compared on the points that all of them have. Windows of several leads are evaluated at each lead,
    even for a net trained on one. If steps are not equally long, as months are, a lead is a number of steps. Longitudes
    of regions wrap around the circle. Points that are NaN in a DataArray are in no area.

    Args:
        job: the same as in :func:`dsinga.predict`, as are ``params``, ``phase`` and ``client``.
        params: arrays by name, a result, or the path of a checkpoint.
        layer: the layer that outputs the prediction.
        phase: "train", "val" or "test".
        client: a Dask client.
        by: one or several groupings, each a dimension of the result: "variable"; "lead"; "season", "month", "year",
            "dayofyear" or "hour" of the target's time; a dimension of the targets, such as "level", or ("lat", "lon")
            for maps; regions, {"tropics": {"lat": (-20, 20)}}, which may overlap; a DataArray with each point's area.
        against: forecasts to compare with, along the dimension "forecast": "persistence", the target at the last point
            of the inputs; a climatology of :func:`dsinga.data.field_climatology`, which adds "anomaly_correlation"; or
            a list of both.
        data: windows, or a Dataset from which the job's windows are cut; defaults to the data in the job.
        data_root: the folder where relative paths are looked up last.
        resources: amounts by name that Dask workers must have.
        hosts: the hosts on which Dask workers compute.

    Raises:
        UserError: groups or baselines that the windows do not have, and other bad input.
    """
    with open_phase(job, params, layer, phase, client, data, data_root, resources, hosts) as opened:
        warn_of_overlaps(opened.job, opened.phase)
        given = [source for source in opened.reader.stores.values() if isinstance(source, FieldWindows)]
        if len(given) != 1:
            raise UserError("groups of errors are those of windows of a Dataset; give some, as of dsinga.windows")
        (windows,) = given
        errors = GroupedErrors(windows, by, against)
        if windows.leads is None:
            return errors.add_all(batch.data for batch in opened.batches()).dataset()
        leads = rollout_records(
            opened.job, opened.params, layer, windows, opened.phase, opened.roots, opened.compute
        )  # fmt: skip
        return errors.add_all(leads).dataset()
