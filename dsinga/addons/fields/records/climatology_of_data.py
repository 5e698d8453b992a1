"""Computes the climatology of a Dataset by month or day of the year, in blocks of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsinga.addons.fields.records.climatology import (
    DAY,
    HARMONICS,
    MARKS,
    MONTH,
    TERM,
    FieldClimatology,
    dates_of,
    waves_at,
)
from dsinga.addons.fields.records.dataset import open_dataset
from dsinga.addons.fields.records.readers import VariableReader
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest

BLOCK_NUMBERS = 1 << 22  # of a variable that are read together


@public
def field_climatology(dataset: Any, by: str = MONTH, *, dim: str = "time") -> FieldClimatology:
    """Return the climatology of a Dataset's variables along time, by month or day of the year.

    "month" is the mean of the dates in each month; "day" is a mean and three waves a year by least squares. Sums are in
    float64, NaN is left out, and a point without any number stays NaN. Blocks of time depend on shapes alone, so that
    chunks change no bit.

    Args:
        dataset: an xarray Dataset or DataArray, or the path or URL of one; usually the training data,
            ``train.dataset``.
        by: "month" or "day".
        dim: the dimension of time.

    Raises:
        UserError: no variable lies along dates, or a month of the year has no date.
    """
    if by not in (MONTH, DAY):
        raise UserError(f"by is 'month' or 'day', not {by!r}{nearest(str(by), (MONTH, DAY))}")
    opened, _ = open_dataset(dataset)
    names = [name for name, array in opened.data_vars.items() if dim in array.dims and array.dtype.kind in "fiub"]
    if not names or dim not in opened.coords:
        raise UserError(f"a climatology is taken of variables along dates, and none lies along {dim!r}; name it: dim=")
    if any(mark in opened.coords for mark in MARKS):
        raise UserError(
            "these data are anomalies from a climatology, or were made from some, and a climatology is taken from the "
            "data themselves, not from windows.dataset"
        )
    for name in (MONTH, TERM):
        if any(name in opened[variable].dims for variable in names):
            raise UserError(f"the data have a dimension {name!r}, which the climatology needs for itself; rename it")
    dates = dates_of(opened[dim])
    months = set(dates.dt.month.values.tolist())
    if missing := sorted(set(range(1, 13)) - months):
        raise UserError(
            f"a climatology needs dates of every month, and {dim!r} has none in month {missing[0]}; take it from years"
        )
    means = {name: _mean(opened[name], dates, by, dim) for name in names}
    return FieldClimatology(type(opened)(means))


def _mean(array: Any, dates: Any, by: str, dim: str) -> Any:
    kept = tuple(str(each) for each in array.dims if each != dim)
    moments = _by_month if by == MONTH else _by_day
    blocks = _blocks(array.transpose(dim, *kept), dates)
    values = moments(blocks, tuple(array.sizes[each] for each in kept))
    coordinates = {name: part for name, part in array.coords.items() if set(part.dims) <= set(kept)}
    first = {MONTH: np.arange(1, 13)} if by == MONTH else {}
    return type(array)(values, {**coordinates, **first}, (MONTH if by == MONTH else TERM, *kept), attrs=array.attrs)


def _blocks(array: Any, dates: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """Split an array into blocks of time; yield their dates and their numbers, (n, points) float32."""
    reader = VariableReader(array.variable, str(array.name))
    step = max(1, BLOCK_NUMBERS // max(1, array.size // len(dates)))
    others = tuple(slice(0, size) for size in reader.shape[1:])
    for start in range(0, len(dates), step):
        numbers = reader.read((slice(start, min(start + step, len(dates))), *others))
        yield dates[start : start + step], numbers.reshape(len(numbers), -1)


def _by_month(blocks: Iterator[tuple[Any, np.ndarray]], shape: tuple[int, ...]) -> np.ndarray:
    sums, counts = (np.zeros((12, int(np.prod(shape)))) for _ in range(2))
    for dates, numbers in blocks:
        months = np.asarray(dates.dt.month.values) - 1
        for month in np.unique(months):
            chosen = numbers[months == month].astype(np.float64)
            valid = ~np.isnan(chosen)
            sums[month] += np.where(valid, chosen, 0).sum(axis=0)
            counts[month] += valid.sum(axis=0)
    with np.errstate(invalid="ignore"):
        return (sums / counts).reshape(12, *shape)


def _by_day(blocks: Iterator[tuple[Any, np.ndarray]], shape: tuple[int, ...]) -> np.ndarray:
    """Fit the yearly waves; return coefficients (terms, *shape), NaN for too few numbers."""
    terms = 1 + 2 * HARMONICS
    products: Any = np.zeros((1, terms, terms))  # of the waves: one for all points until some lack numbers
    sums, counts = np.zeros((terms, int(np.prod(shape)))), np.zeros(int(np.prod(shape)))
    for dates, numbers in blocks:
        waves, valid = waves_at(dates), ~np.isnan(numbers)
        sums += waves.T @ np.where(valid, numbers, 0).astype(np.float64)
        counts += valid.sum(axis=0)
        if valid.all():
            products = products + (waves.T @ waves)[None]
        else:
            squares = (waves[:, :, None] * waves[:, None, :]).reshape(len(waves), -1)
            products = products + (valid.T.astype(np.float64) @ squares).reshape(-1, terms, terms)
    known = counts > terms
    coefficients = np.full(sums.shape, np.nan)
    matrices = np.broadcast_to(products, (sums.shape[1], terms, terms))[known] if len(products) > 1 else products
    coefficients[:, known] = np.linalg.solve(matrices, sums.T[known][:, :, None])[:, :, 0].T
    return coefficients.reshape(terms, *shape)
