"""Splits arrays in records of training and of validation, as Keras's ``validation_split`` does."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.sources.dask_arrays import in_chunks

Data = tuple[Any, Any, Any]  # records, labels and weights


def split_off(data: Data, share: float) -> tuple[Data, Data]:
    """Return the first of some records, and the last ones, a ``share`` of them; so of labels and weights.

    Of n records the first floor(n·(1 - share)) stay. Raises UserError for what is no array, and where nothing is left.
    """
    if not isinstance(share, numbers.Real) or isinstance(share, bool) or not 0 < share < 1:
        raise UserError(f"validation_split is a share of the records between 0 and 1, not {share!r}")
    if isinstance(data[0], tuple) and len(data[0]) == 2 and data[1] is None:
        data = (*data[0], data[2])
    length = _length(data[0])
    first = math.floor(length * (1 - float(share)))
    if not 0 < first < length:
        raise UserError(f"validation_split={share} of {length} records leaves none to train or to validate with")
    training, validation = (tuple(_part(each, part) for each in data) for part in (slice(first), slice(first, None)))
    return training, validation


def _length(data: Any) -> int:
    if isinstance(data, Mapping) and not hasattr(data, "iloc"):
        return _length(next(iter(data.values())))
    if isinstance(data, (list, tuple)) and len(data) and np.ndim(data[0]):
        return _length(data[0])
    if isinstance(data, (list, tuple)) or (hasattr(data, "shape") and len(data.shape)):
        return data.shape[0] if hasattr(data, "shape") else len(data)
    raise UserError(f"validation_split takes arrays, not {type(data).__name__}; give validation_data=(x, y)")


def _part(data: Any, rows: slice) -> Any:
    """Return some records of an array, or of each of several in a list or by name."""
    if data is None:
        return None
    _length(data)
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    if isinstance(data, Mapping):
        return {name: _part(each, rows) for name, each in data.items()}
    if isinstance(data, (list, tuple)) and len(data) and np.ndim(data[0]):
        return [_part(each, rows) for each in data]
    return in_chunks(data)[rows]
