"""Reports chunks of zarr arrays that are not stored and are read as the fill value, in the log or as an error."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr
from zarr.core.sync import sync
from zarr.storage import LocalStore

from dsinga.base.errors import UserError
from dsinga.base.locations import join
from dsinga.base.redaction import redact
from dsinga.data.filesystem import exists, is_file, is_references
from dsinga.data.stores.checked_files import ReadingStore
from dsinga.data.stores.chunk_files import axis_parts, location_of

logger = logging.getLogger(__name__)


class MissingChunks:
    """Finds the chunks of an array that are not stored, when rows of only the fill value were read.

    Zarr leaves out chunks that have only the fill value, so that a missing one may be right: the log says it once. It
    is refused where the array has no fill value, and where something else than a file is in its place.

    Args:
        array: the array.
        is_label: whether the rows are labels, whole chunks of which often have the fill value 0.
    """

    def __init__(self, array: zarr.Array, is_label: bool = False):
        self._array = array
        self._level = logging.INFO if is_label else logging.WARNING
        self._chunks = array.shards or array.chunks
        self.count = 0  # of missing chunks that were found

    def check(self, rows: np.ndarray, starts: Sequence[int]) -> None:
        """Raise UserError if a chunk of ``rows`` is missing where the array must have it; log other missing chunks.

        ``starts`` has the first row, and the first point along each axis; 0 by default.
        """
        if rows.dtype.kind not in "biuf":
            return
        fill = self._array.fill_value
        fill = rows.dtype.type(0 if fill is None else fill)
        starts = [*starts, *[0] * (rows.ndim - len(starts))]
        axes = [
            axis_parts(slice(start, start + size), range(0, start + size, chunk))
            for start, size, chunk in zip(starts, rows.shape, self._chunks, strict=True)
        ]
        for part in itertools.product(*axes):
            numbers = rows[tuple(axis.place for axis in part)]
            if numbers.size and _is_equal(numbers.flat[0], fill) and _is_equal(numbers, fill).all():
                self._check_chunk(tuple(axis.number for axis in part))

    def _check_chunk(self, index: tuple[int, ...]) -> None:
        array, location = self._array, location_of(self._array)
        key = join(array.path, array.metadata.encode_chunk_key(index))
        has_path = isinstance(array.store, (LocalStore, ReadingStore)) and not is_references(location)
        if is_file(join(location, key)) if has_path else sync(array.store.exists(key)):
            return
        what = f"{redact(location)}: chunk {key} of {array.path or os.path.basename(location)!r}"
        remedy = "write the array again, or put the chunk back"
        if has_path and exists(join(location, key)):
            raise UserError(f"{what} is not a file; {remedy}")
        if array.fill_value is None:
            raise UserError(f"{what} is missing; {remedy}")
        self.count += 1
        if self.count == 1:
            logger.log(self._level, f"{what} is not stored, so its numbers are the fill value {array.fill_value}")


def _is_equal(numbers: Any, fill: Any) -> Any:
    """Return whether numbers equal the fill value, which may be NaN."""
    return np.isnan(numbers) if fill != fill else numbers == fill


class CheckedArray:
    """A zarr array that reports missing chunks by :class:`MissingChunks` when Dask reads it in the tasks of a graph."""

    def __init__(self, array: zarr.Array, is_label: bool = False):
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self._array, self._missing = array, MissingChunks(array, is_label)

    def __getitem__(self, index: Any) -> np.ndarray:
        parts = index if isinstance(index, tuple) else (index,)
        boxes, inner = [], []
        for part, size in zip([*parts, *[slice(None)] * (self.ndim - len(parts))], self.shape, strict=True):
            points: Any = range(size)[part] if isinstance(part, slice) else np.asarray(part) % size
            ends = sorted([points[0], points[-1]]) if isinstance(part, slice) and points else [0, -1]
            low, high = ends if isinstance(part, slice) else (points.min(), points.max())
            boxes.append(slice(int(low), int(high) + 1))
            inner.append(slice(None, None, part.step) if isinstance(part, slice) else points - low)
        numbers = np.asarray(self._array[tuple(boxes)])
        self._missing.check(numbers, [box.start for box in boxes])
        return numbers[tuple(inner)]
