"""Records in xarray: the sample dimension by its name, variables of a Dataset, arrays that stay in their file."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from dsinga.data import open_records
from dsinga.data.sources.xarray_objects import FileColumn
from tests.support.refusals import refused

X, Y = np.arange(240, dtype=np.float32).reshape(20, 3, 4), np.arange(20) % 4
ROWS = [19, 0, 7, 7]


def dataset(**names: Any) -> xr.Dataset:
    variables = {"x": (("time", "lat", "lon"), X), "y": ("time", Y)}
    return xr.Dataset({names.get(name, name): variable for name, variable in variables.items()})


@pytest.mark.parametrize("chunks", [None, {"time": 6}])
def test_the_sample_dimension_is_the_first_or_the_named_one(chunks: dict[str, int] | None) -> None:
    x, y = dataset().x.chunk(chunks) if chunks else dataset().x, dataset().y
    np.testing.assert_array_equal(open_records(x).read(ROWS)[0], X[ROWS])
    turned = x.transpose("lat", "lon", "time")
    for labels in (y, Y):
        data, read = open_records((turned, labels), dim="time").read(ROWS)
        np.testing.assert_array_equal(data, X[ROWS])
        np.testing.assert_array_equal(read, Y[ROWS])


@pytest.mark.parametrize("names", [{}, {"x": "images", "y": "label"}, {"x": "t2m"}, {"x": "t2m", "y": "target"}])
def test_usual_names_of_variables_are_guessed(names: dict[str, str]) -> None:
    source = open_records(dataset(**names))
    assert (source.shape, source.has_labels) == ((3, 4), True)
    np.testing.assert_array_equal(source.read(ROWS)[1], Y[ROWS])


def test_variables_are_named() -> None:
    other = dataset(x="t2m", y="cloudy").assign(wind=("time", Y * 2.0)).set_coords("cloudy")
    source = open_records(other, data="t2m", label="wind")
    assert source.label_dtype == np.float32
    assert open_records(other, data="t2m", label="cloudy").label_range() == (0, 3)  # a coordinate
    assert not open_records(dataset(), label="").has_labels


@pytest.mark.parametrize("chunks", [None, {}])
def test_a_file_is_read_block_by_block(tmp_path: Path, chunks: dict[str, int] | None) -> None:
    dataset().chunk(time=6).to_zarr(tmp_path / "x.zarr", zarr_format=2)
    with xr.open_zarr(tmp_path / "x.zarr", chunks=chunks) as opened:
        source = open_records(opened)
        assert isinstance(source.columns[0], FileColumn) == (chunks is None)
        for each in (source, pickle.loads(pickle.dumps(source))):
            np.testing.assert_array_equal(each.read(ROWS)[0], X[ROWS])
            np.testing.assert_array_equal(each.read(ROWS)[1], Y[ROWS])
        assert not opened.x.variable._in_memory


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        (dataset().x, {"dim": "tme"}, "the DataArray 'x' has no dimension 'tme'; did you mean 'time'"),
        (dataset(), {"dim": "sample"}, "the DataArray 'x' has no dimension 'sample'; it has 'time', 'lat', 'lon'"),
        ((dataset().x, dataset().y.rename(time="n")), {}, "the DataArray 'y' has no dimension 'time'; it has 'n'"),
        (dataset(), {"data": "images"}, "the Dataset has no variable 'images'; it has 'x', 'y'"),
        ((dataset(), Y), {}, r"of a Dataset are one of its variables; name it: dsinga.data.open_records\(dataset, l"),
        (dataset(), {"label": "yy"}, "the Dataset has no variable 'yy'; did you mean 'y'"),
        (dataset().assign(images=dataset().x), {}, "'x' or 'images'; name the variable:"),
        (dataset()[["y"]], {}, "the data of the Dataset have no usual name; .*; its variables are 'y'"),
        (dataset().x[0, 0, 0], {}, r"xarray DataArray: 'x' is a single number"),
        (dataset().x.chunk(lon=2), {}, "'x' has chunks of shape .* which cut its records"),
    ],
)
def test_what_is_wrong_is_said(source: Any, options: dict[str, str], expected: str) -> None:
    refused(lambda: open_records(source, **options), expected)


def test_labels_along_a_later_dimension_name_it() -> None:
    source = xr.Dataset({"x": (("lat", "time"), np.zeros((3, 5))), "y": ("time", np.zeros(5))})
    refused(lambda: open_records(source), r"'y' along 'time'; name that one: dsinga.data.open_records\(..., dim='time")
    assert open_records(source, dim="time").shape == (3,)
