"""Retrieval: rank the rows of a database by their distance from queries, and measure how good the rankings are.

A row is relevant to a query if it has the query's label. The measures are those of N. Rasiwasia et al., A new approach
to cross-modal multimedia retrieval, ACM Multimedia 2010.
"""

from dsinga.retrieval.ranking import (
    DISTANCES,
    average_precision,
    chance,
    compare_stores,
    mean_average_precision,
    nearest,
    precision_at,
    precision_at_recall,
    ranked_relevance,
)

__all__ = [
    "DISTANCES",
    "average_precision",
    "chance",
    "compare_stores",
    "mean_average_precision",
    "nearest",
    "precision_at",
    "precision_at_recall",
    "ranked_relevance",
]
