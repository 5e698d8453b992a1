"""Records that a user's code makes, such as a dataset with random changes: each anew in each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.column import Column
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.arrays import column_dtype, convert

NAMES = ("x", "y", "sample_weight")  # of the parts of a record, the second and third of which may be missing
Parts = tuple[np.ndarray, ...]


class DrawnColumn(Column):
    """The records, labels or weights of batches that a user's code makes; ``part`` is their place in a batch."""

    from_files = False

    def __init__(self, batches: Any, part: int, first: np.ndarray):
        name = NAMES[part]
        shape = (1,) if part == 2 and first.ndim == 1 else first.shape[1:]  # as weights of records are elsewhere
        dtype = column_dtype(first, name, labels=part == 1)
        super().__init__(name, batches.length, shape, np.float32 if part == 2 else dtype, batches.block)
        self.batches, self.part = batches, part

    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the rows ``start`` to ``stop`` as they are in the first epoch."""
        return self.batches.read(np.arange(start, stop), 0, np.zeros(stop - start, np.int64))[self.part]

    def converted(self, rows: np.ndarray, what: str) -> np.ndarray:
        """Return rows (n, ...) in the dtype of the column. Raises UserError, which says ``what`` has other ones."""
        rows = rows[:, None] if self.part == 2 and rows.ndim == 1 else rows
        dtype = column_dtype(rows, self.name, labels=self.part == 1)
        if rows.shape[1:] != self.shape or not (self.dtype.kind == "f" or np.can_cast(dtype, self.dtype)):
            raise UserError(
                f"{what} has {self.name} of the shape {rows.shape[1:]} and the dtype {rows.dtype}, but the first has "
                f"{self.shape} and {self.dtype}; give all records one shape and one dtype"
            )
        rows = convert(rows, self, labels=self.part == 1).astype(self.dtype, copy=False)
        if self.part == 2 and (rows < 0).any():
            raise UserError(f"{what} has the sample_weight {rows.min():g}; give a number of at least 0")
        return rows


class DrawnRecords(RecordSource):
    """Records, with labels, that a user's code makes anew in each epoch, both in one call.

    Attributes:
        batches: what makes them, a :class:`.batch_sequences.Batches`.
        keeps_order: whether training reads them in their order.
        has_weights: whether they have weights that nobody reads yet.
    """

    _data: DrawnColumn

    def __init__(self, location: str, batches: Any, classes: Sequence[str] = (), keeps_order: bool = False):
        super().__init__(location, *batches.columns[:2], classes=classes)
        self.batches, self.keeps_order, self.has_weights = batches, keeps_order, len(batches.columns) == 3

    def split_weights(self) -> tuple[RecordSource, RecordSource]:
        """Return these records, and their weights as records of their own."""
        column = self.batches.columns[2]
        changes = {"_data": column, "_labels": None, "label_shape": (), "label_dtype": None, "has_weights": False}
        return self._changed(has_weights=False), self._changed(**changes, shape=column.shape, dtype=column.dtype)

    def draw(self, rows: Any, seed: int, epochs: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return records and labels as :meth:`read` does, as they are in the epochs (n,) of a run with this seed."""
        rows = np.asarray(rows, np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} are not all in the {len(self)} records")
        parts = self.batches.read(rows, seed, epochs)
        for column, array in zip(self.columns, parts[self._data.part :], strict=False):
            if not self.allows_nonfinite:
                self._check_finite(column, array, rows)
        return parts[self._data.part], None if self._labels is None else parts[1]

    def read(self, rows: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return records and labels as they are in the first epoch."""
        return self.draw(rows, 0, np.zeros(len(rows), np.int64))

    def read_labels(self, rows: Any) -> np.ndarray | None:
        """Return the labels of ``rows`` as they are in the first epoch, or None if the source has none."""
        return self.read(rows)[1]

    def end_epoch(self, epoch: int, seed: int) -> None:
        """Tell what makes the records that an epoch has been read."""
        if self._data.part == 0:  # once for records and weights
            self.batches.end_epoch(epoch, seed)

    def label_range(self) -> None:
        """Return None: labels are checked as they are read, since to make all of them may take long."""
        return
