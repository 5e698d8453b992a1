"""The message ``table { }`` of a job's store: how each column becomes numbers, as learnt in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsinga.addons.tables.values import WORDS
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest_or_listed, register
from dsinga.data.array_kinds import is_path, is_table
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.arrays import is_array
from dsinga.job.component import Fault, Settings, required, setting
from dsinga.job.definition import RecordsDefinition
from dsinga.job.limits import Natural, NonNegative
from dsinga.job.writer import lines

PARTS = ("day", "year", "month", "monthday", "yearday", "weekday", "hour", "minute", "second")
SCALINGS = ("quantile", "robust", "standard")


class TableColumnConf(Settings):
    """The kind, scaling and categories of one column of a data frame, or of one part of a date column."""

    name: str = required("the name of the column")
    kind: str = setting("number", 'what its values are: "number", "boolean", "category" or "date"')
    part: str = setting(
        "", 'of a date: "day" (days since 1970), or the year, month, monthday, yearday, weekday, hour, minute or second'
    )
    quantile: list[float] = setting(
        [], "the quantiles of its numbers in training at equal steps, from the smallest to the largest number"
    )
    mean: float = setting(0.0, "the mean of its numbers in training")
    deviation: NonNegative = setting(1.0, "their standard deviation")
    zone: str | None = setting(
        None, 'of dates, the time zone in which they are read; "" if they have none, by default each by its own'
    )
    category: list[str] = setting([], "its categories as texts, in the order of their codes 1, 2, ...")
    missing: Natural = setting(0, "how many of its values were missing in training; a flag tells of these")

    @property
    def median(self) -> float:
        """The median of its numbers in training."""
        return float(np.interp(0.5, np.linspace(0, 1, len(self.quantile)), self.quantile))

    def faults(self) -> Iterator[Fault | str]:
        """Yield an error for an invalid kind, part of a date, or quantiles."""
        for field, known in (("kind", tuple(WORDS)), ("part", PARTS if self.kind == "date" else ("",))):
            if (value := getattr(self, field)) not in known:
                hint = nearest_or_listed(value, known, "it is one of")
                yield Fault(f"column {self.name!r} has the {field} {value!r}{hint}", field)
        if self.kind in ("number", "date") and len(self.quantile) < 2:
            yield Fault(f"column {self.name!r} has {len(self.quantile)} quantiles; give at least 2", "quantile")
        if self.quantile != sorted(self.quantile):
            yield Fault(f"the quantiles of column {self.name!r} fall somewhere; give them in order", "quantile")


@register("message", "StoreConf.table")
class TableDefinition(RecordsDefinition):
    """How the columns of a data frame become records, to be applied by name to any other frame."""

    is_encoded = True

    column: list[TableColumnConf] = setting([], "the columns, in the order in which they become a record")
    label: str = setting("", "the column of labels; without it, labels are given separately")
    classes: list[str] = setting([], "the classes 0, 1, ... of labels that are no numbers, as texts")
    scaling: str = setting(
        "quantile",
        'how numbers are scaled: "quantile" (a normal distribution), "robust" (median and quartiles, smooth clip '
        'at 3), or "standard" (mean 0, deviation 1)',
    )
    unknown: str = setting("missing", 'what a new category counts as: "missing", or "error", which refuses it')

    def faults(self) -> Iterator[Fault | str]:
        """Yield an error for an unknown scaling, and for a column that is named twice."""
        for field, known in (("scaling", SCALINGS), ("unknown", ("missing", "error"))):
            if (value := getattr(self, field)) not in known:
                yield Fault(f"{field} is {value!r}{nearest_or_listed(value, known, 'it is one of')}", field)
        names = [(column.name, column.part, column.kind) for column in self.column]
        for name, *_ in {name for name in names if names.count(name) > 1}:
            yield Fault(f"the column {name!r} is there twice; leave one out", "column")

    @property
    def names(self) -> list[str]:
        """The distinct names of the columns that are read."""
        return list(dict.fromkeys(column.name for column in self.column))

    @property
    def coded_columns(self) -> list[str]:
        """The names of the columns that hold codes of categories."""
        return [column.name for column in self.column if column.kind == "category"]

    def takes(self, source: Any) -> bool:
        """Whether a source is a data frame or its path, maybe with labels, or such records."""
        if isinstance(source, RecordSource):
            return "table" in source.job_settings()
        frame = source[0] if isinstance(source, tuple) and len(source) == 2 else source
        return is_path(frame) or is_table(frame)

    def check_source(self, source: Any) -> None:
        """Raise UserError for an array: without column names, its columns could be in any order."""
        if is_array(source) and not is_table(source):
            raise UserError(
                f"the model was trained on a table; give a data frame with the columns {listed(self.names)}, not an "
                "array or a series, in which columns have no names; encoded records are given as "
                "dsinga.data.open_records(x)"
            )

    def open_records(self, layer: str, source: Any, has_labels: bool) -> Any:
        """Open a source that :meth:`takes` accepts as records of an input layer."""
        if isinstance(source, RecordSource):
            return source.in_training_order({"table": self})
        return super().open_records(layer, source, has_labels)

    def learnt(self) -> dict[str, str]:
        """Return what was learnt from the training data as text, for a resumed run to compare."""
        columns = [column.replace(zone=column.zone or None) for column in self.column]  # as earlier versions
        return {"columns of a table": "\n".join(lines([("table", self.replace(column=columns))]))}
