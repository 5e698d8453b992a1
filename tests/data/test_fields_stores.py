"""Windows are the same whatever the data lie in and however they are chunked; reading is bounded in memory."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from distributed.protocol.pickle import dumps, loads

import dsinga
from dsinga.data import FieldWindows, Sampler
from dsinga.testing import SourceContract

CHUNKINGS = [{"time": 1}, {"time": 7, "lat": 3}, {"lat": 2, "lon": 5}, {"time": -1, "lat": -1, "lon": -1}, {"lon": 1}]
CUT: dict[str, Any] = {
    "inputs": ["t", "p"],
    "targets": ["t"],
    "input_dims": {"time": 1, "lat": 4, "lon": 4},
    "input_overlap": {"lon": 1},
    "context": {"time": (2, 0), "lon": 1},
    "lead": {"time": 1},
    "edges": {"lon": "periodic"},
    "coordinates": ["cos(lat)", "sin(day of year)"],
}


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
    packing = {"dtype": "int16", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -32768}
    data.assign(p=data.p * 0.5 + 3).to_zarr(
        path, zarr_format=2 + number % 2, encoding={"p": packing}, consolidated=False
    )
    return path


@pytest.mark.parametrize("number", range(len(CHUNKINGS)))
@pytest.mark.parametrize("chunks", [None, {}])
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


def test_only_the_variables_of_windows_are_sent() -> None:
    data = dataset().assign(other=("n", np.zeros(1 << 20)))
    windows = dsinga.windows(data, **CUT)
    numbers = data.t.nbytes + data.p.nbytes
    assert len(pickle.dumps(windows)) < numbers + 30_000
    train, _ = windows.split(time="2000-01-02")
    assert len(pickle.dumps(train)) < numbers // 2


class CountedReads:
    """A Dataset whose variable counts the numbers that are read of it; its numbers are their own indices."""

    def __init__(self, shape: tuple[int, ...], chunk: int):
        self.shape, self.dtype, self.read = shape, np.dtype(np.float32), 0
        dask_array = pytest.importorskip("dask.array")

        def block(block_info: Any = None) -> np.ndarray:
            (first, last), *_ = block_info[None]["array-location"]
            self.read += (last - first) * int(np.prod(shape[1:]))
            steps = np.arange(first, last, dtype=np.float32)
            return np.broadcast_to(steps[:, None, None], (last - first, *shape[1:])).copy()

        sizes = (chunk,) * (shape[0] // chunk)
        array = dask_array.map_blocks(
            block,
            chunks=(sizes, *((size,) for size in shape[1:])),
            dtype=np.float32,
            meta=np.empty((0, 0, 0), np.float32),
        )
        self.dataset = xr.Dataset({"f": (("time", "y", "x"), array)})


def test_an_epoch_of_a_store_of_many_times_the_memory_reads_each_chunk_about_once() -> None:
    """The store has ten times the memory; more than it never lies in the cache, and little is read twice."""
    counted = CountedReads((2560, 64, 64), chunk=8)  # 40 MiB
    memory = 4 << 20
    windows = dsinga.windows(
        counted.dataset, input_dims={"time": 1, "y": 32, "x": 32}, context={"time": (1, 0)}, lead={"time": 1},
        targets="f", memory=memory,
    )  # fmt: skip
    sampler = Sampler(len(windows), 64, 0, windows.block)
    most = 0
    seen = np.zeros(len(windows), int)
    counted.read = 0
    for step in range(len(windows) // 64):
        rows = sampler.rows(step)
        inputs, targets = windows.read(rows)
        times = windows.positions(rows)["time"]
        np.testing.assert_array_equal(inputs[:, 1, 0, 0], times)
        np.testing.assert_array_equal(targets[:, 0, 0, 0], times + 1)
        np.add.at(seen, rows, 1)
        most = max(most, windows.cached_bytes)
    assert seen.max() == 1
    assert most <= memory
    assert counted.read < 2.0 * 2560 * 64 * 64  # a block has 16 steps and two more, chunks of 8 steps


def test_threads_read_the_same_windows(tmp_path: Path) -> None:
    windows = dsinga.windows(stored(tmp_path, 1), **CUT, memory=1 << 20)
    expected = read_all(windows)
    rows = np.random.default_rng(0).permutation(len(windows))
    with ThreadPoolExecutor(4) as pool:
        for part, (inputs, _) in zip(
            np.array_split(rows, 16), pool.map(windows.read, np.array_split(rows, 16)), strict=True
        ):
            np.testing.assert_array_equal(inputs, expected[0][part])


class TestWindowsOfFields(SourceContract):
    def create(self) -> Any:
        return dsinga.windows(dataset(), **CUT)


class TestWindowsOfAStore(SourceContract):
    @pytest.fixture(autouse=True)
    def _write_store(self, tmp_path: Path) -> None:
        self.path = stored(tmp_path, 1)

    def create(self) -> Any:
        return dsinga.windows(self.path, **CUT)
