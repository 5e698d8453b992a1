"""Summarises the rows of one part of a data frame; merged summaries define its columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsinga.addons.tables.values import (
    WORDS,
    Dates,
    as_numbers,
    indexed_texts,
    is_missing,
    kind_of,
    zone_of,
    zone_words,
)
from dsinga.base.errors import UserError
from dsinga.data.conversion import nonfinite_error

MOST_COUNTED = 200_000  # different texts of a column that are counted in all rows; of more those in the sample are
MOST_NUMBERS = 31  # different whole numbers of a column that count as categories, too


@dataclass
class ColumnSummary:
    """The figures of a column over some rows, from which its definition is learnt; summaries can be added.

    Attributes:
        kind: the kind of its values; "" if all are missing.
        first_missing: the number of the first record without a value; None if all have one.
        counts: how often each category, boolean or few whole numbers occur; None if there are too many.
        has_texts: whether they are texts, not requested as categories.
        zone: the time zone of dates, "" without one; None for other values.
        low: the smallest number; for dates in microseconds.
        sample: the sampled numbers or times without missing ones, an array for each part.
    """

    kind: str = ""
    missing: int = 0
    first_missing: int | None = None
    counts: Counter[str] | None = field(default_factory=Counter)
    sampled_counts: Counter[str] = field(default_factory=Counter)
    has_texts: bool = False
    zone: str | None = None
    low: float = np.inf
    high: float = -np.inf
    sample: list[np.ndarray] = field(default_factory=list)

    def add(self, other: ColumnSummary) -> None:
        """Add the summary of following rows, of the same kind or without a value."""
        self.kind = self.kind or other.kind
        self.missing += other.missing
        self.first_missing = other.first_missing if self.first_missing is None else self.first_missing
        if self.counts is None or other.counts is None:
            self.counts = None
        else:
            self.counts.update(other.counts)
            self.counts = None if len(self.counts) > MOST_COUNTED else self.counts
        self.sampled_counts.update(other.sampled_counts)
        self.has_texts |= other.has_texts
        self.zone = other.zone if self.zone is None else self.zone
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.sample += other.sample


@dataclass
class PartSummary:
    """The figures of all columns over some rows of a frame; summaries can be added."""

    start: int
    rows: int
    sampled: int
    columns: dict[str, ColumnSummary]

    def add(self, other: PartSummary) -> None:
        """Add the summary of following rows."""
        for name, column in other.columns.items():
            known = self.columns[name]
            if column.kind and known.kind and column.kind != known.kind:
                raise UserError(
                    f"column {name!r} of the table has {WORDS[known.kind]} in one part and {WORDS[column.kind]} in the "
                    f"part from record {other.start}; give all parts one dtype"
                )
            if None not in (column.zone, known.zone) and column.zone != known.zone:
                raise UserError(
                    f"column {name!r} of the table has {zone_words(str(known.zone))} in one part and "
                    f"{zone_words(str(column.zone))} in the part from record {other.start}; give all parts one zone, "
                    f"as by frame[{name!r}].dt.tz_convert('UTC')"
                )
            known.add(column)
        self.rows += other.rows
        self.sampled += other.sampled


def merge(summaries: Iterable[PartSummary]) -> PartSummary:
    """Merge the summaries of consecutive parts."""
    total = None
    for summary in summaries:
        if total is None:  # not the first summary itself, which Dask may keep
            total = PartSummary(summary.start, 0, 0, {name: ColumnSummary() for name in summary.columns})
        total.add(summary)
    assert total is not None, "a frame has a part"
    return total


def summarise(table: Any, start: int, *, categories: Collection[str], share: float) -> PartSummary:
    """Summarise the rows of an Arrow table; the first has the number ``start``.

    A ``share`` of all rows is in the sample.
    """
    drawn = _drawn(table.num_rows, start, share)
    columns = {
        name: _summary_of(table.column(name), name, name in categories, start, drawn) for name in table.column_names
    }
    return PartSummary(start, table.num_rows, int(drawn.sum()), columns)


def _summary_of(column: Any, name: str, is_category: bool, start: int, drawn: np.ndarray) -> ColumnSummary:
    kind = kind_of(column.type)
    if kind is None:
        raise UserError(
            f"column {name!r} of the table has values of type {column.type}, which are no numbers, texts or dates; "
            "leave the column out"
        )
    missing = is_missing(column)
    first_missing = start + int(np.argmax(missing)) if missing.any() else None
    if missing.all():
        return ColumnSummary("", len(missing), first_missing)
    summary = ColumnSummary("category" if is_category else kind, int(missing.sum()), first_missing)
    summary.zone = zone_of(column.type)
    if summary.kind in ("category", "boolean"):
        summary.counts, summary.sampled_counts = _text_counts(column, name, drawn)
        summary.has_texts = not is_category and kind_of(getattr(column.type, "value_type", column.type)) == "category"
        return summary
    if kind == "date":
        values = Dates(column, name).microseconds
    else:
        values = as_numbers(column, name)
        if (bad := np.isinf(values)).any():
            raise nonfinite_error("the table", "infinity", start + int(np.argmax(bad)), f"column {name!r}")
    known = values[~missing] if summary.missing else values
    summary.low, summary.high = float(known.min()), float(known.max())
    summary.sample = [values[drawn & ~missing]]
    is_few = kind == "number" and _are_few_and_whole(known)
    summary.counts = _text_counts(column, name, drawn)[0] if is_few else None
    return summary


def _text_counts(column: Any, name: str, drawn: np.ndarray) -> tuple[Counter[str] | None, Counter[str]]:
    """Count texts in all rows, None for too many, and in the sample."""
    counts: Counter[str] = Counter()
    sampled: Counter[str] = Counter()
    start = 0
    for texts, places in indexed_texts(column, name):
        for counter, chosen in ((counts, places), (sampled, places[drawn[start : start + len(places)]])):
            numbers = np.bincount(chosen, minlength=len(texts))[: len(texts)]
            occurring = np.flatnonzero(numbers)
            for text, number in zip(texts.take(occurring).to_pylist(), numbers[occurring].tolist(), strict=True):
                counter[text] += number
        start += len(places)
    return (counts if len(counts) <= MOST_COUNTED else None), sampled


def _are_few_and_whole(numbers: np.ndarray) -> bool:
    parts = (np.unique(part) for part in (numbers[:1000], numbers))
    return all(len(distinct) <= MOST_NUMBERS and (distinct == np.trunc(distinct)).all() for distinct in parts)


def _drawn(rows: int, start: int, share: float) -> np.ndarray:
    """Choose the rows of the sample by a hash of their numbers (SplitMix64)."""
    with np.errstate(over="ignore"):
        hashes = np.arange(start + 1, start + rows + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes ^= hashes >> np.uint64(31)
    drawn: np.ndarray = (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53 < share
    return drawn
