"""Measures how much the score of a search's settings depends on each name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.search.setting import cell

# Numbers with more different values than this are compared in as many groups of equal size.
MOST_GROUPS = 5
LEAST_OF_A_GROUP = 4  # settings, on average, so that a group's mean says something


def importance(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """Return how much of the settings' ranks each name explains by itself, as shares, the highest first.

    Ranks follow the order of ``rows``, the best first; failed settings share the last ranks. Settings are grouped by a
    name's value, numbers of many values into up to five groups of equal size. The share is the variance between the
    groups, minus the average for random groups: epsilon squared (Kelley, "An unbiased correlation ratio measure",
    1935), at least 0. Interactions are in no share.
    """
    ranks = _ranks(rows)
    shares = {name: _explained(ranks, _groups([row.get(name) for row in rows])) for name in names}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _ranks(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the rank of each row, (N,) float64; ties share their mean rank."""
    ranks = np.arange(len(rows), dtype=float)
    scores = [None if row["score"] is None or row["score"] != row["score"] else row["score"] for row in rows]
    for _, places in itertools.groupby(range(len(rows)), key=lambda place: (scores[place], rows[place]["steps"])):
        equal = list(places)
        ranks[equal] = np.mean(equal)
    return ranks


def _groups(values: Sequence[Any]) -> np.ndarray:
    distinct, numbers = np.unique([cell(value) for value in values], return_inverse=True)
    are_numbers = all(isinstance(value, (int, float)) for value in values)
    if not are_numbers or len(distinct) <= MOST_GROUPS:
        return numbers
    count = min(MOST_GROUPS, max(2, len(values) // LEAST_OF_A_GROUP))
    bounds = np.quantile(np.asarray(values, float), np.linspace(0, 1, count + 1)[1:-1])
    return np.searchsorted(bounds, values, side="right")


def _explained(ranks: np.ndarray, groups: np.ndarray) -> float:
    """Return epsilon squared: the share of the variance of ranks between groups, corrected for their number."""
    members = [ranks[groups == group] for group in np.unique(groups)]
    count, total = len(ranks), float(np.sum((ranks - ranks.mean()) ** 2)) if len(ranks) else 0.0
    if total == 0 or len(members) in (1, count):
        return 0.0
    within = sum(float(np.sum((part - part.mean()) ** 2)) for part in members)
    return max(0.0, 1 - within / total * (count - 1) / (count - len(members)))
