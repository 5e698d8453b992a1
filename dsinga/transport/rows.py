"""Slices of which only some rows may travel, among others in one flat array: a head, then rows or the whole slice."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dsinga.ops import Array, SparseRows

WHOLE = -1  # in place of the number of rows


def encode(value: Array | SparseRows) -> list[Array]:
    """Return the float32 arrays that stand for a slice, one behind the other; numbers of rows are int32 in disguise."""
    if isinstance(value, SparseRows):
        return [_disguised([value.rows.size]), _disguised(value.rows), value.values.reshape(-1)]
    return [_disguised([WHOLE]), value]


def decode(flat: Array, at: int, size: int, width: int) -> tuple[Array | SparseRows, int]:
    """Return the slice, of ``size`` numbers in rows of ``width``, that begins at ``flat[at]``, and where it ends."""
    count, at = int(flat[at : at + 1].view(np.int32)[0]), at + 1
    if count == WHOLE:
        return flat[at : at + size], at + size
    rows = flat[at : at + count].view(np.int32).astype(np.int64)
    at, end = at + count, at + count * (1 + width)
    return SparseRows(rows, flat[at:end].reshape(count, width), (size // width, width)), end


def changed_rows(values: Mapping[int, Array], changed: Mapping[int, tuple[int, np.ndarray]]) -> dict[int, Array]:
    """Return slices by id, those of which it is known what has changed, as width and rows, as these rows alone."""
    found: dict[int, Array] = dict(values)
    for id, (width, rows) in changed.items():
        table = values[id].reshape(-1, width)
        found[id] = SparseRows(rows, table[rows], table.shape)
    return found


def _disguised(numbers: Array | list[int]) -> Array:
    return np.asarray(numbers, np.int32).view(np.float32)
