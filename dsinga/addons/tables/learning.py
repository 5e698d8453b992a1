"""Learns what each column of a data frame is, in one pass over its parts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from dsinga.addons.tables.definition import PARTS, TableColumnConf, TableDefinition
from dsinga.addons.tables.frames import Frame
from dsinga.addons.tables.values import WORDS, as_numbers, date_part, indexed_texts, kind_of
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest_or_listed
from dsinga.data.conversion import nonfinite_error

logger = logging.getLogger(__name__)

SAMPLE_ROWS = 100_000  # from which quantiles are taken
QUANTILES = 257  # at steps of 1/256
MOST_CATEGORIES = 50_000  # the most frequent ones; others count as unknown
RARE = 10_000  # records for each occurrence that a category needs to be known, beside one


@dataclass
class PartSummary:
    """What the learning of columns needs to know about some rows of a frame; those of several parts are added up.

    Attributes:
        rows: how many rows.
        kinds: the kind of the values of each column; "" for no value at all.
        missing: how many values are missing.
        counts: of columns of categories, how often each occurs.
        sample: of columns of numbers and dates, some values as an Arrow table.
    """

    rows: int = 0
    kinds: dict[str, str] = field(default_factory=dict)
    missing: Counter[str] = field(default_factory=Counter)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    samples: list[Any] = field(default_factory=list)

    def add(self, other: PartSummary, location: str) -> None:
        """Add the rows that follow. Raises UserError for a column whose kinds differ."""
        for name, kind in other.kinds.items():
            known = self.kinds.get(name) or kind
            if kind and kind != known:
                raise UserError(
                    f"{location}: column {name!r} has {WORDS[known]} in one part and {WORDS[kind]} in the part from "
                    f"record {self.rows}; give all parts one dtype"
                )
            self.kinds[name] = known
        self.rows += other.rows
        self.missing.update(other.missing)
        for name, counts in other.counts.items():
            self.counts.setdefault(name, Counter()).update(counts)
        self.samples += other.samples


def learn(frame: Frame, names: Sequence[str], categories: Sequence[str], scaling: str, unknown: str) -> TableDefinition:
    """Return the definition of some columns of a frame, of which ``categories`` are categories whatever their values.

    The frame is read once. Quantiles are those of a sample of some 100,000 rows, which depends on the numbers of the
    rows alone. Columns with one value, or with none, are left out, which the log says.

    Raises:
        UserError: a column is not there, or has values of no kind that a table has, of several kinds, or infinity.
    """
    for name in (*names, *categories):
        if name not in frame.names:
            raise UserError(f"the table has no column {name!r}{nearest_or_listed(name, frame.names, 'it has')}")
    if not len(frame):
        raise UserError(f"{frame.location} has no records")
    share, total = min(1.0, SAMPLE_ROWS / len(frame)), PartSummary()
    starts = accumulate(frame.lengths, initial=0)
    for part, start in zip(range(len(frame.lengths)), starts, strict=False):
        total.add(summarise(frame.read(part, names), start, categories, share), frame.location)
    return describe(total, frame.location, scaling, unknown)


def summarise(table: Any, start: int, categories: Iterable[str], share: float) -> PartSummary:
    """Return the summary of the rows of an Arrow table, of which the first has the number ``start``."""
    summary, sampled = PartSummary(table.num_rows), []
    for name in table.column_names:
        column = table.column(name)
        kind = kind_of(column.type)
        if kind is None:
            raise UserError(
                f"column {name!r} of the table has values of type {column.type}, which are no numbers, texts or dates; "
                "leave the column out"
            )
        kind = "category" if name in categories and kind != "" else kind
        summary.kinds[name] = kind
        summary.missing[name] = int(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False).sum())
        if kind == "category":
            summary.counts[name] = _value_counts(column, name)
        elif kind:
            sampled.append(name)
    _check_finite(table, [name for name in sampled if summary.kinds[name] == "number"], start)
    summary.samples.append(table.select(sampled).filter(_drawn(table.num_rows, start, share)))
    return summary


def _value_counts(column: Any, name: str) -> Counter[str]:
    """Return how often each text of an Arrow column occurs, without missing ones."""
    counted: Counter[str] = Counter()
    for texts, places in indexed_texts(column, name):
        counts = np.bincount(places, minlength=len(texts))
        for place in np.flatnonzero(counts[: len(texts)]).tolist():
            counted[texts[place].as_py()] += int(counts[place])
    return counted


def _check_finite(table: Any, names: Iterable[str], start: int) -> None:
    """Raise UserError for infinity in a column."""
    import pyarrow

    for name in names:
        column = table.column(name)
        if pyarrow.types.is_integer(column.type):
            continue
        infinite = np.isinf(as_numbers(column, name))
        if infinite.any():
            raise nonfinite_error("the table", "infinity", start + int(np.argmax(infinite)), f"column {name!r}")


def _drawn(rows: int, start: int, share: float) -> Any:
    """Return which rows are in the sample, a mask of Arrow: by a hash of their numbers (SplitMix64)."""
    import pyarrow

    with np.errstate(over="ignore"):
        hashes = (np.arange(start + 1, start + rows + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes ^= hashes >> np.uint64(31)
    return pyarrow.array((hashes >> np.uint64(11)).astype(np.float64) / 2.0**53 < share)


def describe(total: PartSummary, location: str, scaling: str, unknown: str) -> TableDefinition:
    """Return the definition of the columns that a summary of all rows tells of."""
    import pyarrow

    sample = pyarrow.concat_tables(total.samples, promote_options="permissive")
    confs: list[TableColumnConf] = []
    for name, kind in total.kinds.items():
        learnt = list(_learn_column(name, kind, total, sample))
        if not learnt:
            what = "no value" if total.missing[name] == total.rows else "one value"
            logger.warning("%s: column %r has %s in all records; it is left out", location, name, what)
        confs += learnt
    if not confs:
        raise UserError(f"{location}: each column has one value in all records, so there is nothing to learn from")
    return TableDefinition(column=confs, scaling=scaling, unknown=unknown)


def _learn_column(name: str, kind: str, total: PartSummary, sample: Any) -> Iterable[TableColumnConf]:
    """Yield what a column is, or each part of a date that differs between records; nothing for one of one value."""
    missing = total.missing[name]
    if kind == "category":
        counts = total.counts[name]
        least = 1 + total.rows // RARE
        known = sorted((text for text in counts if counts[text] >= least), key=lambda text: (-counts[text], text))
        if len(counts) + bool(missing) > 1:
            yield TableColumnConf(name=name, kind=kind, category=known[:MOST_CATEGORIES], missing=missing)
    elif kind == "date":
        yield from _learn_numbers(
            name, missing, {part: date_part(sample.column(name), name, part) for part in PARTS}, kind
        )
    elif kind == "number":
        yield from _learn_numbers(name, missing, {"": as_numbers(sample.column(name), name)}, kind)
    elif kind == "boolean":
        values = np.unique(as_numbers(sample.column(name), name))
        if len(values[~np.isnan(values)]) + bool(missing) > 1:
            yield TableColumnConf(name=name, kind=kind, missing=missing)


def _learn_numbers(name: str, missing: int, numbers: dict[str, np.ndarray], kind: str) -> Iterable[TableColumnConf]:
    """Yield what the numbers of a column are, by the part of a date, where they differ."""
    for part, values in numbers.items():
        values = values[~np.isnan(values)]
        if len(values) and (values.min() < values.max() or missing):
            quantiles = [float(f"{value:.9g}") for value in np.quantile(values, np.linspace(0, 1, QUANTILES))]
            yield TableColumnConf(
                name=name, kind=kind, part=part, quantile=quantiles, missing=missing,
                mean=float(values.mean()), deviation=float(values.std()),
            )  # fmt: skip
