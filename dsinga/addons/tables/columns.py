"""Turns a data frame's columns into float32 records, by the definition learnt in training."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from dsinga.addons.tables.definition import TableColumnConf, TableDefinition
from dsinga.addons.tables.values import Dates, Indexed, as_numbers, codes_of, in_zone, indexed_numbers, is_missing
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.data.array_kinds import check_columns
from dsinga.data.conversion import nonfinite_error

FAR = 1e150  # a scaled number with a finite square
SORTED_ROWS = 8192  # at a time, which stay in a core's cache


class RecordParts(NamedTuple):
    """The names of a record's numbers, in three parts, and the sizes of categories.

    Attributes:
        numbers: scaled numbers; for dates such as "departure.hour".
        flags: 0 or 1: booleans, and whether a value is missing, such as "age is missing".
        categories: columns of codes: 0 for a missing or unknown value.
        sizes: how many codes each category has, including code 0.
    """

    numbers: tuple[str, ...]
    flags: tuple[str, ...]
    categories: tuple[str, ...]
    sizes: tuple[int, ...]


class TableColumns:
    """Converts a data frame to records (rows, width) float32, by a definition of columns."""

    def __init__(self, definition: TableDefinition):
        if not definition.column:
            raise definition.error(
                "the table has no columns; give those that dsinga.table learns, or `dsinga data info FOLDER` prints"
            )
        self.definition = definition
        self.numbers = [conf for conf in definition.column if conf.kind in ("number", "date")]
        self.scalings = [ColumnScaling(conf, definition.scaling) for conf in self.numbers]
        self.booleans = [conf for conf in definition.column if conf.kind == "boolean"]
        self.categories = [conf for conf in definition.column if conf.kind == "category"]
        flagged = {conf.name: conf for conf in definition.column if conf.kind != "category" and conf.missing}
        self.flagged = list(flagged)  # a date of several parts is missing once

    @property
    def parts(self) -> RecordParts:
        """The names of a record's numbers: scaled numbers, flags and categories."""
        return RecordParts(
            tuple(f"{conf.name}.{conf.part}" if conf.part else conf.name for conf in self.numbers),
            (*(conf.name for conf in self.booleans), *(f"{name} is missing" for name in self.flagged)),
            tuple(conf.name for conf in self.categories),
            tuple(len(conf.category) + 1 for conf in self.categories),
        )

    @property
    def width(self) -> int:
        """The number of values in a record."""
        return sum(map(len, self.parts[:3]))

    def bins(self, count: int) -> list[list[float]]:
        """Return the edges of at most ``count`` bins between the quantiles of each scaled number.

        They are for piecewise-linear embeddings (arXiv 2203.05556); repeated numbers give fewer bins.
        """
        edges = []
        for conf, scaling in zip(self.numbers, self.scalings, strict=True):
            places = np.linspace(0, len(conf.quantile) - 1, count + 1)
            numbers = np.interp(places, np.arange(len(conf.quantile)), conf.quantile)
            edges.append([float(edge) for edge in np.unique(scaling.apply(numbers).astype(np.float32))])
        return edges

    def encode(self, table: Any, first: int = 0) -> np.ndarray:
        """Encode an Arrow table as records (rows, width) float32.

        ``first`` is the number of its first record, for messages.
        """
        check_columns(self.definition.names, table.column_names, "the table", ", which the records of training have")
        out = np.empty((self.width, table.num_rows), np.float32)  # by columns, in memory one after another
        for place, values in enumerate(self._values(table, first)):
            with np.errstate(over="ignore"):
                out[place] = values
        numbers = out[: len(self.numbers)]
        if not np.isfinite(numbers).all():
            place, row = np.argwhere(~np.isfinite(numbers))[0].tolist()
            raise UserError(
                f"column {self.numbers[place].name!r} has a number in record {first + row} that is so far from those "
                "of training that no float32 holds it scaled; see whether its unit is the same"
            )
        return np.ascontiguousarray(out.T)

    def _values(self, table: Any, first: int) -> Iterator[np.ndarray]:
        dates = {
            conf.name: Dates(in_zone(table.column(conf.name), conf.name, conf.zone), conf.name)
            for conf in self.numbers
            if conf.part
        }
        for conf, scaling in zip(self.numbers, self.scalings, strict=True):
            if conf.part:
                numbers = dates[conf.name].part(conf.part)
            else:
                numbers = indexed_numbers(table.column(conf.name), conf.name)
            if isinstance(numbers, Indexed):
                yield scaling.apply(numbers.distinct).astype(np.float32).take(numbers.places)
                continue
            if (bad := np.isinf(numbers)).any():
                raise nonfinite_error("the table", "infinity", first + int(np.argmax(bad)), f"column {conf.name!r}")
            yield scaling.apply(numbers)
        for conf in self.booleans:
            flags = np.nan_to_num(as_numbers(table.column(conf.name), conf.name, "boolean"), nan=0.0)
            if (bad := (flags != 0) & (flags != 1)).any():
                row = int(np.argmax(bad))
                raise UserError(
                    f"column {conf.name!r} has {flags[row]:g} in record {first + row}, but booleans in the records of "
                    "training; give 0 or 1"
                )
            yield flags
        for name in self.flagged:
            yield is_missing(table.column(name))
        for conf in self.categories:
            yield self._codes(table.column(conf.name), conf, first)

    def _codes(self, column: Any, conf: TableColumnConf, first: int) -> np.ndarray:
        codes, new = codes_of(in_zone(column, conf.name, conf.zone), conf.name, conf.category)
        if new is not None and self.definition.unknown == "error":
            row, text = new
            raise UserError(
                f"column {conf.name!r} has the category {text!r} in record {first + row}, which the records of "
                f"training lack{nearest(text, conf.category)}"
            )
        return codes


class ColumnScaling:
    """The scaling of the numbers of one column; a missing one becomes the median.

    For the kind "quantile" it interpolates between ``quantiles``, which become ``normal``; otherwise it is (x - offset)
    / scale, with a smooth clip for "robust".
    """

    def __init__(self, conf: TableColumnConf, kind: str):
        self.kind = kind
        quantiles = np.asarray(conf.quantile, np.float64)
        self.median = conf.median
        if kind == "quantile":
            self.quantiles, self.normal = _normal_scores(quantiles)
        elif kind == "robust":
            self.offset, self.scale = self.median, _robust_scale(quantiles)
        else:
            self.offset, self.scale = conf.mean, conf.deviation or 1.0

    def apply(self, numbers: np.ndarray) -> np.ndarray:
        """Scale numbers, to float64; NaN counts as the median."""
        numbers = np.where(np.isnan(numbers), self.median, numbers)
        if self.kind == "quantile":
            return _interpolate(numbers, self.quantiles, self.normal)
        scaled = (numbers - self.offset) / self.scale
        if self.kind != "robust":
            return scaled
        scaled = np.clip(scaled, -FAR, FAR)
        return scaled / np.sqrt(1 + np.square(scaled / 3))


def _interpolate(numbers: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Compute ``numpy.interp``, sorting numbers first, which is faster."""
    out = np.empty_like(numbers)
    for start in range(0, len(numbers), SORTED_ROWS):
        part = numbers[start : start + SORTED_ROWS]
        order = np.argsort(part)
        out[start : start + SORTED_ROWS][order] = np.interp(part[order], known, values)
    return out


def _normal_scores(quantiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct quantiles and the normal score of each."""
    levels = np.linspace(0, 1, len(quantiles)).clip(margin := 0.5 / len(quantiles), 1 - margin)
    values, places, counts = np.unique(quantiles, return_inverse=True, return_counts=True)
    means = np.bincount(places, levels) / counts
    return values, np.array([NormalDist().inv_cdf(level) for level in means])


def _robust_scale(quantiles: np.ndarray) -> float:
    low, high = np.interp([0.25, 0.75], np.linspace(0, 1, len(quantiles)), quantiles)
    return float(high - low or (quantiles[-1] - quantiles[0]) / 2 or 1.0)
