"""Windows are the same whatever the data lie in and however they are chunked; reading is bounded in memory."""

import json
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import get_ident
from typing import Any
from weakref import WeakValueDictionary

import dask.array as da
import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from click.testing import CliRunner
from distributed.protocol.pickle import dumps, loads

import dsinga
from dsinga.addons.fields.records import definition, window_blocks
from dsinga.addons.fields.records.dataset import open_dataset
from dsinga.addons.fields.records.window_blocks import BlockCache
from dsinga.base.errors import UserError
from dsinga.commands.cli import main_group
from dsinga.data import FieldWindows, describe, describe_dataset, open_stores
from dsinga.data.chunk_cache import ChunkCache
from dsinga.data.stores.chunk_files import RegionReader
from dsinga.reading.sampler import Sampler
from dsinga.testing import SourceContract
from tests.support.programs import python
from tests.support.refusals import refused

CHUNKINGS = [{"time": 1}, {"time": 7, "lat": 3}, {"lat": 2, "lon": 5}, {"time": -1, "lat": -1, "lon": -1}, {"lon": 1}]
CUT: dict[str, Any] = {
    "inputs": ["t", "p"], "targets": ["t"], "input_dims": {"time": 1, "lat": 4, "lon": 4}, "input_overlap": {"lon": 1},
    "context": {"time": (2, 0), "lon": 1}, "lead": {"time": 1}, "edges": {"lon": "periodic"},
    "coordinates": ["cos(lat)", "sin(day of year)"],
}  # fmt: skip


def dataset(steps: int = 40) -> xr.Dataset:
    rng = np.random.default_rng(0)
    shape, dims = (steps, 8, 12), ("time", "lat", "lon")
    packed = rng.integers(-1000, 1000, shape, dtype=np.int16)
    variables = {"t": (dims, rng.normal(280, 10, shape)), "p": (dims, packed)}
    dates = np.datetime64("2000-01-01", "ns") + np.arange(steps) * np.timedelta64(6, "h")
    return xr.Dataset(variables, {"time": dates, "lat": np.linspace(70, -70, 8), "lon": np.arange(12) * 30.0})


def read_all(windows: FieldWindows) -> tuple[np.ndarray, np.ndarray]:
    inputs, targets = windows.read(np.arange(len(windows)))
    assert targets is not None
    return inputs, targets


def stored(folder: Path, number: int) -> Path:
    """Write the Dataset with chunks of its own, in both formats of zarr in turn, p packed as int16."""
    path = folder / f"{number}.zarr"
    data = dataset().chunk(CHUNKINGS[number])
    unpacked = data.assign(p=data.p * 0.5 + 3)
    packing = {"dtype": "int16", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -32768}
    unpacked.to_zarr(path, zarr_format=2 + number % 2, encoding={"p": packing}, consolidated=False)
    return path


@pytest.mark.parametrize(
    ("number", "chunks"), [*((number, None) for number in range(len(CHUNKINGS))), (1, {}), (2, {}), (3, {})]
)
def test_the_chunks_of_a_store_do_not_matter(tmp_path: Path, number: int, chunks: Any) -> None:
    data = dataset()
    expected = dsinga.windows(data.assign(p=data.p * 0.5 + 3), **CUT)
    with xr.open_zarr(stored(tmp_path, number), chunks=chunks, consolidated=False) as opened:
        windows = dsinga.windows(opened, **CUT)
        assert windows.block == expected.block
        assert windows.from_files == (chunks is None)
        for each in (windows, pickle.loads(pickle.dumps(windows))):
            for got, wanted in zip(read_all(each), read_all(expected), strict=True):
                np.testing.assert_array_equal(got, wanted)
        assert not opened.t.variable._in_memory or chunks is not None


def test_a_path_and_a_netcdf_file_are_opened(tmp_path: Path) -> None:
    data = dataset()
    data.to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    data.to_zarr(tmp_path / "x.zarr", consolidated=False)
    expected = read_all(dsinga.windows(data, **CUT))
    for name in ("x.nc", "x.zarr"):
        windows = dsinga.windows(tmp_path / name, **CUT)
        assert windows.path == str(tmp_path / name)
        assert len(dumps(windows)) < 20_000
        again = loads(dumps(windows))
        for each in (windows, again):
            for got, wanted in zip(read_all(each), expected, strict=True):
                np.testing.assert_array_equal(got, wanted)
            each.dataset.close()


def test_channels_have_the_order_of_consolidated_metadata_or_else_of_names(tmp_path: Path) -> None:
    """Without consolidated metadata zarr lists the members of a group in the order in which it has read them."""
    names = ["q", "a", "z", "b", "m", "c", "y", "d"]
    data = xr.Dataset({name: ("time", np.arange(4.0)) for name in names}).assign_coords(p=1, e=("time", np.arange(4)))
    data.to_zarr(tmp_path / "x.zarr", consolidated=False)
    data.to_zarr(tmp_path / "y.zarr", zarr_format=2, consolidated=True)
    metadata = json.loads((tmp_path / "y.zarr/.zmetadata").read_text())
    members = metadata["metadata"]
    order = sorted(members, key=lambda key: (key.count("/"), names.index(key[0]) if key[0] in names else -1))
    metadata["metadata"] = {key: members[key] for key in order}
    (tmp_path / "y.zarr/.zmetadata").write_text(json.dumps(metadata))
    for store, expected in (("x.zarr", sorted(names)), ("y.zarr", names)):
        opened, _ = open_dataset(tmp_path / store)
        assert list(opened.data_vars) == expected
        assert set(opened.coords) == {"p", "e"}
        assert list(dsinga.windows(tmp_path / store, input_dims={"time": 1}).layout.channel_names()) == expected


def test_a_url_is_opened(tmp_path: Path) -> None:
    dataset().to_zarr(tmp_path / "x.zarr", consolidated=False)
    fsspec.filesystem("memory").put(str(tmp_path / "x.zarr"), "/fields.zarr", recursive=True)
    windows = dsinga.windows("memory://fields.zarr", **CUT)
    expected = read_all(dsinga.windows(tmp_path / "x.zarr", **CUT))
    for each in (windows, loads(dumps(windows))):
        np.testing.assert_array_equal(read_all(each)[0], expected[0])
    assert describe_dataset("memory://fields.zarr")["location"] == windows.path == "memory://fields.zarr"


def test_chunks_much_larger_than_a_block_are_told(caplog: pytest.LogCaptureFixture) -> None:
    data = xr.Dataset({"f": (("time", "y", "x"), np.zeros((800, 64, 64), np.float32))}).chunk(time=-1)
    caplog.set_level(logging.WARNING, "dsinga")  # a Dask cluster of other tests may have disabled the handler
    windows = dsinga.windows(data, input_dims={"time": 1}, memory=16 << 20)
    assert windows.block == 85
    expected = (
        "the chunks of 'f' have (800, 64, 64) points, a block of windows (85, 64, 64): each chunk is decoded about 9 "
        "times an epoch; give memory=150 << 20 or more, or write smaller chunks"
    )
    assert expected in caplog.text
    caplog.clear()
    assert dsinga.windows(data, input_dims={"time": 1}, memory=150 << 20).block == 800
    assert not caplog.text


def test_a_dataset_is_described(tmp_path: Path) -> None:
    data = dataset()
    data.t.attrs |= {"units": "K", "long_name": "temperature"}
    data.t[:, 0] = np.nan
    data.chunk(time=8).to_zarr(tmp_path / "x.zarr", consolidated=False)
    run = CliRunner().invoke(main_group, ["data", "info", str(tmp_path / "x.zarr")])
    lines = dict(line.split(maxsplit=2)[1:] for line in run.output.splitlines() if line.startswith(("dim", "var")))
    assert lines["time"] == "40 points, 2000-01-01 to 2000-01-10T18:00, every 6 h"
    assert lines["lat"] == "8 points, 70 to -70, every -20"
    assert lines["t"].startswith("(time, lat, lon) float64; chunks (8, 8, 12); K; temperature; ")
    assert lines["t"].endswith("; 12.5% NaN")
    mean, std = data.p.values.mean(), data.p.values.std()
    assert lines["p"].endswith(f"mean {mean:g}, std {std:g}")
    assert describe(dsinga.windows(data, **CUT, mask=True))["records"] == 37 * 2 * 4


def test_only_the_variables_of_windows_are_sent() -> None:
    data = dataset().assign(other=("n", np.zeros(1 << 20)))
    windows = dsinga.windows(data, **CUT)
    numbers = data.t.nbytes + data.p.nbytes
    assert len(pickle.dumps(windows)) < numbers + 30_000
    train, _ = windows.split(time="2000-01-02")
    assert len(pickle.dumps(train)) < numbers // 2


@pytest.mark.parametrize("chunk", [1, 4, 48])
def test_threads_decode_each_chunk_of_large_fields_once_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Blocks end within chunks, and four threads of a worker read a batch."""
    for module in (definition, window_blocks):
        monkeypatch.setattr(module, "DEFAULT_MEMORY", 8 << 20)
    monkeypatch.setattr(window_blocks, "_cache", ChunkCache(0))
    decode, decoded = RegionReader._decode, []
    monkeypatch.setattr(RegionReader, "_decode", lambda *args: decoded.append(args[1]) or decode(*args))
    steps = np.arange(150, dtype=np.float32)[:, None, None] + np.zeros((64, 256), np.float32)
    data = xr.Dataset({"f": (("time", "y", "x"), steps)})
    data.to_zarr(tmp_path / "x.zarr", encoding={"f": {"chunks": (chunk, 64, 256)}}, consolidated=False)
    cut = {"input_dims": {"time": 1}, "context": {"time": (2, 0)}, "lead": {"time": 1}}
    given = {} if chunk == 48 else {"memory": 8 << 20}
    pickled = pickle.dumps(dsinga.windows(tmp_path / "x.zarr", targets="f", **cut, **given))
    monkeypatch.setattr(BlockCache, "_by_key", WeakValueDictionary())  # that of another process
    windows = pickle.loads(pickled)
    assert windows.block % 4
    assert windows.cache_limit == (windows.decoded_bytes if chunk == 48 else 8 << 20)
    sampler = Sampler(len(windows), 16, 0, windows.block)
    decoded.clear()
    with ThreadPoolExecutor(4) as pool:
        for step in range(len(windows) // 16 + 1):
            rows = sampler.rows(step)[: len(windows) - 16 * step]
            batches = pool.map(windows.read, np.array_split(rows, 4))
            inputs, targets = (np.concatenate(parts) for parts in zip(*batches, strict=True))
            np.testing.assert_array_equal(inputs[..., 5, 7], rows[:, None] + np.arange(3))
            np.testing.assert_array_equal(targets[:, 0, 9, 9], rows + 3)
            assert windows.cached_bytes <= windows.cache_limit
    assert len(decoded) == -(-150 // chunk)


def test_the_default_memory_grows_where_it_helps_in_the_process_that_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 5 windows: chunks of 24 are read in parts, unless all fields fit."""
    for module in (definition, window_blocks):
        monkeypatch.setattr(module, "DEFAULT_MEMORY", 4 << 20)
    data = xr.Dataset({"f": (("time", "y", "x"), np.zeros((320, 64, 256), np.float32))})
    limits = {}
    for chunk in (4, 10, 24):
        data.to_zarr(tmp_path / "x.zarr", mode="w", encoding={"f": {"chunks": (chunk, 64, 256)}}, consolidated=False)
        windows = dsinga.windows(tmp_path / "x.zarr", input_dims={"time": 1})
        pickled, limits[chunk] = pickle.dumps(windows), []
        for free in (64 << 20, 8 << 20, 2 << 20):
            monkeypatch.setattr(window_blocks, "memory_limit", lambda free=free: 8 * free)
            monkeypatch.setattr(BlockCache, "_by_key", WeakValueDictionary())  # that of another process
            again = pickle.loads(pickled)
            limits[chunk].append(again.cache_limit)
            assert again.block == windows.block == 5
    field = 64 << 10
    assert limits == {
        4: [120 * field, 120 * field, 4 << 20], 10: [200 * field, 8 << 20, 4 << 20], 24: [320 * field, 4 << 20, 4 << 20]
    }  # fmt: skip


@pytest.mark.parametrize("before", [0, 2])
def test_large_fields_with_level_before_time_are_read_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """A second epoch, too, of which the first has left out the last windows."""
    monkeypatch.setattr(window_blocks, "_cache", ChunkCache(0))
    fields = np.random.default_rng(0).random((3, 96, 64, 96), np.float32)
    data = xr.Dataset({"f": (("level", "time", "y", "x"), fields)})
    data.to_zarr(tmp_path / "x.zarr", encoding={"f": {"chunks": (3, 4, 64, 96)}}, consolidated=False)
    windows = dsinga.windows(
        tmp_path / "x.zarr", input_dims={"time": 1, "y": -1, "x": -1}, context={"time": (before, 0)}, memory=4 << 20
    )
    for epoch in range(2):
        sampler = Sampler(len(windows), 8, epoch, windows.block)
        for step in range(len(windows) // 8 - 1):
            rows = sampler.rows(step)
            inputs, _ = windows.read(rows)
            for number in range(before + 1):
                got = inputs.reshape(len(rows), 3, before + 1, 64, 96)[:, :, number]
                np.testing.assert_array_equal(got, fields[:, rows + number].swapaxes(0, 1))


def test_a_variable_that_dask_computes_is_read_in_the_calling_thread(tmp_path: Path) -> None:
    """Beside one in files, which several threads read: a user's function may not be safe in these."""
    shape, threads = (24, 128, 130), set[int]()
    data = xr.Dataset({"f": (("time", "y", "x"), np.ones(shape, np.float32))}).chunk(time=4)
    data.to_zarr(tmp_path / "x.zarr", consolidated=False)
    made = da.ones(shape, chunks=(4, 128, 130)).map_blocks(lambda x: threads.add(get_ident()) or x, meta=np.empty(()))
    data = xr.open_zarr(tmp_path / "x.zarr", chunks=None, consolidated=False).assign(g=(("time", "y", "x"), made))
    windows = dsinga.windows(data, inputs=["f", "g"], targets="f", input_dims={"time": 1}, memory=6 << 20)
    threads.clear()
    read_all(windows)
    assert threads == {get_ident()}


class TestWindowsOfFields(SourceContract):
    def create(self) -> Any:
        return dsinga.windows(dataset(), **CUT)


class TestWindowsOfAStore(SourceContract):
    @pytest.fixture(autouse=True)
    def _write_store(self, tmp_path: Path) -> None:
        self.path = stored(tmp_path, 1)

    def create(self) -> Any:
        return dsinga.windows(self.path, **CUT)


TRAINS = """
import sys
import dsinga
from dsinga import nn

def resident(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1]) << 10

cut = {"time": 1, "y": 64, "x": 64}
windows = dsinga.windows(sys.argv[1], targets="f", input_dims=cut, lead={"time": 1}, memory=32 << 20)
model = nn.Sequential([nn.Input((1, 64, 64)), nn.Conv2D(1, 3, padding="same")])
model.compile("adam", loss="mse")
model.fit(windows, train_steps=2, batch_size=64, progress=False)
before = resident("VmHWM")
model.fit(windows, epochs=1, batch_size=64, progress=False)
print(resident("VmHWM") - before)
"""


@pytest.mark.slow
def test_training_from_a_store_of_ten_times_the_memory_stays_within_it(tmp_path: Path) -> None:
    """Beside the decoded fields there are the batches that are read ahead, and the chunks that are being decoded."""
    steps, memory = 2560, 32 << 20
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    dims, shape = ("time", "y", "x"), (steps, 256, 128)
    array = group.create_array("f", shape=shape, chunks=(16, *shape[1:]), dtype="f4", dimension_names=dims)
    rng = np.random.default_rng(0)
    for start in range(0, steps, 16):
        array[start : start + 16] = rng.integers(1, 100, (16, 256, 128))
    assert array.nbytes == 10 * memory
    run = python("-W", "ignore", "-c", TRAINS, tmp_path / "x.zarr")
    assert int(run.stdout) < memory + (48 << 20)


# Several stores as one Dataset, against the whole: formats x dimensions. Stores that are appended, and references.
SETTINGS: dict[str, Any] = {
    "inputs": "t", "targets": "t", "input_dims": {"time": 1, "lat": 2, "lon": -1}, "context": {"time": (2, 0)},
    "lead": {"time": 1},
}  # fmt: skip
FORMATS = ("zarr2", "zarr3", "netcdf")


def whole_dataset(days: int = 30, calendar: str = "standard") -> Any:
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
    data = whole_dataset(calendar="noleap" if form == "zarr3" else "standard")
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
    members = [whole_dataset() + number for number in range(3)]
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
    data = whole_dataset()
    early = write(data.isel(time=slice(10)), tmp_path / "early", "zarr2")
    for number, (other, message) in enumerate(
        (
            (data.isel(time=slice(5, 20)), "1.zarr begins .* 2001-01-06, .*after the end of .*early.zarr, 2001-01-10"),
            (data.isel(time=slice(10, 20), lat=[0, 1]), "1.zarr has other points of 'lat' than"),
            (data.isel(time=slice(10, 20)).drop_vars("h"), "1.zarr has no 'h', which .*early.zarr has"),
            (whole_dataset(60, "noleap").isel(time=slice(40, 60)), "'time' has object in .*1.zarr, and datetime64"),
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
    data, path = whole_dataset(), tmp_path / "t.zarr"
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
