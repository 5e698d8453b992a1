"""The values of Arrow columns: parts of dates as pandas has them, few integers and texts as places, scaled numbers."""

import numpy as np
import pytest

import dsinga
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


# The scalings of numbers: scikit-learn's, and the formula of RealMLP.
pytest.importorskip("pyarrow")


def scaled(numbers, scaling, others=None):
    table = dsinga.table(pandas.DataFrame({"x": numbers}), scaling=scaling)
    if others is not None:
        table = dsinga.table(pandas.DataFrame({"x": others}), columns=table.definition)
    return table.read(np.arange(len(table)))[0][:, 0].astype(np.float64)


@pytest.fixture(scope="module")
def numbers():
    return np.random.default_rng(0).lognormal(3, 2, 5000)


def test_standard_is_that_of_scikit_learn(numbers):
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    expected = preprocessing.StandardScaler().fit_transform(numbers[:, None])[:, 0]
    np.testing.assert_allclose(scaled(numbers, "standard"), expected, rtol=1e-6, atol=1e-6)


def test_quantile_is_that_of_scikit_learn_but_at_the_ends(numbers):
    """scikit-learn maps the ends to +-5.2; here they are half a step of 1/257 from them, so that none lies apart."""
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    peer = preprocessing.QuantileTransformer(n_quantiles=257, output_distribution="normal", subsample=None)
    expected = peer.fit_transform(numbers[:, None])[:, 0]
    found = scaled(numbers, "quantile")
    middle = (numbers > np.quantile(numbers, 1 / 256)) & (numbers < np.quantile(numbers, 255 / 256))
    # It interpolates the levels, and then takes the normal quantile; here the normal quantile is interpolated.
    assert np.abs(found - expected)[middle].max() < 0.02
    assert np.abs(found).max() == pytest.approx(2.886, abs=1e-3)  # the normal quantile of 1 - 0.5/257
    assert np.corrcoef(np.argsort(np.argsort(found)), np.argsort(np.argsort(numbers)))[0, 1] > 0.99999


def test_quantile_gives_values_beyond_training_the_ends(numbers):
    ends = scaled(numbers, "quantile", [numbers.min() - 1, numbers.max() * 10])
    np.testing.assert_allclose(ends, [-2.886, 2.886], atol=1e-3)


def test_robust_is_the_formula_of_realmlp(numbers):
    """Of arXiv 2407.04491: x - median by the distance of the quartiles, then x / sqrt(1 + (x / 3)^2)."""
    table = dsinga.table(pandas.DataFrame({"x": numbers}), scaling="robust")
    low, median, high = np.quantile(numbers, [0.25, 0.5, 0.75])
    expected = (numbers - median) / (high - low)
    expected = expected / np.sqrt(1 + (expected / 3) ** 2)
    np.testing.assert_allclose(table.read(np.arange(5000))[0][:, 0], expected, rtol=1e-5, atol=1e-6)


def test_robust_divides_numbers_with_equal_quartiles_by_half_their_range():
    numbers = np.array([0.0] * 90 + [1.0] * 6 + [4.0] * 4)
    expected = numbers * 2 / 4
    np.testing.assert_allclose(scaled(numbers, "robust"), expected / np.sqrt(1 + (expected / 3) ** 2), rtol=1e-6)


@pytest.mark.parametrize("scaling", ["quantile", "robust", "standard"])
def test_a_large_offset_and_a_large_scale_keep_what_differs(numbers, scaling):
    shifted = scaled(np.round(numbers) + 1e12, scaling)
    np.testing.assert_allclose(shifted, scaled(np.round(numbers), scaling), atol=2e-3)
    np.testing.assert_allclose(scaled(numbers * 1e30, scaling), scaled(numbers, scaling), atol=1e-5)


def test_huge_integers_are_exact_categories_and_near_numbers():
    ids = np.array([2**62 + 1, 2**62 + 2, 2**62 + 3] * 4)
    table = dsinga.table(pandas.DataFrame({"x": ids}), categories=["x"])
    assert sorted(table.definition.column[0].category) == sorted(set(map(str, ids.tolist())))
