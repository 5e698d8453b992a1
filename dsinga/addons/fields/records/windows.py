"""The function that cuts windows out of a Dataset."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsinga.addons.fields.records.climatology import FieldClimatology, climatology_text
from dsinga.addons.fields.records.dataset import open_dataset
from dsinga.addons.fields.records.definition import DEFAULT_MEMORY, define_windows, names_of
from dsinga.addons.fields.records.field_windows import FieldWindows
from dsinga.addons.fields.records.prediction_windows import related_names
from dsinga.base.errors import UserError


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
