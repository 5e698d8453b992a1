"""A Dask worker trains from a store of ten times its memory limit, predicts and writes, within the limit.

``python -m tools.benchmarks.bench_windows --memory`` prints the most memory that the worker's process has had.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
import zarr
from distributed import Client, LocalCluster

import dsinga
from dsinga import nn

POINTS = (256, 256)
CHUNK = 32  # steps, 8 MiB


class WorkerMemory(NamedTuple):
    """What a worker needed.

    Attributes:
        store: bytes of the store, decoded.
        limit: bytes that Dask lets the worker have.
        before: bytes that its process had before training.
        trained: the most until the end of training.
        written: the most while the prediction was computed and written.
        restarts: whether Dask has started the process again.
        right: whether the prediction is complete.
    """

    store: int
    limit: int
    before: int
    trained: int
    written: int
    restarts: bool
    right: bool

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {getattr(self, name) >> 20} MiB" for name in self._fields[:5])
        return f"{sizes}; {self.store / self.limit:.1f} times the limit; restarts: {self.restarts}, right: {self.right}"


def most_resident() -> tuple[int, int]:
    """Return the number of this process, and the most bytes of memory that it has had since the last call."""
    with open("/proc/self/status") as status:
        kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as peaks:
        peaks.write("5")
    return os.getpid(), kilobytes << 10


def write_store(path: Path, size: int) -> zarr.Array:
    """Write steps of at least ``size`` bytes, each of which has one number at all points, so that files are small."""
    steps = -(-size // (4 * POINTS[0] * POINTS[1] * CHUNK)) * CHUNK
    group = zarr.open_group(path, mode="w", zarr_format=2)
    array = group.create_array("f", shape=(steps, *POINTS), chunks=(CHUNK, *POINTS), dtype="f4")
    array.attrs["_ARRAY_DIMENSIONS"] = ["time", "y", "x"]
    for start in range(0, steps, CHUNK):
        array[start : start + CHUNK] = numbers_of(steps)[start : start + CHUNK, None, None]
    return array


def numbers_of(steps: int) -> np.ndarray:
    """Return the numbers of the steps; none is 0, which xarray would mask."""
    return np.arange(1, steps + 1, dtype=np.float32) / steps


def measure(folder: Path, limit: int, times: float = 10.0, memory: int = 64 << 20) -> WorkerMemory:
    """Train in one worker process from a store of ``times`` the ``limit``, predict and write the prediction.

    ``memory`` is that of the windows, in bytes.
    """
    array = write_store(folder / "x.zarr", int(times * limit))
    windows = dsinga.windows(
        folder / "x.zarr", inputs="f", targets="f", input_dims={"time": 1, "y": -1, "x": -1}, lead={"time": 1},
        memory=memory,
    )  # fmt: skip
    model = nn.Sequential([nn.Input((1, *POINTS)), nn.Conv2D(1, 1)])
    model.compile("sgd", loss="mse")
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, memory_limit=limit, dashboard_address=None)
    with cluster, Client(cluster) as client:
        ((process, before),) = client.run(most_resident).values()
        model.fit(windows, epochs=1, batch_size=8, client=client, progress=False)
        ((_, trained),) = client.run(most_resident).values()
        data = xr.open_zarr(folder / "x.zarr", chunks=None, consolidated=False)
        model.predict(data).to_zarr(folder / "y.zarr", zarr_format=2, consolidated=False)
        ((last, written),) = client.run(most_resident).values()
    slope, offset = (float(np.ravel(param)[0]) for param in model.get_weights())
    with xr.open_zarr(folder / "y.zarr", chunks=None, consolidated=False) as forecast:
        points = forecast.f[:, 7, 11].values
    right = bool(np.allclose(points, numbers_of(array.shape[0]) * slope + offset, atol=1e-5))
    return WorkerMemory(array.nbytes, limit, before, trained, written, process != last, right)
