"""Learns what each column of a data frame contains, in one pass over its parts."""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import numpy as np

from dsinga.addons.tables.definition import PARTS, TableColumnConf, TableDefinition
from dsinga.addons.tables.frames import Frame
from dsinga.addons.tables.summary import MOST_NUMBERS, ColumnSummary, PartSummary, merge, summarise
from dsinga.addons.tables.values import WORDS, Dates, Indexed
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest_or_listed
from dsinga.data.array_kinds import check_columns, is_number

logger = logging.getLogger(__name__)

SAMPLE_ROWS = 100_000  # for quantiles
QUANTILES = 257  # at steps of 1/256
MOST_CATEGORIES = 50_000  # the most frequent ones; others count as unknown
SHARE_OF_KNOWN, MOST_NEEDED = 400, 100  # a category is known from one record in 400 on, or from 100 records on
MOST_CLASSES = 10_000
MOST_KEPT = 600_000  # quantiles and categories of all columns, which a job has room for
LONGEST_TEXT = 1000  # characters of a category, which a job has room for, escapes included
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")
MOST_DATES = 0.9  # share of different texts from which on a column is said to have dates
TINY = 1e-200  # smaller numbers count as 0, so that no scale is infinite

DateParts = Sequence[str] | Mapping[str, Sequence[str]]


def learn(
    frame: Frame,
    names: Sequence[str],
    label: str | None = None,
    *,
    categories: Sequence[str] = (),
    dates: DateParts = (),
    scaling: str = "quantile",
    unknown: str = "missing",
) -> TableDefinition:
    """Learn the definition of a frame's columns and labels; arguments as in :func:`.records.table`.

    The frame is read once; quantiles come from a sample of some 100,000 rows, chosen by row number.
    """
    check_columns((*names, *categories, *(dates if isinstance(dates, Mapping) else ())), frame.names, "the table")
    for part in chain.from_iterable(dates.values() if isinstance(dates, Mapping) else [dates]):
        if part not in PARTS:
            raise UserError(f"dates has the part {part!r}{nearest_or_listed(part, PARTS, 'these are')}")
    settings = TableDefinition(scaling=scaling, unknown=unknown)
    for fault in settings.all_faults():
        raise settings.error(*fault)
    if not len(frame):
        raise UserError(f"{frame.location} has no records")
    read = [*names, *([] if label is None else [label])]
    share = min(1.0, SAMPLE_ROWS / len(frame))
    total = frame.reduce(read, partial(summarise, categories=frozenset(categories), share=share), merge)
    learner = ColumnLearner(total, dates, unknown == "error")
    confs = [conf.replace(zone=total.columns[name].zone) for name in names for conf in learner.describe(name)]
    if frame.index:
        learner.left_out["the index of a data frame"] = [*frame.index]
    for reason, left_out in learner.left_out.items():
        logger.warning("%s: columns left out, %s: %s", frame.location, reason, listed(left_out))
    if not confs:
        raise UserError(f"{frame.location}: no column has values that differ and recur, so nothing can be learnt")
    if sum(len(conf.quantile) + len(conf.category) for conf in confs) > MOST_KEPT:
        raise UserError(
            f"{frame.location} has {len(names)} columns with more than {MOST_KEPT:,} quantiles and categories, too "
            "many for a job; leave columns out"
        )
    if label is None:
        return settings.replace(column=confs)
    return settings.replace(column=confs, label=label, classes=_classes(label, total.columns[label], total.rows))


def _classes(name: str, labels: ColumnSummary, rows: int) -> list[str]:
    """Return the sorted classes of labels that are texts or categories; [] for numbers."""
    if labels.missing:
        raise UserError(
            f"the table has no label in record {labels.first_missing} of column {name!r}; leave records without a "
            "label out"
        )
    if labels.kind == "date":
        raise UserError(f"column {name!r} of the table has dates, which are no labels; make numbers or texts of them")
    classes = sorted(labels.counts or ())
    if labels.kind != "number" and (labels.counts is None or len(classes) > MOST_CLASSES):
        raise UserError(f"column {name!r} of the table has more than {MOST_CLASSES} texts, too many for classes")
    if labels.low == labels.high or len(classes) == 1:
        label = f"{labels.low:g}" if labels.kind == "number" else repr(classes[0])
        raise UserError(f"column {name!r} has the label {label} in all {rows} records, so there is nothing to learn")
    return classes if labels.kind == "category" else []


@dataclass
class ColumnLearner:
    """Derives the definition of columns from the summary of all rows.

    Attributes:
        dates: the wanted parts of dates, for all columns or by column.
        keeps_all: whether all categories must be known.
        left_out: the columns without anything to learn, by reason.
    """

    total: PartSummary
    dates: DateParts
    keeps_all: bool
    left_out: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def describe(self, name: str) -> Iterator[TableColumnConf]:
        """Yield a column's definition, or one for each part of a date; nothing if nothing can be learnt."""
        column = self.total.columns[name]
        if isinstance(self.dates, Mapping) and name in self.dates and column.kind not in ("date", ""):
            raise UserError(f"dates names column {name!r}, which has {WORDS[column.kind]}; leave it out")
        differs = column.low + TINY < column.high or len(column.counts or ()) > 1
        differs |= column.kind == "category" and column.counts is None
        if not column.kind:
            self.left_out["no value in all records"].append(name)
        elif not differs and not column.missing:
            self.left_out["one value in all records"].append(name)
        elif column.kind == "category":
            yield from self._describe_category(name, column)
        elif column.kind == "boolean":
            yield TableColumnConf(name=name, kind="boolean", missing=column.missing)
        else:
            yield from self._describe_numbers(name, column)
            if column.kind == "number" and column.counts and 3 <= len(column.counts) <= MOST_NUMBERS:
                codes = self._conf_of_category(name, column)
                yield from [codes] if codes.category else []

    def _describe_category(self, name: str, column: ColumnSummary) -> Iterator[TableColumnConf]:
        counts = column.sampled_counts if column.counts is None else column.counts
        if column.has_texts and sum(map(bool, map(ISO_DATE.match, counts))) > MOST_DATES * len(counts):
            warning = "column %r has texts that are dates, such as %r; make dates of them by pandas.to_datetime"
            logger.warning(warning, name, next(filter(ISO_DATE.match, counts)))
        if max(counts.values(), default=0) < 2 and not column.missing:
            self.left_out["another text in each record"].append(name)
            return
        conf = self._conf_of_category(name, column)
        if not conf.category:
            self.left_out["no text in enough records"].append(name)
            return
        if column.has_texts and len(conf.category) > 2 and all(map(is_number, conf.category)):
            warning = "column %r has texts that are numbers, such as %r; make numbers of them, unless they are codes"
            logger.warning(warning, name, conf.category[0])
        yield conf

    def _conf_of_category(self, name: str, column: ColumnSummary) -> TableColumnConf:
        """Define a column of categories, the frequent ones only, most frequent first."""
        counts = column.sampled_counts if column.counts is None else column.counts
        rows = self.total.sampled if column.counts is None else self.total.rows
        least = 1 if self.keeps_all else min(MOST_NEEDED, -(-rows // SHARE_OF_KNOWN))
        known = [text for text in counts if counts[text] >= least and len(text) <= LONGEST_TEXT]
        known.sort(key=lambda text: (-counts[text], text))
        if self.keeps_all and (column.counts is None or len(known) > MOST_CATEGORIES):
            raise UserError(
                f"column {name!r} of the table has more than {MOST_CATEGORIES} categories, which cannot all be known; "
                'leave unknown="error" out, or the column'
            )
        return TableColumnConf(name=name, kind="category", category=known[:MOST_CATEGORIES], missing=column.missing)

    def _describe_numbers(self, name: str, column: ColumnSummary) -> Iterator[TableColumnConf]:
        sample = np.concatenate(column.sample).astype(np.float64)
        if not len(sample):
            sample = np.array([column.low, column.high])
        if column.kind == "number":
            yield _conf_of_numbers(name, "number", "", column.missing, sample, column.low, column.high)
            return
        import pyarrow

        times = Dates(pyarrow.array(sample.astype(np.int64), pyarrow.timestamp("us")), name)
        parts = self.dates.get(name, ()) if isinstance(self.dates, Mapping) else self.dates
        for part in parts or PARTS:
            values = times.part(part)
            numbers = values.whole() if isinstance(values, Indexed) else values
            low, high = float(numbers.min()), float(numbers.max())
            if low < high or column.missing:
                yield _conf_of_numbers(name, "date", part, column.missing, numbers, low, high)
            elif parts:
                self.left_out["one value in all records"].append(f"{name}.{part}")


def _conf_of_numbers(
    name: str, kind: str, part: str, missing: int, numbers: np.ndarray, low: float, high: float
) -> TableColumnConf:
    """Define a column of numbers; ``low`` and ``high`` are the ends over all rows."""
    if (size := max(abs(low), abs(high))) > float(np.finfo(np.float32).max):
        raise UserError(
            f"column {name!r} of the table has numbers as large as {size:.3g}, which no float32 holds; give their "
            "logarithm, or leave the column out"
        )
    quantiles = np.quantile(numbers, np.linspace(0, 1, QUANTILES))
    quantiles[0], quantiles[-1] = low, high
    quantiles[np.abs(quantiles) < TINY] = 0
    ratio = size / (high - low) if low < high else 1.0
    digits = 9 + int(math.log10(min(max(ratio, 1.0), 1e8)))  # numbers with a large offset keep their differences
    exponent = math.frexp(size)[1]  # squares of numbers of any size are no infinity then
    deviation = math.ldexp(float(np.ldexp(numbers, -exponent).std()), exponent)
    return TableColumnConf(
        name=name, kind=kind, part=part, quantile=[float(f"{value:.{digits}g}") for value in quantiles],
        mean=float(numbers.mean()), deviation=deviation, missing=missing,
    )  # fmt: skip
