"""Windows of an xarray Dataset as records: what training, evaluation and prediction read."""

from __future__ import annotations

import logging
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.fields.leads.feedback import check_ends, check_lead_names, lead_plan
from dsinga.addons.fields.records.climatology import FieldClimatology, climatology_text
from dsinga.addons.fields.records.dataset import check_dataset, open_dataset, used_variables
from dsinga.addons.fields.records.definition import (
    DEFAULT_MEMORY,
    SAMPLER_SHARE,
    WindowDefinition,
    define_windows,
    names_of,
)
from dsinga.addons.fields.records.layout import Layout, make_layout
from dsinga.addons.fields.records.prediction_windows import related_names
from dsinga.addons.fields.records.remarks import chunk_texts, gap_texts, left_out_texts, period_texts, uneven_texts
from dsinga.addons.fields.records.trained_layout import align, select, split_ends, trained_layout_of
from dsinga.addons.fields.records.window_blocks import BlockCache, WindowBlocks
from dsinga.addons.fields.records.window_column import WindowColumn
from dsinga.addons.fields.records.window_messages import WindowsConf
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import register
from dsinga.data.column import PointRanges
from dsinga.data.record_source import RecordSource

FILTERED_BYTES = 16 << 20  # of the windows whose share of NaN is counted at once
logger = logging.getLogger(__name__)


@register("hook", "field_windows")
class FieldWindows(RecordSource):
    """The windows of a Dataset: records (C, *space) float32 and labels (C', *space) float32, in the data's units.

    :func:`dsinga.windows` makes them and explains the settings. Nothing is copied to disk, and of data in files only
    what windows are read from is read. Records are numbered in the order of the dimensions, the last one fastest.

    Attributes:
        definition: the settings, which may be applied to another Dataset.
        dataset: the Dataset, as far as ``definition.within`` says.
        layout: which variable and which point is which channel.
        leads: how records of several leads are made of the one that is read; None for one lead, and the direct form.
        left_out: a sentence for each dimension with points that fill no window, and one for windows with much NaN.
        path: the path or URL from which the Dataset was opened, None where it was given.

    Args:
        dataset: an xarray Dataset or DataArray, or the path or URL of one: a zarr store, or a file of netCDF.
        definition: the settings.
        has_targets: whether labels are read; without them windows need no targets within the data, for prediction.
        starts: the first points of windows by dimension, in place of those at the stride.
        path: where a Dataset was opened that is given.

    Raises:
        UserError: the definition does not fit the Dataset; the message says what would.
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
        self.path = path or opened
        self._is_plain = starts is None and has_targets
        check_dataset(dataset, definition)
        dataset, _ = align(used_variables(dataset, definition), definition)
        self.definition, self.dataset = definition, select(dataset, definition.within)
        has_targets = has_targets and bool(definition.targets)
        self.layout: Layout = make_layout(self.dataset, definition, has_targets, starts)
        self.leads = None
        if self.layout.leads > 1:
            check_lead_names(self.layout, definition.targets)
        if self.layout.leads > 1 and not definition.direct:
            self.leads = lead_plan(self.layout, definition.lead_weights, definition.lead_start)
            check_ends(self.layout)
        self._blocks = WindowBlocks(self.layout, definition.memory // SAMPLER_SHARE)
        self._cache = BlockCache()
        self._register()
        location = "xarray Dataset" if self.path is None else self.path
        axes, labels = self.layout.axes, self.layout.coordinates
        self.left_out = [*left_out_texts(axes, labels), *gap_texts(axes, labels)]
        self.window_numbers = self._filtered(location)
        columns = [
            WindowColumn(self._blocks, self._cache, self.window_numbers, is_target, location)
            for is_target in ((False, True) if has_targets else (False,))
        ]
        super().__init__(location, *columns)
        if self.leads is not None:
            self.shape, self.label_shape = self.leads.shape, self.leads.label_shape
        advice = [*chunk_texts(self._blocks), *uneven_texts(axes, labels), *period_texts(axes, labels)]
        for sentence in [*self.left_out, *advice]:
            logger.warning("%s: %s", redact(location), sentence)

    def _register(self) -> None:
        self._cache.register(self, self.definition.memory)

    def _gather(self, column: Any, rows: Any) -> np.ndarray:
        rows = np.asarray(rows, np.int64)
        if not rows.size:
            return np.empty((0, *column.shape), column.dtype)
        least, most = int(rows.min()), int(rows.max())
        if not 0 <= least <= most < len(self):
            raise IndexError(f"rows {least} to {most} are not all in the {len(self)} windows of {self.location}")
        return column.take(rows, self.allows_nonfinite)

    def in_region(self, data: PointRanges | None, labels: PointRanges | None = None) -> RecordSource:
        """Return these windows with only some points of each record, and of each label, but with all channels.

        Their blocks have the same windows, but smaller fields: threads that each read a part keep as much as one that
        reads the whole.
        """
        data, labels = (
            ranges if ranges and ranges[0] == (0, shape[0]) else None
            for ranges, shape in ((data, self._data.shape), (labels, self._labels.shape if self._labels else ()))
        )
        if data is None and labels is None:
            return self
        layout, cache = self.layout.in_region(data, labels), BlockCache()
        blocks = WindowBlocks(layout, 0, self._blocks.block_counts)
        columns = [
            WindowColumn(blocks, cache, self.window_numbers, is_target, self.location)
            for is_target in ((False, True) if self.has_labels else (False,))
        ]
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

    def _filtered(self, location: str) -> np.ndarray | None:
        """Return the numbers of the windows that have at most ``max_nan`` of NaN, None where it is not given."""
        most = self.definition.max_nan
        if most is None:
            return None
        roles = (False, True) if self.layout.targets else (False,)
        columns = [WindowColumn(self._blocks, self._cache, None, is_target, location) for is_target in roles]
        step = max(1, FILTERED_BYTES // max(column.row_bytes for column in columns))
        numbers = [
            start + np.flatnonzero(np.max([column.nan_shares(rows) for column in columns], axis=0) <= most)
            for start in range(0, len(self._blocks), step)
            for rows in [np.arange(start, min(start + step, len(self._blocks)))]
        ]
        kept = np.concatenate(numbers)
        count = len(self._blocks) - len(kept)
        if not len(kept):
            raise UserError(
                f"{location}: all {count} windows have more than max_nan={most} of NaN; give a larger share"
            )
        if count:
            self.left_out.append(f"{count} of {len(self._blocks)} windows have more than max_nan={most} of NaN")
        return kept

    @property
    def cached_bytes(self) -> int:
        """The bytes of decoded fields that this process keeps, at most ``definition.memory``."""
        return self._cache.bytes

    @property
    def decoded_bytes(self) -> int:
        """Bytes of the fields that windows are cut out of, in memory."""
        return self._blocks.bytes_of(self._blocks.counts)

    @property
    def cache_limit(self) -> int:
        """Bytes of decoded fields that a process keeps, at most, of all windows together."""
        return self.definition.memory

    @property
    def is_named(self) -> bool:
        """Whether ``path`` and ``definition`` say all, so that a job may name these windows."""
        return self.path is not None and self._is_plain

    def described(self) -> WindowDefinition:
        """Return the definition with how the data lie, as jobs and checkpoints keep it for the prediction of others."""
        trained = self.definition.trained or trained_layout_of(self.dataset, self.definition, self.layout)
        return self.definition.replace(trained=trained)

    def job_settings(self) -> dict[str, Any]:
        """Return the settings of windows of other Datasets like these."""
        return {"windows": WindowsConf.of(self.described())}

    def named_fields(self) -> dict[str, Any]:
        """Return the path and the settings of windows, where these say all."""
        return {"path": self.path, **self.job_settings()} if self.is_named else {}

    def in_training_order(self, settings: Mapping[str, Any]) -> FieldWindows:
        """Return windows that lie as those of training, which had these :meth:`job_settings`."""
        return self.in_order_of(settings["windows"].definition()) if "windows" in settings else self

    def in_order_of(self, training: WindowDefinition) -> FieldWindows:
        """Return windows of the same Dataset that lie as the data of training lay, and are departures if those were.

        The same variables have their order in training. These are the same windows where they lie so already, or where
        a definition of training has cut them. Raises UserError where the Dataset lacks points that are channels, such
        as levels, and for departures where training had none.
        """
        if self.definition.climatology and not training.climatology:
            raise UserError(
                "the windows are departures from a climatology, but the net was trained on the fields themselves; "
                "leave climatology out, or train on departures"
            )
        definition = self.definition.replace(climatology=training.climatology)
        for role in ("inputs", "targets", "static", "coordinates"):
            here, there = (getattr(each, role) for each in (definition, training))
            definition = definition.replace(**{role: there}) if sorted(here) == sorted(there) else definition
        is_same = definition == self.definition
        if is_same and (training.trained is None or self.definition.trained is not None):
            return self
        definition = definition.replace(trained=self.definition.trained or training.trained)
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
        """Return the windows before and after coordinates of one dimension, as of Datasets that were cut there.

        A part has the windows that lie in it with their context and their targets, so that no point is in two parts.

        >>> train, test = windows.split(time="2018-01-01", gap=24)  # doctest: +SKIP
        >>> train, val, test = windows.split(time=["2016-01-01", "2018-01-01"])  # doctest: +SKIP

        Args:
            gap: points that are left out before each cut.
            **cuts: a dimension, and the coordinates at which later parts begin.

        Raises:
            UserError: the dimension is not there or has no increasing coordinates, or a part has no window.
        """
        parts = []
        for ends in split_ends(self.dataset, self.definition, cuts, gap):
            (dim,) = ends
            definition = self.definition.replace(within={**self.definition.within, **ends})
            parts.append(FieldWindows(self.dataset, definition, has_targets=self.has_labels, path=self.path))
        return tuple(parts)

    def storage(self) -> dict[str, Any]:
        """Return the channels, what is left out, and the dimensions, for :func:`dsinga.data.describe`."""
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


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", ... ({len(names)} channels)" if len(names) > 6 else "")


def windows(
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
    memory: int = DEFAULT_MEMORY,
) -> FieldWindows:
    """Return the windows of a Dataset as records to train from: inputs (C, *space), targets (C', *space), float32.

    Channels are variables x levels x steps of time, then static fields, then coordinates, then masks. Axes of space are
    the dimensions of ``input_dims`` that are no time and have more than one point, in the order of the data.

    Args:
        dataset: an xarray Dataset or DataArray, or the path or URL of a zarr store, an OME-Zarr image or a netCDF file.
            It is read lazily.
        input_dims: points of a window by dimension, -1 for all of them. Dimensions that are not named are taken whole.
        inputs: names of the variables of a record; without it all but static ones, and the grid mappings and bounds of
            CF.
        targets: names of the variables of a label; without it windows have no labels. "border(cells)" and others are
            made from a label image "cells" where it is read; docs/microscopes.md has them.
        input_overlap: points that neighbouring windows share, by dimension. The stride is the size without these; a
            negative overlap leaves points between windows.
        context: points around a window that are input only, by dimension: a number, or a pair (before, after).
            ``input_dims={"time": 1}, context={"time": (3, 0)}`` has four steps of time as inputs of one target.
        lead: offset of the target in points, by dimension: ``{"time": 6}`` for six steps ahead.
        leads: how many targets to train on: at one, two, ... times the ``lead``. A net of one lead is trained on all of
            them by feeding its predictions back as inputs; the loss is the mean over leads, and its gradient goes
            through all of them. Inputs that are not predicted are read for each lead.
        direct: train a net that gives all leads at once, as channels, in place of feeding predictions back.
        lead_weights: the weight of each lead in the loss, where it is not the same.
        lead_start: the step of training from which each lead is trained: ``[0, 1000, 2000, 2000]`` trains one lead of
            four at first, and all of them from step 2000 on.
        channels: dimensions whose points are channels, such as ["time", "level"]; docs/fields.md has the default.
        static: names of variables without time, such as a height of the ground.
        coordinates: channels that are functions of coordinates, worked out when they are read: "latitude",
            "cos(latitude)", "sin(longitude)" (of degrees), "sin(day of year)", "cos(hour of day)".
        edges: what context beyond the data has, for all dimensions or by dimension: "inside" (no window has any),
            "zero", "edge" (the last point), "reflect", or "periodic", along which windows go on at the other end.
        mask: True, or the names of variables that may have NaN. In records NaN is filled, and channels say which points
            are valid (1) and which are masked (0); in labels it stays NaN. Without it NaN is an error.
        fill: the number in place of NaN, or numbers by variable; 0 by default.
        max_nan: leave out windows that have more than this share of NaN in their inputs or in their targets. The data
            are read once for it.
        weights: a variable, or an expression as of ``coordinates``, that weights the points of a target: the last
            channel of a label, divided by its mean over the data.
        within: first and last coordinate of the data that are used, by dimension, as ``ds.sel`` takes them. Of
            latitudes that fall they may be in either order; longitudes go on round the circle, as from -10 to 10.
        over_gaps: whether windows may reach over gaps of time, and count points whatever lies between. Without it they
            are left out. A gap is a step of more than one and a half times the usual one.
        climatology: what is subtracted from the variables that it has, inputs and targets, where they are read: records
            are departures from it. The net keeps it, and predictions of a Dataset have it added again. Take it from the
            training part: ``dsinga.data.field_climatology(dataset.sel(time=slice(None, "2015")))``.
        memory: the most bytes of decoded fields that a process keeps. A twelfth of it is a block: the windows that
            are read and shuffled together.

    Raises:
        UserError: a setting does not fit the Dataset; the message says what would.

    The order of windows, and of training, follows from these settings alone: not from the chunks of the data, the
    number of workers, or their threads. Points that fill no window are told in a warning of the log, and in
    ``windows.left_out``.
    """
    settings = {name: value for name, value in locals().items() if name != "dataset"}
    opened, path = open_dataset(dataset)
    if inputs is None:
        others = {*names_of("static", static), *related_names(opened)}
        inputs = [str(name) for name in opened.data_vars if name not in others]
    if isinstance(lead, Mapping) and lead and (targets is None or not names_of("targets", targets)):
        raise UserError("lead says where targets lie, but no targets are named; give targets, the names of variables")
    if not isinstance(climatology, (FieldClimatology, type(None))):
        raise UserError(
            f"climatology is one of dsinga.data.field_climatology(dataset), not {reprlib.repr(climatology)}"
        )
    text = "" if climatology is None else climatology_text(climatology)
    definition = define_windows(**settings | {"inputs": inputs, "climatology": text})
    return FieldWindows(os.fspath(dataset) if path else opened, definition)
