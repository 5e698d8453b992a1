"""Extrapolates coordinates and CF bounds beyond the data, by their step or date frequency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga.addons.fields.records.coordinates import frequency_of, in_months, is_date_index, months_in, shifted
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_number


@dataclass(frozen=True)
class StepRule:
    """How a coordinate continues beyond the data: a constant difference, or a frequency of dates.

    Attributes:
        step: the difference of neighbouring points; None if they follow ``frequency``.
        frequency: a pandas frequency, such as "MS", or months as in :func:`step_text`.
    """

    step: Any = None
    frequency: str = ""

    def after(self, index: Any, steps: int) -> Any:
        """Return the coordinate ``steps`` steps after the single one in ``index``, or before it if negative."""
        if self.step is not None:
            return index[0] + steps * self.step
        if months := months_in(self.frequency):
            return in_months(index[0], steps * months, self.frequency.partition(" months")[2])
        return shifted(index, steps, self.frequency)[0]


def extrapolated(coordinate: Any, points: np.ndarray, step: str = "", gaps: Any = ()) -> Any:
    """Return a dimension's coordinate at points (n,), in or beyond the data, as an xarray Variable.

    ``step`` is used if there are too few points to tell. Points next to a gap continue the steps on their side.
    """
    import xarray

    (dim,) = coordinate.dims
    length = coordinate.sizes[dim]
    values = np.array(coordinate.variable.isel({dim: points.clip(0, length - 1)}).values)
    for end, outside in ((0, np.flatnonzero(points < 0)), (length - 1, np.flatnonzero(points >= length))):
        if not len(outside):
            continue
        index = coordinate.to_index()
        rule = _rule(_run(index, gaps, end), step)
        if rule is None:
            raise UserError(f"the coordinate {coordinate.name!r} follows no rule by which it could go on")
        numbers, places = np.unique(points[outside], return_inverse=True)
        try:
            later = [rule.after(index[[end]], int(number) - end) for number in numbers]
        except (OverflowError, ValueError) as error:  # dates that the coordinate cannot have
            most = int(np.abs(numbers - end).max())
            raise UserError(f"the coordinate {coordinate.name!r} cannot go on for {most} points ({error})") from error
        for place, number in zip(outside, places, strict=True):
            values[place] = later[number]
    return xarray.Variable(coordinate.dims, values, coordinate.attrs)


def goes_on(coordinate: Any, step: str = "", gaps: Any = (), before: bool = False) -> bool:
    """Whether a coordinate's regular steps let it extend beyond its last point, or before its first.

    With ``gaps``, only the steps after the last gap, or before the first, count.
    """
    index = coordinate.to_index()
    return _rule(_run(index, gaps, 0 if before else len(index) - 1), step) is not None


def _run(index: Any, gaps: Any, end: int) -> Any:
    """Return the part of an index between the nearest gap and ``end``, its first or last point."""
    if not len(gaps):
        return index
    return index[: gaps[0] + 1] if end == 0 else index[gaps[-1] + 1 :]


def _rule(index: Any, trained: str) -> StepRule | None:
    """Find the step rule of an index, or of training if the index has too few points; None without one."""
    is_date = is_date_index(index)
    if not is_date and index.dtype.kind not in "iuf":
        return None
    if len(index) == 1 and not is_date and is_number(trained):
        return StepRule(index.dtype.type(float(trained)))
    steps = index[1:] - index[:-1] if len(index) > 1 else index[:0]  # of one date of cftime xarray takes no difference
    if len(steps) and (steps == steps[0]).all() and not (len(steps) == 1 and is_date and trained):
        return StepRule(steps[0])
    if is_date and (frequency := trained if len(index) < 3 and trained else frequency_of(index)):
        return StepRule(frequency=frequency)
    return None


def related_at(
    related: Mapping[str, Any], dataset: Any, points: Mapping[str, np.ndarray], gaps: Mapping[str, Any]
) -> dict[str, Any]:
    """Return CF grid mappings and bounds by name, at ``points`` of a Dataset by dimension."""
    variables = {}
    for name, variable in related.items():
        dims = [dim for dim in variable.dims if dim in dataset.dims]
        if any(dim not in points for dim in dims):
            continue
        inside = all(points[dim].min() >= 0 and points[dim].max() < dataset.sizes[dim] for dim in dims)
        if inside:
            variables[name] = variable.isel({dim: points[dim] for dim in dims})
        elif len(dims) == 1 and variable.dims[0] == dims[0] and variable.ndim == 2:
            columns = [_column(variable[:, side], points[dims[0]], gaps[dims[0]]) for side in range(variable.shape[1])]
            if all(column is not None for column in columns):
                values = np.stack([column.values for column in columns], axis=1)
                variables[name] = type(columns[0])(variable.dims, values, variable.attrs)
    return variables


def _column(variable: Any, points: np.ndarray, gaps: Any) -> Any:
    """Return one side of bounds at points, extrapolated beyond the data; None if it follows no rule there."""
    import xarray

    side = xarray.DataArray(variable.to_base_variable().load(), name="bounds")
    before, after = bool(points.min() < 0), bool(points.max() >= side.size)
    if before and not goes_on(side, gaps=gaps, before=True) or after and not goes_on(side, gaps=gaps):
        return None
    return extrapolated(side, points, gaps=gaps)
