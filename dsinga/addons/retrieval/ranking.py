"""Ranks the rows of a database by their distance from queries, and measures how good the rankings are.

A row is relevant to a query if it has the query's label. The measures are from N. Rasiwasia et al., A new approach to
cross-modal multimedia retrieval, ACM Multimedia 2010.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.data import open_store

DISTANCES = ("cosine", "euclidean")
BLOCK = 1 << 23  # distances computed at a time: 64 MiB


def nearest(queries: Any, database: Any, k: int, distance: str = "cosine") -> np.ndarray:
    """Return the row numbers (Q, k) of the ``k`` rows of ``database`` nearest to each query, nearest first.

    ``queries`` (Q, ...) and ``database`` (N, ...) are features with rows of equal length. ``distance`` is "cosine" (a
    row of zeros is at a right angle to all others) or "euclidean". Ties keep their order.

    Raises:
        UserError: for an unknown distance, unequal lengths, no rows, or numbers that are not finite.
    """
    check_count(k, len(database))
    return np.concatenate([order[:, :k] for _, order in _orders(queries, database, distance)])


def ranked_relevance(
    queries: Any, database: Any, query_labels: Any, database_labels: Any, distance: str = "cosine"
) -> Iterator[np.ndarray]:
    """Yield, for blocks of queries, whether the row at each rank is relevant: arrays (q, N) of bool.

    Labels (Q,) and (N,) are integers. Queries with labels that the database lacks are left out. Raises UserError like
    :func:`nearest`, and if no query is left.
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
    """Raise UserError unless ``k`` is between 1 and ``rows``."""
    if not 1 <= k <= rows:
        raise UserError(f"k must be between 1 and the {rows} rows of the database, not {k}")


def _orders(queries: Any, database: Any, distance: str) -> Iterator[tuple[int, np.ndarray]]:
    """Rank the database for blocks of queries; yield the first query's number and row numbers by distance (q, N)."""
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
    rows = np.asarray(features, np.float64)
    if not rows.size:
        raise UserError(f"the {name} have no rows")
    if not np.isfinite(rows).all():
        row = np.argwhere(~np.isfinite(rows))[0][0]
        raise UserError(f"the {name} have numbers that are not finite, first in row {row}")
    return rows.reshape(len(rows), -1)


def _unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths, lengths, 1)


def average_precision(relevant: np.ndarray) -> np.ndarray:
    """Return the average precision, the mean precision at the ranks of relevant rows: (Q,) from (Q, N) by rank."""
    precision = relevant.cumsum(axis=1) / np.arange(1, relevant.shape[1] + 1)
    return (precision * relevant).sum(axis=1) / relevant.sum(axis=1)


def precision_at(relevant: np.ndarray, k: int) -> np.ndarray:
    """Return the share of relevant rows among the first ``k``: (Q,) from (Q, N) by rank."""
    return relevant[:, :k].mean(axis=1)


def precision_at_recall(relevant: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return each query's highest precision at any recall of at least each of ``levels``: (Q, levels)."""
    counts = relevant.cumsum(axis=1)
    precision = counts / np.arange(1, relevant.shape[1] + 1)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]  # at this rank or any later one
    needed = np.maximum(np.ceil(np.asarray(levels) * counts[:, -1:] - 1e-9), 1)
    ranks = [(counts < needed[:, [level]]).sum(axis=1) for level in range(needed.shape[1])]
    return np.take_along_axis(best, np.stack(ranks, axis=1), axis=1)


def mean_average_precision(
    queries: Any, database: Any, query_labels: Any, database_labels: Any, distance: str = "cosine"
) -> float:
    """Return MAP, the mean average precision over all queries and all ranks, in [0, 1].

    For arguments and errors see :func:`ranked_relevance`.
    """
    blocks = ranked_relevance(queries, database, query_labels, database_labels, distance)
    return float(np.concatenate([average_precision(relevant) for relevant in blocks]).mean())


def chance(query_labels: Any, database_labels: Any) -> float:
    """Return the expected MAP (mean average precision) of random rankings.

    If R of N rows are relevant, rank r is with probability R/N; then on average (r - 1)·(R - 1)/(N - 1) earlier ranks
    are.
    """
    query_labels, database_labels = np.asarray(query_labels), np.asarray(database_labels)
    count = len(database_labels)
    relevant = (database_labels == query_labels[:, None]).sum(axis=1)
    relevant = relevant[relevant > 0]
    inverse = (1 / np.arange(1, count + 1)).sum()  # Σ 1/r
    return float((inverse + (count - inverse) * (relevant - 1) / max(count - 1, 1)).mean() / count)


def compare_stores(queries: str, database: str, distance: str = "cosine", k: int = 10) -> dict[str, float]:
    """Return MAP, the precision of the first ``k``, and the MAP of chance, for two stores of features with labels."""
    (query_rows, query_labels), (rows, labels) = _read(queries), _read(database)
    check_count(k, len(rows))
    averages, firsts = [], []
    for relevant in ranked_relevance(query_rows, rows, query_labels, labels, distance):
        averages.append(average_precision(relevant))
        firsts.append(precision_at(relevant, k))
    return {
        "mean average precision": float(np.concatenate(averages).mean()),
        f"precision at {k}": float(np.concatenate(firsts).mean()),
        "MAP of chance": chance(query_labels, labels),
    }


def _read(location: str) -> tuple[np.ndarray, np.ndarray]:
    store = open_store(location)
    data, labels = store.read(range(len(store)))
    if labels is None:
        raise UserError(f"{location} has no labels, which decide what is relevant; predict from records with labels")
    return data, labels


@register("command", "retrieve")
@click.command()
@click.argument("queries")
@click.argument("database")
@click.option(
    "--distance", type=click.Choice(["cosine", "euclidean"]), default="cosine", show_default=True,
    help="Distance between two rows.",
)  # fmt: skip
@click.option(
    "--at",
    default=10,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="K",
    help="K, the number of nearest rows for the precision.",
)
def retrieve(queries: str, database: str, distance: str, at: int) -> None:
    """Measure how well features find rows of the same class.

    Ranks the rows of the store DATABASE by their distance from each row of the store QUERIES. Prints the mean average
    precision and the precision at K. Both are zarr stores of features with labels, as dsinga predict writes them.
    """
    for name, value in compare_stores(queries, database, distance, at).items():
        click.echo(f"{name:24} {value:.4f}")
