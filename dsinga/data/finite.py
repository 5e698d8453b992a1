"""Finding NaN and infinity among numbers, and the error that says where they are."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dsinga.errors import UserError


class Nonfinite(NamedTuple):
    """The first number of an array (n, ...) that is NaN or infinite: its row, its position in the row, its name."""

    row: int
    position: tuple[int, ...]
    value: str


def find_nonfinite(rows: np.ndarray) -> Nonfinite | None:
    """Return the first number of ``rows`` (n, ...) that is NaN or infinite; None for integers, too."""
    if rows.dtype.kind != "f":
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if is_small_and_finite(rows):
            return None
        if np.isfinite(rows.sum()):  # a NaN or infinity makes the sum one, too; no array in between
            return None
    finite = np.isfinite(rows)
    if finite.all():  # the sum was too large
        return None
    row, *index = (int(position) for position in np.unravel_index(int(np.argmin(finite)), rows.shape))
    return Nonfinite(row, tuple(index), "NaN" if np.isnan(rows[(row, *index)]) else "infinity")


def is_small_and_finite(rows: np.ndarray) -> bool:
    """Whether a small array is finite by one product with itself, the quickest way to know; False means nothing."""
    return rows.size <= 4096 and rows.flags.c_contiguous and math.isfinite(np.dot(flat := rows.reshape(-1), flat))


def place_of(index: tuple[int, ...]) -> str:
    """Return where in a row a number is, for messages: "column 3", or "index (0, 2, 5)"; empty for a scalar row."""
    if len(index) < 2:
        return "".join(f"column {position}" for position in index)
    return f"index ({', '.join(map(str, index))})"


def nonfinite_error(what: str, value: str, record: int, place: str) -> UserError:
    """Return the error for ``what``, such as "numpy array: 'x'", that has NaN or infinity in ``record``."""
    where = f"record {record}, {place}" if place else f"record {record}"
    return UserError(f"{what} has {value} in {where}; leave such records out, or put a number in its place")
