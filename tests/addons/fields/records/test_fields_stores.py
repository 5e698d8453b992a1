"""Windows are the same whatever the data lie in and however they are chunked; reading is bounded in memory."""

import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from click.testing import CliRunner
from distributed.protocol.pickle import dumps, loads

import dsinga
from dsinga.addons.fields.records import window_blocks
from dsinga.commands.cli import main_group
from dsinga.data import FieldWindows, describe, describe_dataset
from dsinga.data.chunk_cache import ChunkCache
from dsinga.data.stores.chunk_files import RegionReader
from dsinga.reading.sampler import Sampler
from dsinga.testing import SourceContract
from tests.support.programs import python

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
    """Blocks end within chunks, and four threads read a batch."""
    monkeypatch.setattr(window_blocks, "_cache", ChunkCache(0))
    decode, decoded = RegionReader._decode, []
    monkeypatch.setattr(RegionReader, "_decode", lambda *args: decoded.append(args[1]) or decode(*args))
    steps = np.arange(150, dtype=np.float32)[:, None, None] + np.zeros((64, 256), np.float32)
    data = xr.Dataset({"f": (("time", "y", "x"), steps)})
    data.to_zarr(tmp_path / "x.zarr", encoding={"f": {"chunks": (chunk, 64, 256)}}, consolidated=False)
    cut = {"input_dims": {"time": 1}, "context": {"time": (2, 0)}, "lead": {"time": 1}}
    windows = dsinga.windows(tmp_path / "x.zarr", targets="f", **cut, memory=8 << 20)
    assert windows.block % 4
    sampler = Sampler(len(windows), 16, 0, windows.block)
    decoded.clear()
    with ThreadPoolExecutor(4) as pool:
        for step in range(len(windows) // 16 + 1):
            rows = sampler.rows(step)[: len(windows) - 16 * step]
            batches = pool.map(windows.read, np.array_split(rows, 4))
            inputs, targets = (np.concatenate(parts) for parts in zip(*batches, strict=True))
            np.testing.assert_array_equal(inputs[..., 5, 7], rows[:, None] + np.arange(3))
            np.testing.assert_array_equal(targets[:, 0, 9, 9], rows + 3)
            assert windows.cached_bytes <= 8 << 20
    assert len(decoded) == -(-150 // chunk) or chunk == 48  # those of 48 steps do not all fit the memory


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
