"""Chunks that an array of a foreign zarr store lacks, for which zarr returns the fill value."""

from __future__ import annotations

import itertools
import logging
import os

import numpy as np
import zarr

from dsinga.data.filesystem import exists, is_file, join
from dsinga.errors import UserError
from dsinga.redaction import redact

logger = logging.getLogger(__name__)


class MissingChunks:
    """Finds the chunks of an array that are not stored, when rows that have the fill value only were read.

    Zarr leaves out chunks that have only the fill value, so that a missing one may be right: the log says it once. It
    is refused where the array has no fill value, and where something else than a file is in its place.

    Args:
        array: the array.
        location: path or URL of its store.
        is_label: whether the rows are labels, whole chunks of which often have the fill value 0.
    """

    def __init__(self, array: zarr.Array, location: str, is_label: bool):
        self._array, self._location = array, location
        self._level = logging.INFO if is_label else logging.WARNING
        self._chunks = array.shards or array.chunks
        self._said = False

    def check(self, rows: np.ndarray, start: int) -> None:
        """Raise UserError if a chunk of ``rows``, which begin at row ``start``, is missing and must not be."""
        fill = self._array.fill_value
        fill = rows.dtype.type(0 if fill is None else fill)
        counts = [range(-(-size // chunk)) for size, chunk in zip(rows.shape[1:], self._chunks[1:], strict=True)]
        first, last = start // self._chunks[0], (start + len(rows) - 1) // self._chunks[0]
        for index in itertools.product(range(first, last + 1), *counts):
            begins = [number * chunk for number, chunk in zip(index, self._chunks, strict=True)]
            ends = [begin + chunk for begin, chunk in zip(begins, self._chunks, strict=True)]
            begins[0], ends[0] = max(begins[0] - start, 0), ends[0] - start
            part = rows[tuple(slice(begin, end) for begin, end in zip(begins, ends, strict=True))]
            if part.size and part.flat[0] == fill and (part == fill).all():
                self._check_chunk(index)

    def _check_chunk(self, index: tuple[int, ...]) -> None:
        key = join(self._array.path, self._array.metadata.encode_chunk_key(index))
        if is_file(join(self._location, key)):
            return
        name = self._array.path or os.path.basename(self._location)
        remedy = "write the array again, or put the chunk back"
        if exists(join(self._location, key)):
            raise UserError(f"{self._location}: chunk {key} of {name!r} is not a file; {remedy}")
        if self._array.fill_value is None:
            raise UserError(f"{self._location}: chunk {key} of {name!r} is missing; {remedy}")
        if not self._said:
            self._said = True
            fill = self._array.fill_value
            text = f"{self._location}: chunk {key} of {name!r} is not stored, so its numbers are the fill value {fill}"
            logger.log(self._level, redact(text))
