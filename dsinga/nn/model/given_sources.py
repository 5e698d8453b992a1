"""Reads the labels of records that are a source, such as a table, and takes some rows of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest_or_listed
from dsinga.data import RecordSource
from dsinga.data.column import Column
from dsinga.data.sources.arrays import ArrayColumn


def factors_and_labels(class_weight: Any, source: RecordSource) -> tuple[Any, np.ndarray | None]:
    """Return factors by the code of a class where they are by its name, and all labels of the source.

    Labels are None unless there is one for each record. Raises UserError for a name of no class.
    """
    if not source.has_labels or source.label_shape:
        return class_weight, None
    if isinstance(class_weight, Mapping) and source.classes:
        codes: dict[Any, int] = {str(name): code for code, name in enumerate(source.classes)}
        for name in class_weight:
            if isinstance(name, str) and name not in codes:
                hint = nearest_or_listed(name, codes, "the classes are")
                raise UserError(f"class_weight has a factor for {name!r}, which is no class{hint}")
        class_weight = {codes.get(str(name), name): factor for name, factor in class_weight.items()}
    return class_weight, np.concatenate(list(source.label_parts()))


class PartOfRecords(RecordSource):
    """The records ``first`` to ``stop`` of a source whose columns are read by their rows, in the order of training."""

    def __init__(self, source: RecordSource, first: int, stop: int):
        parts = [_part(column, first, stop) for column in source.columns]
        super().__init__(source.location, *parts, classes=source.classes, vocabulary=source.vocabulary)
        self._job_settings = source.job_settings()

    def job_settings(self) -> dict[str, Any]:
        """Return those of all records."""
        return self._job_settings


class _RowRange(Column):
    """The rows ``first`` to ``stop`` of another column."""

    def __init__(self, column: Column, first: int, stop: int):
        block = min(column.block, stop - first)
        super().__init__(column.name, stop - first, column.shape, column.dtype, block)
        self._column, self._first = column, first
        self.order, self.remedy, self.missing_values = column.order, column.remedy, column.missing_values
        if column.ends is not None:
            self.ends = np.append(column.ends[(column.ends > first) & (column.ends < stop)], stop) - first

    @property
    def from_files(self) -> bool:  # type: ignore[override]  # one attribute of the class elsewhere
        """Whether the other column reads files."""
        return self._column.from_files

    def connect(self, client: Callable[[], Any]) -> None:
        """Prepare the other column to be read in this process."""
        self._column.connect(client)

    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the rows ``start`` to ``stop``."""
        return self._column.load(self._first + start, self._first + stop)


def _part(column: Column, first: int, stop: int) -> Column:
    """Return some rows of a column; of an array in memory a view."""
    if not isinstance(column, ArrayColumn):
        return _RowRange(column, first, stop)
    part = ArrayColumn(column.array[first:stop], column.name, column.labels)
    part.order = column.order
    return part
