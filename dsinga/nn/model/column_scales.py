"""Warns about inputs that train badly: columns of very different scales, category codes, double softmax."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import listed
from dsinga.data import RecordSource
from dsinga.job import LayerConf, LayerType
from dsinga.job.definition import RecordsDefinition
from dsinga.nn.writing.symbol import Symbol
from dsinga.reading.pairs import Pair

ROWS = 4096  # rows that are checked
FOLD = 1000.0  # a ratio of scales, or a standard deviation, at which dense layers learn badly
REMEDY = "begin with a layer scale = nn.Normalization() after scale.adapt(x), or scale the columns yourself"

_log = logging.getLogger(__name__)


def remark_on_columns(inputs: list[Symbol], pairs: Mapping[str, Pair]) -> None:
    """Warn if a dense layer reads columns of numpy (n, C) with large or very different scales, or category codes."""
    for symbol in inputs:
        x, _ = pairs.get(symbol.builder.name or "", (None, None))
        if not any(taker.builder.kind == "Dense" for taker in symbol.takers):
            continue
        if names := coded_columns(x):
            _log.warning(
                "the categories of x (%s) are codes 0, 1, ..., which the first dense layer reads as numbers; make the "
                "net with dsinga.models.tabm(...), or begin yours with dsinga.models.tables.table_inputs(...)",
                listed(names),
            )
        if scales := extreme_scales(x):
            (narrow, least), (wide, most) = scales
            _log.warning(
                "the columns of x differ %.0f-fold in scale (column %d has a range of %.3g, column %d of %.3g), which "
                "a dense layer learns badly from; " + REMEDY,
                most / least, narrow, least, wide, most,
            )  # fmt: skip
        elif large := large_scale(x):
            _log.warning(
                "column %d of x has a standard deviation of %.3g, which a dense layer learns badly from; " + REMEDY,
                *large,
            )  # fmt: skip


def coded_columns(x: Any) -> list[str]:
    """Return the names of a table's columns that hold category codes."""
    settings = x.job_settings().values() if isinstance(x, RecordSource) else ()
    return [name for value in settings if isinstance(value, RecordsDefinition) for name in value.coded_columns]


def remark_on_softmax(layers: Sequence[LayerConf]) -> None:
    """Warn if a softmax reads another softmax, which trains badly."""
    names = {layer.name for layer in layers if layer.type is LayerType.kSoftmax}
    for layer in layers:
        if layer.name in names and names & {*layer.srclayers}:
            _log.warning(
                "the layer %r is a softmax of the softmax %r, which learns badly; leave one of them out",
                layer.name, layer.srclayers[0],
            )  # fmt: skip


def extreme_scales(x: Any) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """Return the columns with the smallest and largest range, None if the ranges are similar."""
    if (rows := first_rows(x)) is None:
        return None
    ranges = rows.max(axis=0) - rows.min(axis=0)
    known = np.flatnonzero((ranges > 0) & np.isfinite(ranges))
    if not len(known):
        return None
    narrow, wide = known[ranges[known].argmin()], known[ranges[known].argmax()]
    if ranges[wide] < FOLD * ranges[narrow]:
        return None
    return (int(narrow), float(ranges[narrow])), (int(wide), float(ranges[wide]))


def large_scale(x: Any) -> tuple[int, float] | None:
    """Return the column with the largest standard deviation, None if that is at most 1000."""
    if (rows := first_rows(x)) is None:
        return None
    with np.errstate(all="ignore"):  # of numbers that are not finite, which fit refuses
        deviations = np.nan_to_num(rows.std(axis=0), posinf=0.0)
    wide = int(deviations.argmax())
    return (wide, float(deviations[wide])) if deviations[wide] > FOLD else None


def first_rows(x: Any) -> np.ndarray | None:
    """Return the first rows of an array of numbers (n, C) in float64; None for other records."""
    is_checked = isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype.kind in "fiu" and x.size > 0
    return x[:ROWS].astype(np.float64) if is_checked else None
