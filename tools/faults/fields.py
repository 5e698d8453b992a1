"""Damaged Datasets (zarr 2 and 3, shards, netCDF) under windows, prediction, statistics and ``dsinga data``.

Besides what is done to other inputs, devices, pipes and holes of a tebibyte take the place of files. Most of these
formats have no checksums: tracebacks, hangs and messages that say nothing count, changed numbers do not.
"""

from __future__ import annotations

import os
import random as random_module
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tools.faults.damage import copy_tree, damage_bytes, damage_entry, files_of
from tools.faults.damaged_json import damage_json
from tools.faults.verdicts import run_dsinga, say_damage

MEMORY = 8 << 30  # of addresses that a case may use
POINTS = {"time": 24, "lat": 12, "lon": 16}
WINDOWS: dict[str, Any] = {
    "inputs": "t",
    "targets": "t",
    "static": "height",
    "input_dims": {"time": 1, "lat": -1, "lon": -1},
    "lead": {"time": 1},
    "coordinates": ["cos(lat)", "sin(day of year)"],
}


def create(folder: Path) -> None:
    """Write a Dataset in each format, and a model that was trained from it."""
    import xarray

    from dsinga import nn, windows

    rng = np.random.default_rng(0)
    numbers = rng.normal(280, 5, tuple(POINTS.values())).astype(np.float32)
    dataset = xarray.Dataset(
        {"t": (tuple(POINTS), numbers, {"units": "K"}), "height": (("lat", "lon"), rng.random((12, 16)))},
        {
            "time": np.datetime64("2001-01-01", "ns") + np.arange(24) * np.timedelta64(6, "h"),
            "lat": np.linspace(-55, 55, 12),
            "lon": np.arange(16) * 22.5,
            "region": (("lat", "lon"), rng.random((12, 16))),
        },
    )
    chunks = {"time": 6, "lat": 6, "lon": 16}
    for zarr_format in (2, 3):
        dataset.chunk(chunks).to_zarr(folder / f"zarr{zarr_format}" / "d.zarr", zarr_format=zarr_format)  # type: ignore[call-overload]
    sharded = dataset.copy()
    sharded.t.encoding = {"chunks": (3, 6, 16), "shards": (12, 12, 16)}
    sharded.to_zarr(folder / "shards" / "d.zarr", zarr_format=3, consolidated=False)
    (folder / "netcdf").mkdir()
    dataset.to_netcdf(
        folder / "netcdf" / "d.nc", engine="h5netcdf", encoding={"t": {"zlib": True, "chunksizes": (6, 6, 16)}}
    )
    os.chdir(folder)
    model = nn.Sequential([nn.Conv2D(1, 3, padding="same")])
    model.compile(optimizer=nn.SGD(1e-9), loss="mse")
    model.fit(windows(dataset, **WINDOWS), epochs=1, progress=False)
    model.save("model.dsinga")


def _windows(path: str) -> None:
    from dsinga import windows

    source = windows(path, **WINDOWS)
    source.read(range(len(source)))


def _predict(path: str) -> None:
    import dsinga

    dsinga.nn.load_model(Path("../original/model.dsinga")).predict(path).compute(scheduler="synchronous")


def _statistics(path: str) -> None:
    from dsinga.data import field_statistics

    field_statistics(path)


FACES: dict[str, Callable[[str], None] | tuple[str, ...]] = {
    "windows": _windows,
    "windows again": _windows,
    "predict": _predict,
    "predict again": _predict,
    "statistics": _statistics,
    "info": ("data", "info"),
    "verify": ("data", "verify", "--data", "t"),
}


def run(random: random_module.Random, original: Path, folder: Path) -> int:
    """Damage a copy of a Dataset, read it through one of the faces, and return the status."""
    from dsinga import UserError

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    kind = random.choice(("zarr2", "zarr3", "shards", "netcdf"))
    copy_tree(original / kind, folder)
    (path,) = folder.iterdir()
    name, face = random.choice(list(FACES.items()))
    say_damage(f"{name}: {kind}: {damage(random, path)}")
    if isinstance(face, tuple):
        return run_dsinga([*face, str(path)])
    try:
        face(str(path))
    except UserError as error:
        print(f"dsinga: {error}")
        return 2
    return 0


def damage(random: random_module.Random, path: Path) -> str:
    """Damage a Dataset; return what was done."""
    files = files_of(path) if path.is_dir() else [path]
    what = random.choice(("device", "device", "bytes", "bytes", "entry", "metadata"))
    if what == "bytes":
        return damage_bytes(random, random.choice(files))
    if what == "entry" and path.is_dir():
        return damage_entry(random, path)
    metadata = [file for file in files if file.name == "zarr.json" or file.name.startswith(".z")]
    if what == "metadata" and metadata:
        return damage_json(random, random.choice(metadata))
    return put_device(random, random.choice(files))


def put_device(random: random_module.Random, path: Path) -> str:
    """Put something that never ends, or is very large, in place of a file."""
    kind = random.choice(("pipe", "/dev/zero", "/dev/full", "/dev/stdin", "hole"))
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "hole":
        with path.open("wb") as file:
            os.truncate(file.fileno(), 1 << 40)
    else:
        path.symlink_to(kind)
    return f"{kind} in place of {path.parent.name}/{path.name}"
