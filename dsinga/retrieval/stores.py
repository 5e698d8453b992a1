"""Comparing two stores of features, as ``dsinga retrieve`` does."""

from __future__ import annotations

import numpy as np

from dsinga.data import open_store
from dsinga.errors import UserError
from dsinga.retrieval.measures import average_precision, chance, precision_at
from dsinga.retrieval.ranking import check_count, ranked_relevance


def compare_stores(queries: str, database: str, distance: str = "cosine", k: int = 10) -> dict[str, float]:
    """Return MAP, the precision of the first ``k``, and the MAP of chance, for two stores of features with labels.

    Raises UserError where a store is missing or has no labels, where the database has fewer than ``k`` rows, and as
    :func:`dsinga.retrieval.ranking.ranked_relevance` does.
    """
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
