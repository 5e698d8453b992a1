"""Predictions of the members of an ensemble, joined along a dimension of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np

from dsinga.base.errors import UserError

MEMBER = "member"


def join_members(predictions: Sequence[Any]) -> Any:
    """Return lazy Datasets, or dask arrays, of members as one, whose first dimension is "member", from 1.

    Raises UserError where predictions have that dimension already.
    """
    first = predictions[0]
    if isinstance(first, da.Array):
        return da.stack(predictions)
    if MEMBER in first.dims or MEMBER in first.data_vars:
        raise UserError(
            f"predictions have {MEMBER!r} already, of the data or of a loss of an ensemble; rename that of "
            "the data, or leave members out"
        )
    joined = first.drop_vars(MEMBER, errors="ignore")  # of the data, which may be those of a single member
    for name, variable in first.data_vars.items():
        if variable.chunks is not None:  # others are grid mappings and bounds
            array = da.stack([prediction[name].data for prediction in predictions])
            joined[name] = ((MEMBER, *variable.dims), array, variable.attrs, variable.encoding)
    return joined.assign_coords({MEMBER: np.arange(1, len(predictions) + 1)})
