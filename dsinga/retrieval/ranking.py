"""Ranking the rows of a database by their distance from queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsinga.errors import UserError

DISTANCES = ("cosine", "euclidean")
BLOCK = 1 << 23  # distances computed at a time: 64 MiB


def nearest(queries: Any, database: Any, k: int, distance: str = "cosine") -> np.ndarray:
    """Return the row numbers (Q, k) of the ``k`` rows of ``database`` nearest to each query, the nearest first.

    ``queries`` (Q, ...) and ``database`` (N, ...) are features with rows of the same length. ``distance`` is "cosine"
    (a row of zeros is at a right angle to every other row) or "euclidean". Of equally near rows the first comes first.

    Raises:
        UserError: for an unknown distance, rows of different lengths, no rows, or numbers that are not finite.
    """
    check_count(k, len(database))
    return np.concatenate([order[:, :k] for _, order in _orders(queries, database, distance)])


def ranked_relevance(
    queries: Any, database: Any, query_labels: Any, database_labels: Any, distance: str = "cosine"
) -> Iterator[np.ndarray]:
    """Yield, for blocks of queries, whether the row at each rank is relevant: arrays (q, N) of bool.

    Labels (Q,) and (N,) are integers. Queries whose label no row of the database has are left out. Raises UserError as
    :func:`nearest` does, and where the number of labels is wrong or no query is left.
    """
    queries, query_labels, database_labels = np.asarray(queries), np.asarray(query_labels), np.asarray(database_labels)
    for name, rows, labels in (("queries", queries, query_labels), ("database", database, database_labels)):
        if labels.shape != (len(rows),):
            raise UserError(f"the {name} are {len(rows)} rows, but their labels {labels.shape}; give one a row")
    findable = np.isin(query_labels, database_labels)
    if not findable.any():
        raise UserError("no query has a label that a row of the database has; are both of the same classes?")
    query_labels = query_labels[findable]
    for start, order in _orders(queries[findable], database, distance):
        yield database_labels[order] == query_labels[start : start + len(order), None]


def check_count(k: int, rows: int) -> None:
    """Raise UserError where ``k`` is not a number of rows of a database with ``rows`` rows."""
    if not 1 <= k <= rows:
        raise UserError(f"k must be between 1 and the {rows} rows of the database, not {k}")


def _orders(queries: Any, database: Any, distance: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yield, for blocks of queries, the number of the first query and row numbers by distance (q, N)."""
    if distance not in DISTANCES:
        raise UserError(f"there is no distance {distance!r}; choose {' or '.join(DISTANCES)}")
    queries, database = _rows("queries", queries), _rows("database", database)
    if queries.shape[1] != database.shape[1]:
        raise UserError(
            f"the queries are rows of {queries.shape[1]} numbers, the database's of {database.shape[1]}; "
            "use features of layers with the same number of outputs"
        )
    if distance == "cosine":
        queries, database = _unit(queries), _unit(database)
        offsets = np.zeros(len(database))
    else:
        offsets = (database**2).sum(axis=1) / 2  # |q - x|²/2 is |x|²/2 - q·x plus |q|²/2, which is the same for all x
    step = max(BLOCK // len(database), 1)
    for start in range(0, len(queries), step):
        yield start, np.argsort(offsets - queries[start : start + step] @ database.T, axis=1, kind="stable")


def _rows(name: str, features: Any) -> np.ndarray:
    """Return features as (rows, n) float64."""
    rows = np.asarray(features, np.float64)
    if not rows.size:
        raise UserError(f"the {name} have no rows")
    if not np.isfinite(rows).all():
        row = np.argwhere(~np.isfinite(rows))[0][0]
        raise UserError(f"the {name} have numbers that are not finite, first in row {row}")
    return rows.reshape(len(rows), -1)


def _unit(rows: np.ndarray) -> np.ndarray:
    """Return the rows scaled to a length of 1; a row of zeros stays as it is."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths, lengths, 1)
