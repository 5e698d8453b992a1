"""Reading from arrays, compared with a record store: ``python -m tests.benchmarks.bench_sources``.

Microseconds of a record for loading blocks, from the same zarr arrays with chunks of 1 MiB and of 64 KiB: as a record
store, as a dask array of them, and in memory. Each block is loaded once from every source in turn, so that a machine
that changes speed does so for all; nothing is cached. Figures are the median and the tenth percentile of the blocks.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import dask.array as da
import numpy as np
import zarr

from dsinga.data import Column, RecordStore, open_records
from tests.benchmarks.bench_loader import make_stores


def columns(location: str) -> dict[str, Column]:
    """Return the column of records of each source."""
    array: Any = zarr.open_group(location, mode="r")["data"]
    lazy = da.from_zarr(array)
    sources = {
        "record store": RecordStore(location),
        "da.from_zarr(array)": open_records(lazy),
        "da.from_zarr(path)": open_records(da.from_zarr(location, component="data")),
        "da.from_zarr(array, chunks=(341, ...))": open_records(da.from_zarr(array, chunks=(341, *array.shape[1:]))),
        "da.from_zarr(array) // 2": open_records(lazy // 2),
        "numpy array": open_records(np.asarray(array)),
    }
    return {name: source.columns[0] for name, source in sources.items()}


def measure(sources: Mapping[str, Column], blocks: int) -> dict[str, np.ndarray]:
    """Return microseconds of a record for each block of each source."""
    figures: dict[str, list[float]] = {name: [] for name in sources}
    for block in range(blocks):
        for name, column in sources.items():
            start = block * column.block
            stop = min(start + column.block, column.length)
            started = time.perf_counter()
            column.load(start, stop)
            figures[name].append(1e6 * (time.perf_counter() - started) / (stop - start))
    return {name: np.array(seconds) for name, seconds in figures.items()}


@click.command()
@click.option("--blocks", default=50, show_default=True, help="Blocks of each source to load.")
@click.option("--turns", default=3, show_default=True)
def main(blocks: int, turns: int) -> None:
    """Print microseconds of a record for each source, and how many times as fast as a record store it is."""
    click.echo("| chunks | source | median, µs | p10, µs | times a record store: median | p10 |\n| " + "--- | " * 6)
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        for chunks, location in make_stores(Path(folder), 341 * blocks).items():
            parts = [measure(columns(location), blocks) for _ in range(turns)]  # opened anew: dask columns keep chunks
            figures = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            store = figures["record store"]
            for name, each in figures.items():
                median, low = np.median(each), np.quantile(each, 0.1)
                ratios = f"{np.median(store) / median:.2f} | {np.quantile(store, 0.1) / low:.2f}"
                click.echo(f"| {chunks} | {name} | {median:.2f} | {low:.2f} | {ratios} |")


if __name__ == "__main__":
    main()
