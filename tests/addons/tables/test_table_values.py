"""The values of Arrow columns: parts of dates as pandas has them, few integers and texts as places, scaled numbers."""

import numpy as np
import pytest

from dsinga.addons.tables.columns import _interpolate
from dsinga.addons.tables.values import Dates, Indexed, indexed_numbers, indexed_texts

pandas = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")

IN_PANDAS = {"monthday": "day", "yearday": "day_of_year", "weekday": "day_of_week"}
FEW_DAYS = np.random.default_rng(0).integers(-86_400, 900_000, 500).astype("M8[s]").astype("M8[us]")
MANY_YEARS = np.arange("1890", "2260", dtype="M8[Y]").astype("M8[us]") + np.timedelta64(90_061, "s")


def part_of(column, part):
    """Return a part of each date of a column."""
    values = Dates(column, "x").part(part)
    return values.whole() if isinstance(values, Indexed) else values


@pytest.mark.parametrize("zone", [None, "America/New_York"])
@pytest.mark.parametrize("dates", [FEW_DAYS, MANY_YEARS])
def test_parts_of_dates_are_those_of_pandas(dates, zone):
    column = pa.array(dates, pa.timestamp("us", zone), mask=np.arange(len(dates)) % 3 == 0)
    series = column.to_pandas()
    for part in ("year", "month", "monthday", "yearday", "weekday", "hour", "minute", "second"):
        expected = getattr(series.dt, IN_PANDAS.get(part, part)).to_numpy(np.float64)
        np.testing.assert_array_equal(part_of(column, part), expected)
    local = series if zone is None else series.dt.tz_localize(None)
    np.testing.assert_allclose(part_of(column, "day"), (local - pandas.Timestamp(0)) / pandas.Timedelta("1D"))


def test_missing_dates_have_no_parts():
    assert np.isnan(part_of(pa.nulls(3), "year")).all()
    assert np.isnan(part_of(pa.chunked_array([pa.nulls(2, pa.date32())]), "day")).all()


def test_few_integers_are_places():
    column = pa.chunked_array([[3, -2, None], [5, 3, 3]] * 4)
    indexed = indexed_numbers(column, "x")
    assert isinstance(indexed, Indexed)
    np.testing.assert_array_equal(indexed.whole(), [3, -2, np.nan, 5, 3, 3] * 4)
    np.testing.assert_array_equal(indexed_numbers(pa.array([2**62, 0, None]), "x"), [2.0**62, 0, np.nan])


@pytest.mark.parametrize("as_codes", [False, True])
def test_texts_are_places(as_codes):
    column = pa.chunked_array([["b", None, "a"], ["c", "b", None]])
    column = column.dictionary_encode() if as_codes else column
    found = [[*texts.to_pylist(), None][place] for texts, places in indexed_texts(column, "x") for place in places]
    assert found == ["b", None, "a", "c", "b", None]


def test_sorted_numbers_are_interpolated_alike():
    random = np.random.default_rng(0)
    numbers, known = random.standard_normal(20_000), np.sort(random.standard_normal(50))
    values = random.standard_normal(50)
    np.testing.assert_array_equal(_interpolate(numbers, known, values), np.interp(numbers, known, values))
