"""Coordinates at points beyond the data, where forecasts lie: they go on by the rule that their steps follow."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.base.errors import UserError

MOST_DATES = 1000  # of a coordinate, from which its frequency is told


def continued(coordinate: Any, points: np.ndarray, step: str = "") -> Any:
    """Return the coordinate of a dimension at points (n,), maybe before or beyond the data, as an xarray Variable.

    Its steps are equal, or those of months, years and the like; ``step`` takes their place where there are too few
    points to tell. Raises UserError where they follow no such rule; see :func:`goes_on`.
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
            values[place] = _beyond(coordinate.name, index, end, int(points[place]) - end, step)
    return xarray.Variable(coordinate.dims, values, coordinate.attrs)


def goes_on(coordinate: Any, step: str = "") -> bool:
    """Whether the steps of the coordinate of a dimension follow a rule by which it goes on beyond the data."""
    index = coordinate.to_index()
    return _step(index, step) is not None or _frequency(index, step) is not None


def step_text(coordinate: Any) -> str:
    """Return the step of a coordinate: a number, of dates a frequency as pandas has it; "" for none or unequal ones.

    Of numbers it is the mean step.
    """
    index = coordinate.to_index()
    if len(index) < 2 or not (_is_date(index) or index.dtype.kind in "iuf"):
        return ""
    if _is_date(index):
        return _frequency(index[:MOST_DATES]) or ""
    return f"{(float(index[-1]) - float(index[0])) / (len(index) - 1):.9g}"


def _beyond(name: Any, index: Any, end: int, steps: int, trained: str) -> Any:
    """Return the coordinate that lies so many steps beyond the end of an index."""
    step, frequency = _step(index, trained), _frequency(index, trained)
    if step is not None:
        return index[end] + steps * step
    if frequency is None:
        raise UserError(f"the coordinate {name!r} follows no rule by which it could go on beyond the data")
    return index[[end]].shift(steps, frequency)[0]


def _step(index: Any, trained: str = "") -> Any:
    """Return the step of an index, None where its steps differ or there is none."""
    if len(index) == 1 and trained and not _is_date(index) and index.dtype.kind in "iuf":
        return index.dtype.type(float(trained))
    has_steps = len(index) > 1 and (_is_date(index) or index.dtype.kind in "iuf")
    steps = index[1:] - index[:-1] if has_steps else []
    return steps[0] if len(steps) and (steps == steps[0]).all() else None


def _frequency(index: Any, trained: str = "") -> Any:
    """Return the frequency of dates, such as that of months, None where they have none."""
    import xarray

    infer: Any = xarray.infer_freq
    if len(index) < 3 and trained and _is_date(index):
        return trained
    return infer(index) if len(index) > 2 and _is_date(index) else None


def _is_date(index: Any) -> bool:
    """Whether an index has dates: datetime64, or those of cftime."""
    import xarray

    return isinstance(index, xarray.CFTimeIndex) or index.dtype.kind == "M"
