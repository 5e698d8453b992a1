"""Measures of retrieval: how well features find rows of the same class."""

from typing import TYPE_CHECKING

from dsinga.base.components import lazy_names

if TYPE_CHECKING:
    from dsinga.addons.retrieval.ranking import (
        average_precision,
        chance,
        mean_average_precision,
        nearest,
        precision_at,
        precision_at_recall,
        ranked_relevance,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "average_precision", "chance", "mean_average_precision", "nearest",
    "precision_at", "precision_at_recall", "ranked_relevance",
]  # fmt: skip
