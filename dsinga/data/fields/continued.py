"""Coordinates at points beyond the data, where forecasts lie: they go on by the rule that their steps follow."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.errors import UserError


def continued(coordinate: Any, points: np.ndarray) -> Any:
    """Return the coordinate of a dimension at points (n,), maybe before or beyond the data, as an xarray Variable.

    Its steps are equal, or those of months, years and the like. Raises UserError where they follow no such rule.
    """
    import xarray

    (dim,) = coordinate.dims
    length = coordinate.sizes[dim]
    values = np.array(coordinate.variable.isel({dim: points.clip(0, length - 1)}).values)
    outside = np.flatnonzero((points < 0) | (points >= length))
    if len(outside):
        index = coordinate.to_index()
        for place in outside:
            end = 0 if points[place] < 0 else length - 1
            values[place] = _beyond(coordinate.name, index, end, int(points[place]) - end)
    return xarray.Variable(coordinate.dims, values, coordinate.attrs)


def _beyond(name: Any, index: Any, end: int, steps: int) -> Any:
    """Return the coordinate that lies so many steps beyond the end of an index."""
    import xarray

    differences = index[1:] - index[:-1] if len(index) > 1 else []
    if len(differences) and (differences == differences[0]).all():
        return index[end] + steps * differences[0]
    infer: Any = xarray.infer_freq
    frequency = infer(index) if len(index) > 2 and index.dtype.kind in "MO" else None
    if frequency is None:
        raise UserError(
            f"the prediction lies beyond the end of {name!r}, whose steps follow no rule by which it could go on; give "
            "the dataset without its last steps, or a regular coordinate"
        )
    return index[[end]].shift(steps, frequency)[0]
