"""A climatology: what variables have at each point in a month, or on a day of the year, in the mean over years."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest
from dsinga.data.fields.dataset import open_dataset
from dsinga.data.fields.readers import VariableReader, turns_of
from dsinga.data.fields.time_gaps import date_index, is_date_index
from dsinga.data.sources.xarray_objects import missing_name

MONTH, DAY = "month", "day"
HARMONICS = 3  # waves a year of a climatology by day: NCAR's clmDayTLL and smthClmDayTLL keep two to four
BLOCK_NUMBERS = 1 << 22  # of a variable that are read together
TERM = "term"  # the dimension of a climatology by day: 1, then cosine and sine of 1, 2 and 3 waves a year


@dataclass(frozen=True, eq=False)
class FieldClimatology:
    """A mean by month, or a yearly cycle of three waves, of each variable at each point, in float64.

    Attributes:
        means: a Dataset whose first dimension is "month" (1 to 12), or "term" with the coefficients of a mean and of
            cosine and sine of 1, 2 and 3 waves a year. So calendars with other years can be compared.
    """

    means: Any

    @property
    def by(self) -> str:
        """What it is a function of: "month" or "day"."""
        return MONTH if MONTH in self.means.dims else DAY

    def at(self, times: Any) -> Any:
        """Return the climatology at the dates of a DataArray (n,), of any calendar, as a Dataset (n, ...) in float64.

        ``dataset - climatology.at(dataset.time)`` are the anomalies. Raises UserError for what is no date, and a month
        of which the climatology has no mean.
        """
        dates = dates_of(times)
        (dim,) = dates.dims
        variables = {name: ((dim, *array.dims[1:]), _at(array, dates, self.by)) for name, array in self.means.items()}
        coordinates = {name: array for name, array in self.means.coords.items() if name not in (MONTH, TERM)}
        return type(self.means)(variables, {**coordinates, dim: times})

    def at_points_of(self, dataset: Any, dim: str) -> FieldClimatology:
        """Return the climatology at the points of a Dataset, in its order; ``dim`` is its dimension of time.

        Raises UserError for a variable, or a point, that it lacks.
        """
        chosen = {}
        for name, array in dataset.data_vars.items():
            if name not in self.means:
                raise missing_name("variable", str(name), [str(known) for known in self.means], "climatology")
            mean = self.means[name]
            dims = [str(each) for each in array.dims if each != dim]
            if set(dims) != set(mean.dims[1:]):
                raise UserError(
                    f"the climatology of {name!r} has the dimensions {listed(mean.dims[1:])}, the data {listed(dims)}"
                )
            for each in dims:
                mean = _along(mean, dataset, each)
            chosen[name] = mean.transpose(mean.dims[0], *dims)
        return FieldClimatology(type(dataset)(chosen))


def _along(mean: Any, dataset: Any, dim: str) -> Any:
    """Return a mean at the points of a Dataset along a dimension."""
    here, known = dataset.indexes.get(dim), mean.indexes.get(dim)
    if here is None or known is None:
        is_same = mean.sizes[dim] == dataset.sizes[dim]
    else:
        places = known.get_indexer(here)
        if places.max(initial=-1) >= 0 and places.min() >= 0:
            is_same, mean = True, mean.isel({dim: places})
        else:
            is_same = False
    if not is_same:
        raise UserError(
            f"the climatology lacks points of {dim!r} that the data have; take it from data of the same grid"
        )
    return mean


def _at(mean: Any, dates: Any, by: str) -> np.ndarray:
    """Return a mean at dates (n,)."""
    if by == MONTH:
        months = np.asarray(dates.dt.month.values)
        return np.asarray(mean.values[months - 1])
    return np.tensordot(_waves(dates), mean.values, 1)


def _waves(dates: Any) -> np.ndarray:
    """Return 1, and cosine and sine of each wave a year, at dates: (n, terms) float64."""
    angles = turns_of(dates.values, "day of year")[:, None] * (2 * np.pi) * np.arange(1, HARMONICS + 1)
    waves = np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(len(angles), -1)
    return np.concatenate([np.ones((len(angles), 1)), waves], axis=1)


def dates_of(times: Any) -> Any:
    """Return a coordinate (n,) as a DataArray of dates; raise UserError where it has none."""
    index = date_index(times) if times.ndim == 1 else None
    if index is None or not is_date_index(index):
        raise UserError(f"a climatology is a function of dates, which the coordinate {times.name!r} does not have")
    return type(times)(index, dims=times.dims)


def field_climatology(dataset: Any, by: str = MONTH, *, dim: str = "time") -> FieldClimatology:
    """Return the climatology of the variables of a Dataset that lie along time, by month or by day of the year.

    "month" takes the mean of the dates of each month, "day" a mean and three waves a year by least squares. Means of
    dates are in float64, NaN is left out, and a point without any number stays NaN. Blocks of time whose size follows
    from the shapes alone are read in order, so that chunks change no bit.

    Args:
        dataset: an xarray Dataset or DataArray, or the path or URL of one; that of training, ``train.dataset``.
        by: "month" or "day".
        dim: the dimension of time.

    Raises:
        UserError: no variable lies along dates, or they do not have every month of the year.
    """
    if by not in (MONTH, DAY):
        raise UserError(f"by is 'month' or 'day', not {by!r}{nearest(str(by), (MONTH, DAY))}")
    opened, _ = open_dataset(dataset)
    names = [name for name, array in opened.data_vars.items() if dim in array.dims and array.dtype.kind in "fiub"]
    if not names or dim not in opened.coords:
        raise UserError(f"a climatology is taken of variables along dates, and none lies along {dim!r}; name it: dim=")
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
    """Yield the dates of blocks of time, and the numbers, (n, points) float32."""
    reader = VariableReader(array.variable, str(array.name))
    step = max(1, BLOCK_NUMBERS // max(1, array.size // len(dates)))
    others = tuple(slice(0, size) for size in reader.shape[1:])
    for start in range(0, len(dates), step):
        numbers = reader.read((slice(start, min(start + step, len(dates))), *others))
        yield dates[start : start + step], numbers.reshape(len(numbers), -1)


def _by_month(blocks: Iterator[tuple[Any, np.ndarray]], shape: tuple[int, ...]) -> np.ndarray:
    """Return the mean of each month, (12, *shape)."""
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
    """Return the coefficients of the waves that fit best, (terms, *shape); NaN where there are too few numbers."""
    terms = 1 + 2 * HARMONICS
    products: Any = np.zeros((1, terms, terms))  # of the waves: one for all points until some lack numbers
    sums, counts = np.zeros((terms, int(np.prod(shape)))), np.zeros(int(np.prod(shape)))
    for dates, numbers in blocks:
        waves, valid = _waves(dates), ~np.isnan(numbers)
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
