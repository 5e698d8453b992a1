"""Reading records, compared with PyTorch's DataLoader: ``python -m tools.benchmarks.bench_loader``.

Images a second of the loader alone, from the same zarr store with chunks as the importers make them and with chunks of
64 KiB, compressed; for PyTorch also from one numpy array in memory, record by record, as its users write data sets. The
loaders run in turn, each turn from the first batch on; figures are medians of turns. (How long a step waits for records
says ``dsinga bench``.)
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import zarr

from dsinga.data import open_store, write_store
from dsinga.data.record_source import clear_cache
from dsinga.reading.prefetch import Prefetch
from dsinga.reading.sampler import Sampler
from tests.support.old_stores import remove_checksums

SMALL_CHUNK = 64 << 10  # bytes
CROP = 28

Batches = Iterator[Any]


def make_stores(folder: Path, records: int) -> dict[str, str]:
    """Write the same images, as compressible as photographs are, in chunks of two sizes; return where."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (records, 3, 8, 8), dtype=np.uint8)
    images = coarse.repeat(4, 2).repeat(4, 3) + rng.integers(0, 8, (records, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, records)
    write_store(str(folder / "large.zarr"), [(images, labels)])
    shutil.copytree(folder / "large.zarr", folder / "small.zarr")
    shutil.rmtree(folder / "small.zarr" / "data")
    group = zarr.open_group(folder / "small.zarr", mode="a")
    rows = SMALL_CHUNK // images[0].nbytes
    group.create_array("data", data=images, chunks=(rows, *images.shape[1:]))
    group.attrs["digest"] = "the same images in small chunks"
    remove_checksums(folder / "small.zarr")
    return {
        "1 MiB chunks": str(folder / "large.zarr"),
        "64 KiB chunks": str(folder / "small.zarr"),
    }


def crop(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return float32 images, each cropped and mirrored at random."""
    out = np.empty((*images.shape[:2], CROP, CROP), np.float32)
    for row, image in enumerate(images):
        top, left = rng.integers(0, images.shape[-1] - CROP + 1, 2)
        part = image[:, top : top + CROP, left : left + CROP]
        out[row] = part[:, :, ::-1] if rng.integers(2) else part
    return out


def ours(location: str, batch: int, shuffle: bool, augment: bool) -> Batches:
    """Yield batches as a worker gets them: read ahead on a thread, by the sampler's order."""
    store = open_store(location)
    clear_cache()
    sampler, rng = Sampler(len(store), batch, 0, store.block, shuffle), np.random.default_rng(0)

    def read(step: int) -> Any:
        return store.read(sampler.rows(step))

    with Prefetch(read, 0) as batches:
        for images, labels in batches:
            yield crop(images, rng) if augment else images, labels


def torch_loader(images: Any, labels: np.ndarray, workers: int) -> Callable[[int, bool, bool], Batches]:
    """Return a function that yields batches of PyTorch's DataLoader over an array, a record at a time."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Records(Dataset):
        def __init__(self, augment: bool):
            self.augment, self.rng = augment, np.random.default_rng(0)

        def __len__(self) -> int:
            return len(labels)

        def __getitem__(self, row: int) -> Any:
            image = np.asarray(images[row])
            if self.augment:
                image = crop(image[None], self.rng)[0]
            return torch.from_numpy(np.ascontiguousarray(image)), int(labels[row])

    def batches(batch: int, shuffle: bool, augment: bool) -> Batches:
        return iter(DataLoader(Records(augment), batch, shuffle=shuffle, num_workers=workers))

    return batches


def rate(batches: Batches, batch: int, seconds: float) -> float:
    """Return images a second, the start of the loader included."""
    started, count = time.perf_counter(), 0
    for _ in batches:
        count += batch
        if time.perf_counter() - started > seconds:
            break
    return count / (time.perf_counter() - started)


@click.command()
@click.option("--records", default=20_000, show_default=True)
@click.option("--batch", default=64, show_default=True)
@click.option("--turns", default=3, show_default=True)
@click.option("--seconds", default=0.7, show_default=True, help="Of a turn.")
def main(records: int, batch: int, turns: int, seconds: float) -> None:
    """Print images a second of each loader, and how many times as fast dsinga's is."""
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        stores = make_stores(Path(folder), records)
        group: Any = zarr.open_group(stores["1 MiB chunks"], mode="r")
        images, labels = np.asarray(group["data"]), np.asarray(group["labels"])
        peers = {f"PyTorch, numpy array, {n} workers": torch_loader(images, labels, n) for n in (0, 1, 2)}
        peers["PyTorch, zarr array, 0 workers"] = torch_loader(group["data"], labels, 0)
        click.echo("| order | crop and mirror | loader | images/s | dsinga (1 MiB chunks) / this |\n| " + "--- | " * 5)
        for shuffle, augment in ((True, False), (False, False), (True, True), (False, True)):
            rates: dict[str, list[float]] = {}
            for _ in range(turns):
                for name, location in stores.items():
                    images_per_second = rate(ours(location, batch, shuffle, augment), batch, seconds)
                    rates.setdefault(f"dsinga, {name}", []).append(images_per_second)
                for name, peer in peers.items():
                    rates.setdefault(name, []).append(rate(peer(batch, shuffle, augment), batch, seconds))
            medians = {name: statistics.median(figures) for name, figures in rates.items()}
            for name, median in medians.items():
                order, how = "shuffled" if shuffle else "sequential", "yes" if augment else "no"
                ratio = medians["dsinga, 1 MiB chunks"] / median
                click.echo(f"| {order} | {how} | {name} | {median:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
