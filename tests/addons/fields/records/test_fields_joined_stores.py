"""Several stores as one Dataset, against the whole: formats x dimensions. Stores that are appended, and references."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga.base.errors import UserError
from dsinga.data import open_stores
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")
SETTINGS: dict[str, Any] = {
    "inputs": "t", "targets": "t", "input_dims": {"time": 1, "lat": 2, "lon": -1}, "context": {"time": (2, 0)},
    "lead": {"time": 1},
}  # fmt: skip
FORMATS = ("zarr2", "zarr3", "netcdf")


def dataset(days: int = 30, calendar: str = "standard") -> Any:
    rng = np.random.default_rng(0)
    time = xr.date_range("2001-01-01", periods=days, freq="D", calendar=calendar, use_cftime=calendar != "standard")
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), rng.normal(size=(days, 4, 6)).astype("f4")),
            "h": (("lat", "lon"), np.ones((4, 6))),
        },
        {"time": time, "lat": np.linspace(60, -60, 4), "lon": np.arange(6) * 60.0},
    )


def write(data: Any, path: Path, form: str) -> str:
    if form == "netcdf":
        data.to_netcdf(path.with_suffix(".nc"))
        return str(path.with_suffix(".nc"))
    data.chunk(time=4, lat=3).to_zarr(path.with_suffix(".zarr"), zarr_format=int(form[-1]), consolidated=False)
    return str(path.with_suffix(".zarr"))


@pytest.mark.parametrize("form", FORMATS)
def test_stores_by_time_are_the_whole(form: str, tmp_path: Path) -> None:
    data = dataset(calendar="noleap" if form == "zarr3" else "standard")
    ends = [0, 9, 10, 30]
    paths = [write(data.isel(time=slice(*ends[k : k + 2])), tmp_path / str(k), form) for k in range(3)]
    joined = open_stores(paths)
    assert not joined.t.variable._in_memory
    windows, whole = dsinga.windows(joined, **SETTINGS), dsinga.windows(data, **SETTINGS)
    rows = np.random.default_rng(0).permutation(len(whole))
    for found, expected in zip(pickle.loads(pickle.dumps(windows)).read(rows), whole.read(rows), strict=True):
        np.testing.assert_array_equal(found, expected)
    for part in ({"time": [25, 3, 9]}, {"time": 9}, {"time": slice(2, 28, 5), "lat": 1}, {"time": slice(3, 3)}):
        np.testing.assert_array_equal(joined.t.isel(part), data.t.isel(part))
    xr.testing.assert_identical(joined.h.load(), data.h)


@pytest.mark.parametrize("form", FORMATS)
def test_stores_of_members_have_a_new_dimension(form: str, tmp_path: Path) -> None:
    members = [dataset() + number for number in range(3)]
    joined = open_stores([write(each, tmp_path / str(k), form) for k, each in enumerate(members)], dim="member")
    assert (joined.t.dims, joined.h.dims) == (("member", "time", "lat", "lon"), ("lat", "lon"))
    expected = xr.concat([member.t for member in members], "member")
    for part in ({}, {"member": 1, "time": slice(3, 8)}, {"member": [2, 0, 2]}, {"lon": 2}):
        np.testing.assert_array_equal(joined.t.isel(part), expected.isel(part))
    windows = dsinga.windows(joined, **(SETTINGS | {"input_dims": {"member": 1, **SETTINGS["input_dims"]}}))
    assert len(windows) == 3 * len(dsinga.windows(members[0], **SETTINGS))
    row = np.flatnonzero(windows.positions(np.arange(len(windows)))["member"] == 2)[[4]]
    np.testing.assert_array_equal(windows.read(row)[0], dsinga.windows(members[2], **SETTINGS).read([4])[0])


def test_stores_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    data = dataset()
    early = write(data.isel(time=slice(10)), tmp_path / "early", "zarr2")
    for number, (other, message) in enumerate(
        (
            (data.isel(time=slice(5, 20)), "1.zarr begins .* 2001-01-06, .*after the end of .*early.zarr, 2001-01-10"),
            (data.isel(time=slice(10, 20), lat=[0, 1]), "1.zarr has other points of 'lat' than"),
            (data.isel(time=slice(10, 20)).drop_vars("h"), "1.zarr has no 'h', which .*early.zarr has"),
            (dataset(60, "noleap").isel(time=slice(40, 60)), "'time' has object in .*1.zarr, and datetime64"),
            (data.isel(time=slice(10, 20)).transpose("lat", "lon", "time"), "'t' has the dimensions"),
            (data.isel(time=slice(10, 20)).assign(t=data.t.assign_attrs(units="K")), "'t' .* units 'K' in .*1.zarr"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(UserError, match=message):
            open_stores([early, write(other, folder / "1", "zarr2")])
    for paths in (early, [], 3):
        with pytest.raises(UserError, match="open_stores takes a list of paths or URLs"):
            open_stores(paths)  # type: ignore[arg-type]
    refused(lambda: open_stores([early], dim=3), "dim is the name of a dimension, such as 'time' or 'member', not 3")  # type: ignore[arg-type]
    refused(lambda: dsinga.windows([early, early], **SETTINGS), r"as one Dataset: dsinga.data.open_stores\(paths\)")


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize(("zarr_format", "metadata"), [(2, ".zmetadata"), (3, "zarr.json")])
def test_a_store_that_is_appended_keeps_the_length_that_it_had(zarr_format: Any, metadata: str, tmp_path: Path) -> None:
    data, path = dataset(), tmp_path / "t.zarr"
    data.isel(time=slice(18)).chunk(time=4).to_zarr(path, zarr_format=zarr_format, consolidated=True)
    windows, older = dsinga.windows(path, **SETTINGS), (path / metadata).read_bytes()
    data.isel(time=slice(18, None)).to_zarr(path, append_dim="time", consolidated=True, safe_chunks=False)
    whole = dsinga.windows(path, **SETTINGS)
    for each in (windows, pickle.loads(pickle.dumps(windows))):
        assert len(each) == 2 * (18 - 3)
        np.testing.assert_array_equal(each.read(np.arange(30))[0], whole.read(np.arange(30))[0])
    assert len(whole) == 2 * (30 - 3)
    (path / metadata).write_bytes(older)
    refused(lambda: dsinga.windows(path, **SETTINGS), r"the consolidated metadata, but \(30.*; consolidate them again")
