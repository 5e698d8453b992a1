"""Reports chunks that a zarr store lacks, where zarr returns the fill value in silence."""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.data.filesystem import exists, is_file, is_references
from dsinga.data.locations import join
from dsinga.data.stores.checked_files import ReadingStore
from dsinga.data.stores.chunk_files import axis_parts, location_of
from dsinga.data.stores.shard_index import ENTRY_BYTES, NOT_STORED, chunks_of_shard, shard_index_begin
from dsinga.data.stores.store_faults import check_array

logger = logging.getLogger(__name__)


class MissingChunks:
    """Checks whether numbers equal to the fill value come from chunks that are not stored.

    Zarr does not store chunks of only the fill value, so a missing chunk may be right: the log mentions it once. It is
    refused if the array has no fill value, or if its path is no file.
    """

    def __init__(self, array: zarr.Array, is_label: bool = False):
        self._array = array
        self._level = logging.INFO if is_label else logging.WARNING
        self._lacks: dict[str, np.ndarray | None] = {}  # by the keys of stored objects, the chunks that a shard lacks
        self._missing: set[str] = set()  # the chunks that were found

    @property
    def count(self) -> int:
        """How many missing chunks were found."""
        return len(self._missing)

    def check(self, numbers: np.ndarray, points: Sequence[slice | np.ndarray]) -> None:
        """Raise UserError for a missing chunk that must exist, and log others, by numbers that were read."""
        if numbers.dtype.kind not in "biuf":
            return
        fill = self._array.fill_value
        fill = numbers.dtype.type(0 if fill is None else fill)
        every = [*points, *(slice(0, size) for size in numbers.shape[len(points) :])]
        for part in itertools.product(*map(_runs, every, self._array.chunks)):
            run = numbers[tuple(place for _, place in part)]
            if run.size and _is_equal(run.flat[0], fill) and _is_equal(run, fill).all():
                self.check_chunk(tuple(number for number, _ in part))

    def check_chunk(self, index: tuple[int, ...]) -> None:
        """Raise UserError, or log, if the chunk with this number along each axis is not stored."""
        array, location = self._array, location_of(self._array)
        places = [divmod(number, count) for number, count in zip(index, chunks_of_shard(array), strict=True)]
        stored, inner = tuple(number for number, _ in places), tuple(place for _, place in places)
        key = join(array.path, array.metadata.encode_chunk_key(stored))
        what = f"{redact(location)}: chunk {key} of {array.path or os.path.basename(location)!r}"
        remedy = "write the array again, or put the chunk back"
        if key not in self._lacks and key not in self._missing:
            has_path = isinstance(array.store, (LocalStore, ReadingStore)) and not is_references(location)
            if is_file(join(location, key)) if has_path else sync(array.store.exists(key)):
                self._lacks[key] = None if array.shards is None else _lacking(array, key)
            elif has_path and exists(join(location, key)):
                raise UserError(f"{what} is not a file; {remedy}")
        if key in self._lacks:
            lacks = self._lacks[key]
            if lacks is None or not lacks[inner]:
                return
            key = f"{key} {inner}"
            what = what.replace(": chunk ", f": chunk {inner} of the shard ", 1)
        if array.fill_value is None:
            raise UserError(f"{what} is missing; {remedy}")
        self._missing.add(key)
        if self.count == 1:
            logger.log(self._level, f"{what} is not stored, so its numbers are the fill value {array.fill_value}")


def _runs(points: slice | np.ndarray, chunk: int) -> list[tuple[int, slice]]:
    """Group points of an axis by chunk: return each chunk's number, and the places of its points."""
    if isinstance(points, slice):
        return [(part.number, part.place) for part in axis_parts(points, range(0, points.stop, chunk))]
    numbers = points // chunk
    ends = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return [(int(numbers[low]), slice(low, high)) for low, high in itertools.pairwise(ends) if low < high]


def _lacking(array: zarr.Array, key: str) -> np.ndarray | None:
    """Return the chunks that a shard's index calls missing, as booleans; None for unknown encodings."""
    begin = shard_index_begin(array)
    if begin is None:
        return None
    sizes = chunks_of_shard(array)
    size = ENTRY_BYTES * math.prod(sizes)
    part = SuffixByteRequest(-begin) if begin else RangeByteRequest(0, size)
    index: Any = sync(array.store.get(key, default_buffer_prototype(), part))
    numbers = np.frombuffer(index.to_bytes()[:size], "<u8").reshape(*sizes, 2)
    lacks: np.ndarray = (numbers == NOT_STORED).all(axis=-1)
    return lacks


def _is_equal(numbers: Any, fill: Any) -> Any:
    return np.isnan(numbers) if fill != fill else numbers == fill


class CheckedArray:
    """A zarr array for Dask that reports chunks that are not stored when they are read."""

    def __init__(self, array: zarr.Array, is_label: bool = False):
        check_array(array)
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
        self._missing.check(numbers, boxes)
        return numbers[tuple(inner)]
