"""Measures of rankings: average precision, its mean over queries (MAP), precision at a rank and at a recall."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.retrieval.ranking import ranked_relevance


def average_precision(relevant: np.ndarray) -> np.ndarray:
    """Return the mean of the precisions at the ranks of relevant rows: (Q,) from (Q, N) by rank."""
    precision = relevant.cumsum(axis=1) / np.arange(1, relevant.shape[1] + 1)
    return (precision * relevant).sum(axis=1) / relevant.sum(axis=1)


def precision_at(relevant: np.ndarray, k: int) -> np.ndarray:
    """Return the share of relevant rows among the first ``k``: (Q,) from (Q, N) by rank."""
    return relevant[:, :k].mean(axis=1)


def precision_at_recall(relevant: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the highest precision of each query at any recall of at least each of ``levels``: (Q, levels)."""
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

    Arguments and errors are those of :func:`dsinga.retrieval.ranking.ranked_relevance`.
    """
    blocks = ranked_relevance(queries, database, query_labels, database_labels, distance)
    return float(np.concatenate([average_precision(relevant) for relevant in blocks]).mean())


def chance(query_labels: Any, database_labels: Any) -> float:
    """Return the expected MAP of random rankings.

    Of N rows, R are relevant. Rank r is relevant with probability R/N, and then on average (r - 1)·(R - 1)/(N - 1) of
    the r - 1 ranks before it are relevant.
    """
    query_labels, database_labels = np.asarray(query_labels), np.asarray(database_labels)
    count = len(database_labels)
    relevant = (database_labels == query_labels[:, None]).sum(axis=1)
    relevant = relevant[relevant > 0]
    inverse = (1 / np.arange(1, count + 1)).sum()  # Σ 1/r
    return float((inverse + (count - inverse) * (relevant - 1) / max(count - 1, 1)).mean() / count)
