"""Columns of records that are numpy arrays in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsinga.data.column import Column
from dsinga.data.conversion import as_labels, as_records, label_dtype, record_dtype
from dsinga.data.store_format import block_rows
from dsinga.data.zarr_column import MAX_BLOCK_BYTES
from dsinga.errors import UserError


class ArrayColumn(Column):
    """Records, or labels, that are a numpy array (length, *shape). Rows are converted when they are read.

    A pickle contains the whole array; where a source has such a column, send it once to each process.

    Args:
        array: the array, which nobody should change while it is read.
        name: the name by which messages call the array.
        labels: whether the array has labels, in their dtypes, rather than records.
        titles: the names of the columns of a table (length, columns), for messages.
    """

    from_files = False

    def __init__(self, array: np.ndarray, name: str, labels: bool = False, titles: Sequence[str] = ()):
        self.array, self.labels, self.titles = array, labels, tuple(titles)
        dtype = (label_dtype if labels else record_dtype)(array.dtype)
        block = block_rows(len(array), array[:1].size * dtype.itemsize)
        super().__init__(name, len(array), array.shape[1:], dtype, block)

    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the rows ``start`` to ``stop``: a view of the array if that has the right dtype, else a copy."""
        return convert(self.array[start:stop], self, self.labels)

    def why_unsendable(self) -> str:
        """Return "", since numbers can always be sent."""
        return ""

    def place(self, index: Sequence[int]) -> str:
        """Return the name of the table's column that ``index`` belongs to, or the position."""
        return title(self.titles, index) or super().place(index)


def title(titles: Sequence[str], index: Sequence[int]) -> str:
    """Return the words for a column of a table, empty if it has no name."""
    return f"column {titles[index[0]]!r}" if titles and len(index) == 1 else ""


def convert(rows: np.ndarray, column: Column, labels: bool = False) -> np.ndarray:
    """Return a view of rows that cast safely to the dtype of their column, else a copy in that dtype."""
    if rows.dtype.kind in "bui" and np.can_cast(rows.dtype, column.dtype):
        return rows[:]  # a view, since the cache makes it read-only
    try:
        return (as_labels if labels else as_records)(rows)[:]
    except UserError as error:
        raise UserError(f"{column.name!r}: {error}") from None


def check_block(column: Column, remedy: str) -> None:
    """Raise UserError if a block of a column has more bytes than reading can keep ten of in memory."""
    if column.block_bytes > MAX_BLOCK_BYTES:
        raise UserError(
            f"{column.name!r} has chunks of {column.block_bytes >> 20} MiB, and reading keeps up to ten in memory; at "
            f"most {MAX_BLOCK_BYTES >> 20} MiB do; {remedy}"
        )
