"""A climatology: the mean of each variable at each point by month, or by day of the year."""

from __future__ import annotations

import base64
import functools
import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga.addons.fields.records.coordinates import date_index, is_date_index
from dsinga.addons.fields.records.longitudes import places_of
from dsinga.addons.fields.records.readers import turns_of
from dsinga.base.errors import UserError
from dsinga.base.registry import listed
from dsinga.base.regular_files import parse_json
from dsinga.data.array_kinds import is_data_array
from dsinga.data.sources.xarray_objects import missing_name

MONTH, DAY = "month", "day"
HARMONICS = 3  # waves a year of a climatology by day: NCAR's clmDayTLL and smthClmDayTLL keep two to four
TERM = "term"  # the dimension of a climatology by day: 1, then cosine and sine of 1, 2 and 3 waves a year


@dataclass(frozen=True, eq=False)
class FieldClimatology:
    """A mean by month, or a yearly cycle of three waves, of each variable at each point, float64.

    Attributes:
        means: a Dataset with the first dimension "month" (1 to 12), or "term": the coefficients of a mean, and of
            cosine and sine of 1, 2 and 3 waves a year.
    """

    means: Any

    def __post_init__(self) -> None:
        sizes = {MONTH: 12, TERM: 1 + 2 * HARMONICS}
        for name, array in self.means.items():
            first = str(array.dims[0]) if array.dims else ""
            if sizes.get(first) != (array.sizes[first] if first else 0):
                raise UserError(
                    f"the climatology of {name!r} has the dimensions {listed(array.dims)}; the first one is {MONTH!r} "
                    f"with 12 points, or {TERM!r} with {sizes[TERM]}"
                )

    @property
    def by(self) -> str:
        """Whether the means are by "month" or by "day" of the year."""
        return MONTH if MONTH in self.means.dims else DAY

    def at(self, times: Any) -> Any:
        """Return the climatology at a DataArray of dates (n,), of any calendar, as a Dataset (n, ...), float64.

        ``dataset - climatology.at(dataset.time)`` are the anomalies. Raises UserError for values that are no dates, and
        for a month without a mean.
        """
        dates = dates_of(times)
        (dim,) = dates.dims
        variables = {
            name: ((dim, *array.dims[1:]), values_at(array, dates, self.by)) for name, array in self.means.items()
        }
        coordinates = {name: array for name, array in self.means.coords.items() if name not in (MONTH, TERM)}
        return type(self.means)(variables, {**coordinates, dim: times})

    def at_points_of(self, dataset: Any, dim: str) -> FieldClimatology:
        """Return the climatology at a Dataset's points, in their order; ``dim`` is its time."""
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
                if (places := places_of(dataset, mean, each)) is None:
                    raise UserError(
                        f"the climatology lacks points of {each!r} that the data have; take it from data of the same "
                        "grid"
                    )
                mean = mean.isel({each: places})
            chosen[name] = mean.transpose(mean.dims[0], *dims)
        return FieldClimatology(type(dataset)(chosen))


def values_at(mean: Any, dates: Any, by: str) -> np.ndarray:
    """Evaluate a mean at dates (n,), as (n, ...) float64, with the same bits for any subset of points."""
    if by == MONTH:
        months = np.asarray(dates.dt.month.values)
        return np.asarray(mean.values[months - 1])
    total: Any = 0
    for waves, coefficients in zip(waves_at(dates).T, mean.values, strict=True):  # the same order for any part
        total = total + waves.reshape(-1, *(1,) * (mean.ndim - 1)) * coefficients
    return np.asarray(total)


def waves_at(dates: Any) -> np.ndarray:
    """Evaluate 1, and cosine and sine of each wave a year, at dates: (n, terms) float64."""
    angles = turns_of(dates.values, "day of year")[:, None] * (2 * np.pi) * np.arange(1, HARMONICS + 1)
    waves = np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(len(angles), -1)
    return np.concatenate([np.ones((len(angles), 1)), waves], axis=1)


def dates_of(times: Any) -> Any:
    """Return a coordinate (n,) as a DataArray of dates."""
    if not is_data_array(times):
        raise UserError(
            f"a climatology is taken at a DataArray of dates, such as dataset.time, not a {type(times).__name__}"
        )
    index = date_index(times) if times.ndim == 1 else None
    if index is None or not is_date_index(index):
        raise UserError(f"a climatology is a function of dates, which the coordinate {times.name!r} does not have")
    return type(times)(index, dims=times.dims)


# The number of the climatology that was subtracted, in the encoding of a variable, which arithmetic and files lose, and
# as two coordinates, which they keep: one along time, without which nothing is joined along it, and a scalar, which
# resampling of time keeps, too.
ANOMALY = "dsinga_departure"
MARKS = (ANOMALY, "dsinga_climatology")
MOST_NUMBERS = 1 << 22  # that a job keeps, in up to 21 MiB of text


def climatology_text(climatology: FieldClimatology) -> str:
    """Serialise a climatology as text, to keep it with a net."""
    means = climatology.means
    size = sum(array.size for array in means.values())
    if size > MOST_NUMBERS:
        raise UserError(
            f"the climatology has {size} numbers, and a net keeps at most {MOST_NUMBERS}; subtract it from the data: "
            "dataset - climatology.at(dataset.time), and add it to predictions"
        )
    parts = {str(name): _packed(array.variable, np.float32) for name, array in means.items()}
    points = {str(dim): _packed(means[dim].variable, means[dim].dtype) for dim in means.dims if dim in means.indexes}
    return json.dumps({"means": parts, "points": points})


def _packed(variable: Any, dtype: Any) -> dict[str, Any]:
    values = np.ascontiguousarray(variable.values, dtype)
    if values.dtype.kind in "OT" and all(isinstance(value, str) for value in values.flat):  # as files have texts
        values = values.astype(str)
    if values.dtype.kind not in "iufU":
        raise UserError(
            f"the climatology has coordinates of {values.dtype} along {variable.dims[0]!r}; give numbers or texts"
        )
    values = values.astype(values.dtype.newbyteorder("<"))
    data = base64.b64encode(zlib.compress(values.tobytes())).decode()
    return {"dims": list(map(str, variable.dims)), "shape": list(values.shape), "dtype": values.dtype.str, "data": data}


@functools.lru_cache(maxsize=4)
def climatology_of(text: str) -> FieldClimatology:
    """Read a climatology from its serialised text."""
    import xarray

    try:
        parts = parse_json(text)
        means, points = ({name: _unpacked(part) for name, part in parts[key].items()} for key in ("means", "points"))
        return FieldClimatology(xarray.Dataset(means, points))
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error) as error:
        raise UserError(f"the climatology of the windows is damaged ({error}); train again, or leave it out") from None


def _unpacked(part: dict[str, Any]) -> Any:
    dtype, shape = np.dtype(part["dtype"]), tuple(part["shape"])
    size = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind not in "iufU" or not 0 <= size <= 8 * MOST_NUMBERS:
        raise ValueError(f"{part['dtype']} {shape}")
    data = zlib.decompressobj().decompress(base64.b64decode(part["data"], validate=True), size + 1)
    return part["dims"], np.frombuffer(data, dtype).reshape(shape)
