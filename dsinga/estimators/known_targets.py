"""Missing targets of a Regressor (NaN): weights of 0 remove them from the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_array

from dsinga.base.errors import UserError
from dsinga.estimators.lazy import compute
from dsinga.estimators.records import TrainingSet

FILL = 1.0  # in place of missing targets: a number that every distribution supports


NOT_SCORED = "y has NaN, and a score needs every target; leave such records out, or score each column where it is known"


def fill_missing(y: Any) -> tuple[Any, np.ndarray | None]:
    """Replace NaN among several targets (n, k) by a number; return them and the mask (n, k) of NaN.

    Other targets are returned unchanged with None.
    """
    if issparse(y) or len(y.shape if hasattr(y, "shape") else np.asarray(y).shape) != 2:
        return y, None
    numbers = check_array(y, dtype="numeric", ensure_all_finite="allow-nan", input_name="y")
    if numbers.dtype.kind != "f" or numbers.shape[1] == 1 or not (mask := np.isnan(numbers)).any():
        return y, None
    return np.where(mask, FILL, numbers), mask


def weigh_known_targets(records: TrainingSet, client: Any) -> TrainingSet:
    """Give NaN among several targets a weight of 0 and a number, so that the loss ignores them."""
    y, weights = records.y, records.weights
    if y.ndim != 2 or y.shape[1] == 1 or y.dtype.kind != "f":
        return records
    known = ~np.isnan(y)
    all_known, any_known = compute((known.all(), known.any()), client)
    if all_known:
        return records
    if not any_known:
        raise UserError("y has no number, only NaN; give records of which some targets are known")
    weights = known.astype(np.float64) if weights is None else known * weights[:, None]
    return records._replace(y=np.where(known, y, FILL), weights=weights)


def check_known_targets(weights: Any, names: Sequence[Any] | None, client: Any) -> None:
    """Raise UserError if a column of targets has no number to train on."""
    if weights is None or weights.ndim == 1:
        return
    for column, is_known in enumerate(compute((weights > 0).any(axis=0), client)):
        if not is_known:
            name = column if names is None else repr(names[column])
            raise UserError(
                f"column {name} of y has no number among the {len(weights)} records to train on, only NaN; leave the "
                "column out, or give records that have it"
            )
