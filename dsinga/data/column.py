"""Defines Column, the base class for reading data or labels block by block."""

from __future__ import annotations

import copy
import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from itertools import starmap
from typing import Any, ClassVar, Self

import numpy as np

from dsinga.base.arrays import warn_of_rounding
from dsinga.data.array_kinds import ArrayOrder
from dsinga.data.conversion import place_of
from dsinga.data.sendable import why_unsendable

PointRanges = tuple[tuple[int, int], ...]  # the points [start, stop) along each axis of a record


class Column(ABC):
    """The data, or the labels, of all records: an array (length, *shape) that is loaded in blocks of rows.

    Args:
        name: the name of the array in messages.
        length: number of rows.
        shape: shape of one row.
        dtype: dtype in which rows are returned: uint8, int32 or float32 for data, int64 or float32 for labels.
        block: rows that are loaded and, for data, shuffled together:
            :func:`dsinga.data.stores.store_format.block_rows`.
        key: identifies the contents in this process's cache; equal keys mean equal blocks. None makes a new one.

    Write one if no array library reads your format. :class:`dsinga.data.RecordSource` caches its blocks and refuses
    NaN. ``RecordSource(location, data, labels)`` takes two of them. With the blocks of :func:`block_rows`, training
    gives the same bits as from a store.

    >>> import numpy as np
    >>> from dsinga.data import Column
    >>> from dsinga.data.stores.store_format import block_rows
    >>> class RawFile(Column):
    ...     def __init__(self, path, shape):
    ...         self.rows = np.memmap(path, np.float32, "r").reshape(-1, *shape)
    ...         length = len(self.rows)
    ...         super().__init__("data", length, shape, np.float32, block_rows(length, self.rows[0].nbytes))
    ...         self.arguments = path, shape
    ...
    ...     def load(self, start, stop):
    ...         return np.array(self.rows[start:stop])
    ...
    ...     def __reduce__(self):  # what a worker needs to read by itself
    ...         return RawFile, self.arguments
    """

    # Whether rows are read from files or URLs, which every process that reads must be able to reach.
    from_files: ClassVar[bool] = True
    # Whether blocks stay in the cache after the last source that has them, for later sources with an equal key.
    stays_cached: ClassVar[bool] = False
    # The dimensions of an xarray object, and the labels along them; of a data frame its columns.
    order: ArrayOrder = ()
    # Whether ``load`` can read only some points of each row: those of ``index``.
    reads_regions: bool = False
    # Whether blocks are views of an array in memory, with any strides.
    in_memory: ClassVar[bool] = False
    # What else the user can do where numbers are missing, for the end of a message.
    remedy: str = ""
    # The numbers that mean "missing" in the array as stored, in place of which rows have NaN.
    missing_values: tuple[float, ...] = ()
    # The points of each row that are read; None for all.
    ranges: PointRanges | None = None
    # The row after each block, where blocks have unequal rows, at most ``block``; None where all have ``block``.
    ends: np.ndarray | None = None
    # All rows as one array in memory, in a dtype that casts safely to ``dtype``; None where they are read by blocks.
    whole: np.ndarray | None = None

    def __init__(
        self, name: str, length: int, shape: tuple[int, ...], dtype: Any, block: int, key: Hashable | None = None
    ):
        self.name, self.length, self.shape, self.dtype, self.block = name, length, shape, np.dtype(dtype), block
        self.key = uuid.uuid4().hex if key is None else key

    @abstractmethod
    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the rows ``start`` to ``stop`` (stop - start, *shape), in a dtype that casts safely to ``dtype``.

        Called from several threads; the cache keeps the array, read-only. Raises UserError if the rows cannot be read.
        """

    def blocks_of(self, rows: Any) -> Any:
        """Return which block a row, or each of several rows, is loaded with."""
        return rows // self.block if self.ends is None else self.ends.searchsorted(rows, side="right")

    def rows_of(self, block: int) -> tuple[int, int]:
        """Return the rows of a block as (first row, row after the last one)."""
        if self.ends is None:
            return block * self.block, min((block + 1) * self.block, self.length)
        return int(self.ends[block - 1]) if block else 0, int(self.ends[block])

    def in_region(self, ranges: PointRanges) -> Self | None:
        """Return a copy that reads only the points ``ranges`` of each row; None if impossible."""
        if not self.reads_regions:
            return None
        part = copy.copy(self)
        part.ranges, part.key = ranges, (self.key, ranges)
        part.shape = tuple(stop - start for start, stop in ranges)
        return part

    @property
    def index(self) -> tuple[slice, ...]:
        """The slices that cut the points to read out of a row."""
        return () if self.ranges is None else tuple(starmap(slice, self.ranges))

    def connect(self, client: Callable[[], Any]) -> None:  # noqa: B027  most columns need no client
        """Get ready to read in this process; ``client`` returns a Dask client for data that a cluster keeps."""

    def why_unsendable(self) -> str:
        """Return why the column cannot be sent to another process; "" if it can be."""
        return why_unsendable(self)

    def place(self, index: Sequence[int]) -> str:
        """Name the position of a number in a row, for messages: "column 'age'", or "index (0, 2, 5)"."""
        if len(index) == 1 and len(self.order) == 2 and self.order[1][1:]:
            return f"{self.order[1][0]} {self.order[1][1 + index[0]]!r}"
        if self.ranges is not None:
            index = [start + place for (start, _), place in zip(self.ranges, index, strict=True)]
        return place_of(tuple(index))

    def warn_of_rounding(self, rows: np.ndarray) -> None:
        """Log once that float32 cannot hold all stored integers exactly."""
        if self.dtype.kind == "f":
            warn_of_rounding(rows, self.key, self._named)

    def _named(self, index: tuple[int, ...]) -> str:
        place = self.place(index[1:])
        return f"{self.name!r}, {place}," if place else f"{self.name!r}"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory, in the dtype in which it is returned."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def sample_rows(self) -> int:
        """How many rows a check or a summary loads at once."""
        return min(self.block, self.length)

    @property
    def block_bytes(self) -> int:
        """Bytes of the largest block in memory."""
        return min(self.block, self.length) * self.row_bytes
