"""Retrieval: rows of a database ranked by their distance from queries, and how good a ranking is.

What is found is relevant where it has the label of the query. The measures are those of N. Rasiwasia et al., A new
approach to cross-modal multimedia retrieval, ACM Multimedia 2010: average precision over all ranks, its mean over the
queries (MAP), and precision at given recall.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsinga.data import open_store
from dsinga.errors import UserError

DISTANCES = ("cosine", "euclidean")
BLOCK = 1 << 23  # distances held at a time: 64 MiB


def nearest(queries: Any, database: Any, k: int, distance: str = "cosine") -> np.ndarray:
    """Return the row numbers (Q, k) of the ``k`` rows of ``database`` nearest to each query, the nearest first.

    ``queries`` (Q, ...) and ``database`` (N, ...) are features with rows equally long. ``distance`` is "cosine" (a row
    of zeros is at a right angle to all) or "euclidean". Of rows equally far the first comes first.

    Raises:
        UserError: another distance, rows of other lengths, none of them, numbers that are not finite.
    """
    _check_count(k, len(database))
    return np.concatenate([order[:, :k] for _, order in _orders(queries, database, distance)])


def ranked_relevance(
    queries: Any, database: Any, query_labels: Any, database_labels: Any, distance: str = "cosine"
) -> Iterator[np.ndarray]:
    """Yield, for some queries after others, whether what stands at each rank is relevant: arrays (q, N) of bool.

    Labels (Q,) and (N,) are whole numbers. Queries whose label no row of the database has are left out: there is
    nothing to find. Raises UserError as :func:`nearest` does, and where the labels do not fit or no query is left.
    """
    queries, wanted, labels = np.asarray(queries), np.asarray(query_labels), np.asarray(database_labels)
    for name, rows, given in (("queries", queries, wanted), ("database", database, labels)):
        if given.shape != (len(rows),):
            raise UserError(f"the {name} are {len(rows)} rows, but their labels {given.shape}; give one a row")
    findable = np.isin(wanted, labels)
    if not findable.any():
        raise UserError("no query has a label that a row of the database has; are both of the same classes?")
    wanted = wanted[findable]
    for start, order in _orders(queries[findable], database, distance):
        yield labels[order] == wanted[start : start + len(order), None]


def average_precision(relevant: np.ndarray) -> np.ndarray:
    """Return the mean, over the ranks of what is relevant, of the precision up to there: (Q,) from (Q, N) by rank."""
    precision = relevant.cumsum(axis=1) / np.arange(1, relevant.shape[1] + 1)
    return (precision * relevant).sum(axis=1) / relevant.sum(axis=1)


def precision_at(relevant: np.ndarray, k: int) -> np.ndarray:
    """Return the share of what is relevant among the first ``k``: (Q,) from (Q, N) by rank."""
    return relevant[:, :k].mean(axis=1)


def precision_at_recall(relevant: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the highest precision of each query at any recall from each of ``levels`` on: (Q, levels)."""
    found = relevant.cumsum(axis=1)
    precision = found / np.arange(1, relevant.shape[1] + 1)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]  # at this rank or any later one
    wanted = np.maximum(np.ceil(np.asarray(levels) * found[:, -1:] - 1e-9), 1)
    ranks = [(found < wanted[:, [level]]).sum(axis=1) for level in range(wanted.shape[1])]
    return np.take_along_axis(best, np.stack(ranks, axis=1), axis=1)


def mean_average_precision(
    queries: Any, database: Any, query_labels: Any, database_labels: Any, distance: str = "cosine"
) -> float:
    """Return MAP, the mean average precision over all queries and all ranks, in [0, 1]; see ranked_relevance."""
    blocks = ranked_relevance(queries, database, query_labels, database_labels, distance)
    return float(np.concatenate([average_precision(relevant) for relevant in blocks]).mean())


def chance(query_labels: Any, database_labels: Any) -> float:
    """Return the MAP to expect of rankings at random.

    Of N rows, R of them relevant, rank r is relevant with probability R/N, and then of the r - 1 ranks before it on
    average (r - 1)·(R - 1)/(N - 1) are.
    """
    labels, wanted = np.asarray(database_labels), np.asarray(query_labels)
    count = len(labels)
    relevant = (labels == wanted[:, None]).sum(axis=1)
    relevant = relevant[relevant > 0]
    inverse = (1 / np.arange(1, count + 1)).sum()  # Σ 1/r
    return float((inverse + (count - inverse) * (relevant - 1) / max(count - 1, 1)).mean() / count)


def compare_stores(queries: str, database: str, distance: str = "cosine", k: int = 10) -> dict[str, float]:
    """Return MAP, the precision of the first ``k``, and the MAP of chance, for two stores of features with labels.

    Raises UserError, beside what :func:`ranked_relevance` does, where a store is missing, has no labels, or the
    database fewer than ``k`` rows.
    """
    (rows, wanted), (base, labels) = _read(queries), _read(database)
    _check_count(k, len(base))
    averages, firsts = [], []
    for relevant in ranked_relevance(rows, base, wanted, labels, distance):
        averages.append(average_precision(relevant))
        firsts.append(precision_at(relevant, k))
    return {
        "mean average precision": float(np.concatenate(averages).mean()),
        f"precision at {k}": float(np.concatenate(firsts).mean()),
        "MAP of chance": chance(wanted, labels),
    }


def _check_count(k: int, rows: int) -> None:
    if not 1 <= k <= rows:
        raise UserError(f"from a database of {rows} rows 1 to {rows} can be asked, not {k}")


def _read(location: str) -> tuple[np.ndarray, np.ndarray]:
    store = open_store(location)
    data, labels = store.read(range(len(store)))
    if labels is None:
        raise UserError(
            f"{location} has no labels, by which to tell what is relevant; use a job whose records have them"
        )
    return data, labels


def _orders(queries: Any, database: Any, distance: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (number of the first query, row numbers by distance (q, N)) for some queries after others."""
    if distance not in DISTANCES:
        raise UserError(f"there is no distance {distance!r}; choose {' or '.join(DISTANCES)}")
    queries, database = _rows("queries", queries), _rows("database", database)
    if queries.shape[1] != database.shape[1]:
        raise UserError(
            f"the queries are rows of {queries.shape[1]} numbers, the database's of {database.shape[1]}; "
            "give features of layers that are trained to be near each other"
        )
    if distance == "cosine":
        queries, database = _unit(queries), _unit(database)
        own = np.zeros(len(database))
    else:
        own = (database**2).sum(axis=1) / 2  # |q - x|²/2 is |x|²/2 - q·x and |q|²/2, the same for all x
    step = max(BLOCK // len(database), 1)
    for start in range(0, len(queries), step):
        yield start, np.argsort(own - queries[start : start + step] @ database.T, axis=1, kind="stable")


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
    """Return the rows at a length of 1, or of 0 where they have no direction."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths, lengths, 1)
