"""Reading windows compared with insitubatch: ``python -m tools.benchmarks.bench_windows [--chunk 8 ...]``.

640 steps of two variables of 181 x 360 points in a zarr store, shuffled, by chunks of 1, 8 and 64 steps. Each loader
reads three epochs in processes of its own, in turn; both shuffle among neighbouring blocks. Figures are medians: the
seconds to the first batch, records a second and processor seconds in the first epoch and later, MiB at most and since
the imports. insitubatch needs Python 3.12 or later.
"""

from __future__ import annotations

import importlib
import itertools
import json
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

from tools.benchmarks.__main__ import processor

BATCH, STEPS, SHAPE = 32, 640, (181, 360)
VARIABLES = ["a", "b"]
Epochs = Callable[[int], Iterator[Any]]


def make_store(path: Path, chunk: int) -> None:
    """Write smooth fields, about as compressible as fields of a model of the atmosphere."""
    rng = np.random.default_rng(0)
    variables = {}
    for name in VARIABLES:
        coarse = rng.normal(size=(STEPS, -(-SHAPE[0] // 4), SHAPE[1] // 4)).astype(np.float32)
        fields = coarse.repeat(4, 1)[:, : SHAPE[0]].repeat(4, 2)
        variables[name] = (("time", "lat", "lon"), fields + rng.normal(0, 0.01, (STEPS, *SHAPE)).astype(np.float32))
    coordinates = {"time": np.arange(STEPS), "lat": np.linspace(90, -90, SHAPE[0]), "lon": np.arange(SHAPE[1])}
    encoding = {name: {"chunks": (chunk, *SHAPE)} for name in VARIABLES}
    xr.Dataset(variables, coordinates).to_zarr(path, zarr_format=3, encoding=encoding, consolidated=False)


def ours(path: str) -> tuple[Epochs, int]:
    """Open windows; return the batches of an epoch as a worker gets them, and their number."""
    import dsinga
    from dsinga.reading.prefetch import Prefetch
    from dsinga.reading.sampler import Sampler

    windows = dsinga.windows(path, inputs=VARIABLES, input_dims={"time": 1, "lat": -1, "lon": -1})
    count = len(windows) // BATCH

    def batches(epoch: int) -> Iterator[Any]:
        sampler = Sampler(len(windows), BATCH, epoch, windows.block)
        with Prefetch(lambda step: windows.read(sampler.rows(step)), 0, count) as prefetched:
            yield from prefetched

    return batches, count


def theirs(path: str) -> tuple[Epochs, int]:
    """Open the same by insitubatch, which shuffles within blocks of at least 16 chunks."""
    from insitubatch import InSituDataset, obstore_store, open_geometries, split_by_chunk  # type: ignore[import-not-found]

    store = obstore_store(f"file://{path}")
    geometries = open_geometries(store, variables=VARIABLES)
    manifest = split_by_chunk(geometries["a"], fractions=(1.0, 0.0, 0.0))
    dataset = InSituDataset(store, manifest, geometries=geometries, batch_size=BATCH)

    def batches(epoch: int) -> Iterator[Any]:
        dataset.set_epoch(epoch)
        yield from dataset.train

    return batches, manifest.n_samples // BATCH


# Each loader with the modules that it imports until its first batch; xarray imports dask when it opens a store.
LOADERS = {
    "dsinga": (ours, ["dsinga.addons.fields.records.field_windows", "xarray", "dask.base"]),
    "insitubatch": (theirs, []),
}


def megabytes(key: str) -> int:
    """Return the MiB of a line of this process's status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) >> 10


def measure(loader: str, path: str, epochs: int) -> dict[str, float]:
    """Return the figures of a loader in this process."""
    make, modules = LOADERS[loader]
    for module in (loader, *modules):
        importlib.import_module(module)
    imported, started = megabytes("VmRSS"), time.perf_counter()
    batches, count = make(path)
    first, rates, cpu = 0.0, [], []
    for epoch in range(epochs):
        began, used = time.perf_counter(), time.process_time()
        for _ in batches(epoch):
            first = first or time.perf_counter() - started
        rates.append(count * BATCH / (time.perf_counter() - began))
        cpu.append(time.process_time() - used)
    peak = megabytes("VmHWM")
    return {
        "first": first, "epoch": rates[0], "cpu": cpu[0], "later": statistics.mean(rates[1:]),
        "cpu later": statistics.mean(cpu[1:]), "MiB": peak, "since": peak - imported,
    }  # fmt: skip


@click.command()
@click.option("--chunk", "chunks", multiple=True, type=int, default=(1, 8, 64), show_default=True)
@click.option("--turns", default=3, show_default=True, type=click.IntRange(1))
@click.option("--one", nargs=2, hidden=True, help="Measure a loader and a store in this process.")
def main(chunks: tuple[int, ...], turns: int, one: tuple[str, str] | None) -> None:
    """Print records a second, memory and the seconds to the first batch."""
    if one:
        click.echo(json.dumps(measure(*one, epochs=3)))
        return
    click.echo(f"{processor()}, {turns} turns\n")
    click.echo("| chunk | loader | first batch, s | first epoch/s | cpu s | later/s | cpu s | MiB | since imports |")
    click.echo("| --- " * 9 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for chunk in chunks:
            path = Path(folder) / f"{chunk}.zarr"
            make_store(path, chunk)
            runs: dict[str, list[dict[str, float]]] = {loader: [] for loader in LOADERS}
            for _, loader in itertools.product(range(turns), LOADERS):
                command = [sys.executable, "-m", "tools.benchmarks.bench_windows", "--one", loader, str(path)]
                runs[loader].append(json.loads(subprocess.run(command, stdout=PIPE, check=True).stdout))
            for loader, figures in runs.items():
                middle = {key: statistics.median(run[key] for run in figures) for key in figures[0]}
                cells = [f"{value:,.0f}" if value > 20 else f"{value:.2f}" for value in middle.values()]
                click.echo(f"| {chunk} | {loader} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
