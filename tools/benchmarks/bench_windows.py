"""Windows of fields a second, compared with xbatcher and PyTorch: ``python -m tools.benchmarks.bench_windows``.

Three cases on one zarr store of two variables (time, lat, lon), all shuffled: whole fields and the next one; patches
that do not overlap; patches with overlap, four steps of time and a target. xbatcher cuts the same windows for a
DataLoader of PyTorch. Cold: an empty cache, and files out of the page cache; warm: again. "Loaded" is the Dataset in
memory, loaded before the time is taken. Last, the seconds in which every chunk is read once in order by xarray, beside
an epoch of whole fields. With ``--memory``: a worker trains from, predicts and writes ten times its memory limit. With
``--insitubatch``: whole fields of 181 x 360 beside insitubatch, from a folder and from an S3 server with 20 ms of
delay, each loader in processes of its own; both shuffle among neighbouring blocks, dsinga among eight of them.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import click
import numpy as np
import xarray as xr

import dsinga
from dsinga.reading.prefetch import Prefetch
from dsinga.reading.sampler import Sampler
from tools.benchmarks.field_memory import measure
from tools.benchmarks.window_process import KEYS, LOADERS

BATCH = 32
FIGURES = ("first", "peak", "imported")  # of a process
CASES: dict[str, dict[str, Any]] = {
    "whole fields": {"input_dims": {"time": 1, "lat": -1, "lon": -1}},
    "patches": {"input_dims": {"time": 1, "lat": 32, "lon": 32}},
    "patches, overlap, 4 steps": {
        "input_dims": {"time": 1, "lat": 32, "lon": 32},
        "input_overlap": {"lat": 16, "lon": 16},
        "context": {"time": (3, 0)},
    },
}
Batches = Iterator[Any]


def make_store(path: Path, steps: int, chunk: int, shape: tuple[int, int] = (64, 128), zarr_format: int = 2) -> None:
    """Write smooth fields, as compressible as those of a model of the atmosphere are, roughly."""
    rng = np.random.default_rng(0)
    dates = np.datetime64("2000-01-01", "ns") + np.arange(steps) * np.timedelta64(6, "h")
    variables = {}
    for name in ("a", "b"):
        coarse = rng.normal(size=(steps, -(-shape[0] // 4), shape[1] // 4)).astype(np.float32)
        fields = coarse.repeat(4, 1)[:, : shape[0]].repeat(4, 2)
        variables[name] = (("time", "lat", "lon"), fields + rng.normal(0, 0.01, (steps, *shape)).astype(np.float32))
    lat, lon = np.linspace(88, -88, shape[0]), np.arange(shape[1]) * (360 / shape[1])
    data = xr.Dataset(variables, {"time": dates, "lat": lat, "lon": lon})
    chunks = {name: {"chunks": (chunk, *shape)} for name in variables}
    data.to_zarr(path, zarr_format=zarr_format, encoding=chunks, consolidated=zarr_format == 2)


def beside_insitubatch(folder: Path, turns: int) -> Iterator[str]:
    """Yield the lines of a table of both loaders, for chunks of three sizes in a folder and in object storage."""
    if importlib.util.find_spec("insitubatch") is None:
        yield "insitubatch is not installed: pip install insitubatch, which needs Python 3.12 or later"
        return
    for chunk in (1, 8, 64):
        make_store(folder / f"{chunk}.zarr", 640, chunk, (181, 360), zarr_format=3)
    command = [sys.executable, "-m", "tools.benchmarks.window_process"]
    stores = {"folder": str(folder), "S3": "s3://bench"}
    yield (
        "| store | chunk | loader | first batch, s | first epoch/s | later/s | MiB | after imports |\n| " + "--- | " * 8
    )
    with subprocess.Popen([*command, "s3", folder], stdin=PIPE, stdout=PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        environment = {**os.environ, **KEYS, "AWS_ENDPOINT_URL": server.stdout.readline().strip()}
        for (store, location), chunk in itertools.product(stores.items(), (1, 8, 64)):
            runs: dict[str, list[Any]] = {loader: [] for loader in LOADERS}
            for _, loader in itertools.product(range(turns), LOADERS):
                arguments = [*command, loader, f"{location}/{chunk}.zarr", "3"]
                output = subprocess.run(arguments, env=environment, stdout=PIPE, check=True).stdout
                runs[loader].append(json.loads(output))
            for loader, figures in runs.items():
                first, peak, imported = (statistics.median(run[key] for run in figures) for key in FIGURES)
                rates = [statistics.median(rates) for rates in zip(*(run["rates"] for run in figures), strict=True)]
                yield (
                    f"| {store} | {chunk} | {loader} | {first:.2f} | {rates[0]:,.0f} | "
                    f"{statistics.mean(rates[1:]):,.0f} | {peak:.0f} | {peak - imported:.0f} |"
                )
        server.stdin.close()


def drop_from_page_cache(path: Path) -> None:
    """Let the next reads of a store's files come from the disk."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class Ours:
    """Batches as a worker gets them: read ahead on a thread, in the sampler's order."""

    def __init__(self, path: Path, case: dict[str, Any]):
        self.windows = dsinga.windows(path, inputs=["a", "b"], targets="a", lead={"time": 1}, **case)
        self.epoch = -1

    def __len__(self) -> int:
        return len(self.windows) // BATCH

    def __call__(self) -> Batches:
        self.epoch += 1
        sampler = Sampler(len(self.windows), BATCH, self.epoch, self.windows.block)
        with Prefetch(lambda step: self.windows.read(sampler.rows(step)), 0, len(self)) as batches:
            yield from batches


class Theirs:
    """The same windows by xbatcher and a DataLoader; the last step of time is the target."""

    def __init__(self, path: Path, case: dict[str, Any], workers: int, chunks: Any, load: bool = False):
        import torch
        import xbatcher
        from torch.utils.data import DataLoader
        from xbatcher.loaders.torch import MapDataset

        opened = xr.open_zarr(path, chunks=chunks)
        opened = opened.load() if load else opened
        before = case.get("context", {}).get("time", (0, 0))[0]
        sizes = {dim: opened.sizes[dim] if size == -1 else size for dim, size in case["input_dims"].items()}
        overlap = {**case.get("input_overlap", {}), "time": before + 1}
        windows = xbatcher.BatchGenerator(
            opened, {**sizes, "time": before + 2}, input_overlap=overlap, preload_batch=False
        )

        def as_tensors(window: xr.Dataset) -> tuple[Any, Any]:
            steps = np.stack([window["a"].values, window["b"].values])
            return torch.from_numpy(steps[:, :-1].reshape(-1, *steps.shape[2:])), torch.from_numpy(steps[:1, -1])

        class TextWindows(MapDataset):
            def __getitem__(self, index: int) -> Any:
                return as_tensors(windows[index])

        self.loader = DataLoader(TextWindows(windows), BATCH, shuffle=True, num_workers=workers)

    def __call__(self) -> Batches:
        return iter(self.loader)


def rate(batches: Batches, seconds: float) -> float:
    """Return windows a second, the start of the loader included."""
    started, count = time.perf_counter(), 0
    for _ in batches:
        count += BATCH
        if time.perf_counter() - started > seconds:
            break
    return count / (time.perf_counter() - started)


def bare_seconds(path: Path, chunk: int) -> float:
    """Return the seconds in which every chunk is read once, in order."""
    opened = xr.open_zarr(path, chunks=None)
    started = time.perf_counter()
    for name in ("a", "b"):
        for start in range(0, opened.sizes["time"], chunk):
            _ = opened[name].variable[start : start + chunk].values
    return time.perf_counter() - started


def epoch_seconds(make: Callable[[], Ours]) -> float:
    """Return the seconds of a whole epoch with an empty cache."""
    ours = make()
    started = time.perf_counter()
    for _ in ours():
        pass
    return time.perf_counter() - started


@click.command()
@click.option("--steps", default=9000, show_default=True, help="Of time; 64 KiB each.")
@click.option("--chunk", default=48, show_default=True, help="Steps of a chunk.")
@click.option("--turns", default=3, show_default=True)
@click.option("--seconds", default=1.5, show_default=True, help="Of a turn.")
@click.option("--memory", is_flag=True, help="Measure the memory of a worker instead.")
@click.option("--insitubatch", is_flag=True, help="Compare with insitubatch instead.")
@click.option("--limit", default=512, show_default=True, help="Of its memory, in MiB.")
def main(steps: int, chunk: int, turns: int, seconds: float, memory: bool, insitubatch: bool, limit: int) -> None:
    """Print windows a second of each loader, and how many times as fast dsinga is."""
    folder = Path(tempfile.mkdtemp(prefix="dsinga-bench-"))
    path = folder / "x.zarr"
    try:
        if memory:
            click.echo(measure(folder, limit << 20))
            return
        if insitubatch:
            for line in beside_insitubatch(folder, turns):
                click.echo(line)
            return
        make_store(path, steps, chunk)
        click.echo("| windows | loader | cold/s | warm/s | dsinga / this, cold | warm |\n| " + "--- | " * 6)
        for name, case in CASES.items():
            makers: dict[str, Callable[[], Any]] = {
                "dsinga": lambda case=case: Ours(path, case),
                "xbatcher, 0 workers": lambda case=case: Theirs(path, case, 0, None),
                "xbatcher, 2 workers": lambda case=case: Theirs(path, case, 2, None),
                "xbatcher, loaded, 0 workers": lambda case=case: Theirs(path, case, 0, None, load=True),
            }
            rates: dict[str, list[tuple[float, float]]] = {loader: [] for loader in makers}
            for _ in range(turns):
                for loader, make in makers.items():
                    drop_from_page_cache(path)
                    batches = make()
                    rates[loader].append((rate(batches(), seconds), rate(batches(), seconds)))
            medians = {key: [statistics.median(column) for column in zip(*pairs)] for key, pairs in rates.items()}  # noqa: B905
            for loader, (cold, warm) in medians.items():
                ratios = medians["dsinga"][0] / cold, medians["dsinga"][1] / warm
                click.echo(f"| {name} | {loader} | {cold:,.0f} | {warm:,.0f} | {ratios[0]:.1f} | {ratios[1]:.1f} |")
        for what, prepare in (("cold", lambda: drop_from_page_cache(path)), ("warm", lambda: None)):
            bare, ours = [], []
            for _ in range(turns):
                prepare()
                bare.append(bare_seconds(path, chunk))
                prepare()
                ours.append(epoch_seconds(lambda: Ours(path, CASES["whole fields"])))
            every, epoch = statistics.median(bare), statistics.median(ours)
            click.echo(f"\n{what}: chunks {every:.3f} s, an epoch of whole fields {epoch:.3f} s, {epoch / every:.2f}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
