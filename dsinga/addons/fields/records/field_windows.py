"""Windows of an xarray Dataset as records for training, evaluation and prediction."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.fields.lead_feedback import lead_plan
from dsinga.addons.fields.records.climatology import FieldClimatology
from dsinga.addons.fields.records.dataset import open_dataset, related_names, used_variables
from dsinga.addons.fields.records.definition import WindowDefinition
from dsinga.addons.fields.records.layout import Layout, make_layout
from dsinga.addons.fields.records.trained_layout import align, describe_layout, select, split_ends
from dsinga.addons.fields.records.window_arguments import check_no_spans, define_windows, documented_settings, names_of
from dsinga.addons.fields.records.window_blocks import BlockCache, WindowBlocks
from dsinga.addons.fields.records.window_column import window_columns, window_numbers
from dsinga.addons.fields.records.window_warnings import advice_texts, copying_texts, left_out_texts
from dsinga.base.arguments import checked
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import register
from dsinga.data.column import PointRanges
from dsinga.data.record_source import RecordSource

logger = logging.getLogger(__name__)


class FieldWindows(RecordSource):
    """A Dataset's windows: records (C, *space) and labels (C', *space), float32, in the data's units.

    Only the data that windows need are read from files; nothing is copied to disk.

    Attributes:
        definition: the settings, which may be applied to another Dataset.
        layout: which variable and which point is which channel.
        leads: the plan of training on several leads; None for one lead and the direct form.
        left_out: sentences about points that fill no window, and windows with much NaN.
        path: the path or URL of the Dataset; None for an object.

    Args:
        dataset: an xarray Dataset or DataArray, or its path or URL (zarr store or netCDF file).
        has_targets: whether labels are read; without them, for prediction, targets may lie outside the data.
        starts: the first points of windows by dimension, in place of regular ones.
    """

    kind = "windows of fields"
    cache_name = "fields"

    def __init__(
        self,
        dataset: Any,
        definition: WindowDefinition,
        *,
        has_targets: bool = True,
        starts: Mapping[str, Sequence[int]] | None = None,
        path: str | None = None,
    ):
        dataset, opened = open_dataset(dataset, definition)
        self.definition, self.path, self._is_plain = definition, path or opened, starts is None and has_targets
        dataset = used_variables(dataset, definition)
        dataset, _ = align(dataset, definition)
        self.dataset = select(dataset, definition)
        has_targets = has_targets and bool(definition.targets)
        self.layout: Layout = make_layout(self.dataset, definition, has_targets, starts)
        if self.layout.leads > 1:
            self.layout.check_lead_names(definition.targets)
        self.leads = lead_plan(self.layout, definition)
        self._blocks = WindowBlocks(self.layout, definition.block_bytes)
        self._cache = BlockCache(definition.memory, self._blocks.needs())
        location = "xarray Dataset" if self.path is None else self.path
        self.window_numbers = window_numbers(self._blocks, self._cache, location, definition.max_nan)
        super().__init__(location, *window_columns(self._blocks, self._cache, self.window_numbers, location))
        if self.leads is not None:
            self.shape, self.label_shape = self.leads.shape, self.leads.label_shape
        self.left_out = left_out_texts(self._blocks, self.window_numbers, definition.max_nan)
        for sentence in [*self.left_out, *advice_texts(self._blocks, self.cache_limit)]:
            logger.warning("%s: %s", redact(location), sentence)

    def _gather(self, column: Any, rows: np.ndarray) -> np.ndarray:
        if not rows.size:
            return np.empty((0, *column.shape), column.dtype)
        return column.take(rows, self.allows_nonfinite)

    def in_region(self, data: PointRanges | None, labels: PointRanges | None = None) -> RecordSource:
        """Restrict the records and labels to some points of space, with all channels."""
        data, labels = (
            ranges if ranges and ranges[0] == (0, shape[0]) else None
            for ranges, shape in ((data, self._data.shape), (labels, self._labels.shape if self._labels else ()))
        )
        if data is None and labels is None:
            return self
        layout, cache = self.layout.in_region(data, labels), self.new_cache()
        blocks = WindowBlocks(layout, 0, self._blocks.block_counts)
        columns = window_columns(blocks, cache, self.window_numbers, self.location)
        shapes = [column.shape for column in columns]
        return self._changed(
            layout=layout,
            shape=shapes[0],
            label_shape=shapes[-1] if self.has_labels else (),
            _blocks=blocks,
            _cache=cache,
            _data=columns[0],
            _labels=columns[-1] if self.has_labels else None,
        )

    @property
    def cached_bytes(self) -> int:
        """The bytes of decoded fields of these windows that this process keeps."""
        return self._cache.bytes

    def new_cache(self) -> BlockCache:
        """Return an empty cache, as large as that of these windows, for other windows of their Dataset."""
        return self._cache.for_others()

    @property
    def decoded_bytes(self) -> int:
        """The bytes in memory of all fields that windows are cut from."""
        return self._blocks.bytes_of(self._blocks.counts)

    @property
    def cache_limit(self) -> int:
        """The most bytes of decoded fields that this process keeps for these windows.

        The largest limit among the windows of a process holds for all of them together.
        """
        return self._cache.memory

    @property
    def is_named(self) -> bool:
        """Whether ``path`` and ``definition`` describe the windows fully, so that a job may name them."""
        return self.path is not None and self._is_plain

    def described(self) -> WindowDefinition:
        """Return the definition with the data's layout, for jobs and checkpoints that predict other data."""
        return (
            self.definition
            if self.definition.is_trained
            else describe_layout(self.dataset, self.definition, self.layout)
        )

    def job_settings(self) -> dict[str, Any]:
        """Return the settings that cut windows like these out of other Datasets."""
        return {"windows": self.described()}

    def named_fields(self) -> dict[str, Any]:
        """Return the path and the settings of windows, if both describe the windows fully."""
        return {"path": self.path, **self.job_settings()} if self.is_named else {}

    def in_training_order(self, settings: Mapping[str, Any]) -> FieldWindows:
        """Return the windows in the layout of training data with these :meth:`job_settings`."""
        return self.in_order_of(settings["windows"]) if "windows" in settings else self

    def in_order_of(self, training: WindowDefinition) -> FieldWindows:
        """Return windows of the same Dataset in the layout of training, and as anomalies if trained on them."""
        if self.definition.climatology and not training.climatology:
            raise UserError(
                "the windows are anomalies from a climatology, but the net was trained on the fields themselves; "
                "leave climatology out, or train on anomalies"
            )
        self.definition.check_like(training)
        definition = self.definition.replace(climatology=training.climatology)
        for role in ("inputs", "targets", "static", "coordinates"):
            here, there = (getattr(each, role) for each in (definition, training))
            definition = definition.replace(**{role: there}) if sorted(here) == sorted(there) else definition
        is_same = definition == self.definition
        if is_same and (self.definition.is_trained or not training.is_trained):
            return self
        if not self.definition.is_trained:
            definition = definition.trained_like(training)
        aligned, _ = align(self.dataset, definition)
        variables = {name: tuple(map(str, array.dims)) for name, array in self.dataset.data_vars.items()}
        if (
            is_same
            and aligned is self.dataset
            and all(definition.ordered_dims(*each) == each[1] for each in variables.items())
        ):
            return self
        return FieldWindows(self.dataset, definition, has_targets=self.has_labels, path=self.path)

    def positions(self, rows: Any) -> dict[str, np.ndarray]:
        """Return the index in ``dataset`` of the first point of each window, without context, by dimension."""
        rows = np.asarray(rows, np.int64)
        numbers = rows if self.window_numbers is None else self.window_numbers[rows]
        places = self._blocks.places(numbers)
        return {axis.name: axis.starts[place] for axis, place in zip(self._blocks.axes, places, strict=True)}

    def split(self, gap: int = 0, **cuts: Any) -> tuple[FieldWindows, ...]:
        """Split the windows at coordinates of one dimension, for example into training and test data.

        No point is in two parts, not even as context or target.

        >>> train, test = windows.split(time="2018-01-01", gap=24)  # doctest: +SKIP
        >>> train, val, test = windows.split(time=["2016-01-01", "2018-01-01"])  # doctest: +SKIP

        Args:
            gap: points that are left out before each cut.
            **cuts: a dimension, and the coordinates at which later parts begin.

        Raises:
            UserError: there is no such dimension, its coordinates do not increase, or a part has no window.
        """
        parts = []
        within = {dim.name: (dim.first, dim.last) for dim in self.definition.dim}
        for ends in split_ends(self.dataset, self.definition, cuts, gap):
            definition = self.definition.replace(within={**within, **ends})
            parts.append(FieldWindows(self.dataset, definition, has_targets=self.has_labels, path=self.path))
        return tuple(parts)

    def storage(self) -> dict[str, Any]:
        """Describe the channels, points left out and dimensions, for :func:`dsinga.data.describe`."""
        axes = self.layout.axes.values()
        facts: dict[str, Any] = {
            "dimensions": {
                axis.name: f"{axis.length} points, {len(axis.starts)} windows of {axis.size}" for axis in axes
            },
            "space": self.layout.space,
            "channels": self.layout.channel_names(),
            "targets": self.layout.target_names(),
        }
        if self.left_out:
            facts["left_out"] = self.left_out
        return facts

    def __repr__(self) -> str:
        inputs, targets = self.layout.channel_names(), self.layout.target_names()
        space = ", ".join(self.layout.space)
        lines = [
            f"<FieldWindows of {redact(self.location)}: {len(self)} windows",
            f"  records {self.shape} float32: {_shortened(inputs)}; space {space or 'none'}",
        ]
        if self.has_labels:
            lines.append(f"  targets {self.label_shape} float32: {_shortened(targets)}")
        return "\n".join([*lines, *(f"  {sentence}" for sentence in self.left_out)]) + ">"


@register("definition", "WindowDefinition")
def open_windows(dataset: Any, definition: WindowDefinition, has_labels: bool) -> FieldWindows:
    """Cut the windows of a definition out of a Dataset, or of the Dataset at a path."""
    return FieldWindows(dataset, definition, has_targets=has_labels)


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", ... ({len(names)} channels)" if len(names) > 6 else "")


@checked
@documented_settings
def windows(  # noqa: D417  the others are settings, whose descriptions are added
    dataset: Any,
    *,
    input_dims: Mapping[str, int],
    inputs: str | Iterable[str] | None = None,
    targets: str | Iterable[str] | None = None,
    input_overlap: Mapping[str, int] | None = None,
    context: Mapping[str, int | Sequence[int]] | None = None,
    lead: Mapping[str, int] | None = None,
    leads: int = 1,
    direct: bool = False,
    lead_weights: Sequence[float] | None = None,
    lead_start: Sequence[int] | None = None,
    channels: str | Iterable[str] | None = None,
    static: str | Iterable[str] = (),
    coordinates: str | Iterable[str] = (),
    edges: str | Mapping[str, str] | None = None,
    mask: bool | str | Iterable[str] = False,
    fill: float | Mapping[str, float] | None = None,
    max_nan: float | None = None,
    weights: str | None = None,
    within: Mapping[str, Sequence[Any]] | None = None,
    over_gaps: bool = False,
    climatology: FieldClimatology | None = None,
    memory: int | None = None,
) -> FieldWindows:
    """Cut a Dataset into windows, records to train from: inputs (C, *space), targets (C', *space), float32.

    Channels are variables x levels x steps of time, then static fields, coordinates and masks. Axes of space are the
    dimensions of ``input_dims``, except time, that have more than one point, in the order of the data.
    ``windows.left_out`` lists points that fill no window.

    ``windows.read([0])`` returns the first window and its target.

    Args:
        dataset: an xarray Dataset or DataArray, or the path or URL of a zarr store, an OME-Zarr image, a netCDF file,
            or a file of references (kerchunk, VirtualiZarr). It is read lazily. References may lead to web servers,
            object storage and files in their own folder; the environment variable DSINGA_REFERENCES names more folders.
        input_dims: points of a window by dimension, -1 for all of them. Other dimensions are not cut.
        input_overlap: points that neighbouring windows share, by dimension; negative for points between windows.
        context: points around a window that are input only, by dimension: a number, or a pair (before, after).
            ``input_dims={"time": 1}, context={"time": (3, 0)}`` has four steps of time as inputs of one target.
        lead: offset of the target in points, by dimension: ``{"time": 6}`` for six steps ahead.
        edges: the context beyond the data, for all dimensions or by dimension: "inside" (windows stay inside), "zero",
            "edge" (the last point), "reflect", or "periodic" (the other end).
        within: first and last coordinate to use, by dimension, as in ``ds.sel``; decreasing latitudes accept either
            order. ``{"lon": (-10, 10)}`` also works for longitudes from 0 to 360.

    Space has at most three axes. With one axis, ``channels=[]``, records are (channels, points); such a net predicts a
    whole series as one tile.

    Windows are shuffled within eight blocks of neighbours.

    Overlapping windows count points inside the data more often in losses and scores than points near the ends.

    With several ``leads``, windows with context along space must be whole fields. All losses then compare the same
    layer and have a factor ``scale``, and the weight channel is the same for all leads. Losses of quantiles,
    distributions and ensembles need ``direct``; losses of classes support one lead only. A net of the direct form
    predicts at most the leads that it was trained on, and reads no inputs of later times. ``evaluate`` returns "loss",
    and for each lead "loss/loss", "lead2#loss/loss", ... and its metrics.

    Raises UserError for a setting that does not fit the Dataset.

    Examples:
        >>> import numpy as np
        >>> import xarray as xr
        >>> import dsinga
        >>> times = np.arange("2020-01-01", "2020-01-31", dtype="datetime64[D]")
        >>> sst = np.zeros((30, 8, 16), np.float32)
        >>> dataset = xr.Dataset({"sst": (("time", "lat", "lon"), sst)}, coords={"time": times})
        >>> sizes = {"time": 1, "lat": -1, "lon": -1}  # whole fields, a day each
        >>> windows = dsinga.windows(dataset, inputs="sst", targets="sst", input_dims=sizes, lead={"time": 1})
        >>> windows.shape  # channels, lat, lon; windows.label_shape is the shape of a target
        (1, 8, 16)
        >>> train, test = windows.split(time="2020-01-25")
        >>> len(train), len(test)  # model.fit(train, validation_data=test)
        (23, 5)
    """
    settings = locals()
    opened, path = open_dataset(settings.pop("dataset"))
    check_no_spans(opened, settings)
    settings["inputs"] = inputs_of(opened, static) if inputs is None else inputs
    records = FieldWindows(opened, define_windows(**settings), path=path)
    for sentence in copying_texts(records.layout):
        logger.warning("%s: %s", redact(records.location), sentence)
    return records


def inputs_of(dataset: Any, static: Any) -> list[str]:
    """Return the default inputs: the names of all variables except static and related ones."""
    others = {*names_of("static", static), *related_names(dataset)}
    return [str(name) for name in dataset.data_vars if name not in others]
