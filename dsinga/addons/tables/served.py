"""Converts a data frame to the arrays, one a column, that a server of the exported ONNX model accepts."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.addons.tables.columns import TableColumns
from dsinga.addons.tables.open_frame import open_frame
from dsinga.addons.tables.values import Dates, as_numbers, in_zone, indexed_texts
from dsinga.data.array_kinds import check_columns

NO_DATE = np.iinfo(np.int64).min  # of NaT, as numpy casts it


class ServedColumns(TableColumns):
    """The columns of a table in the form that a server receives."""

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each column's values for a server: booleans with gaps are numbers."""
        kinds: dict[str, str] = {}
        for conf in self.definition.column:
            kinds.setdefault(conf.name, "number" if conf.kind == "boolean" and conf.missing else conf.kind)
        return kinds | {conf.name: "number" for conf in self.numbers if not conf.part}

    def given(self, frame: Any) -> dict[str, np.ndarray]:
        """Convert each column of a data frame, or the one at a path, for a server: (rows, 1) by name."""
        opened = open_frame(frame)
        check_columns(self.kinds, opened.names, "the table", ", which the records of training have")
        tables = [opened.read(part, [*self.kinds]) for part in range(len(opened.lengths))]
        zones = {conf.name: conf.zone for conf in self.definition.column}
        values: dict[str, np.ndarray] = {}
        for name, kind in self.kinds.items():
            columns = [in_zone(table.column(name), name, zones[name]) for table in tables]
            values[name] = np.concatenate([_values(column, name, kind) for column in columns])[:, None]
        return values


def _values(column: Any, name: str, kind: str) -> np.ndarray:
    if kind == "date":
        dates = Dates(column, name)
        return np.where(column.is_null().to_numpy(zero_copy_only=False), NO_DATE, dates.microseconds)
    if kind == "category":
        texts = ([*known.to_pylist(), None] for known, _ in indexed_texts(column, name))
        rows = (places for _, places in indexed_texts(column, name))
        return np.array([known[row] or "" for known, places in zip(texts, rows, strict=True) for row in places], object)
    numbers = as_numbers(column, name, kind)
    return numbers if kind == "number" else np.nan_to_num(numbers).astype(np.bool_)
