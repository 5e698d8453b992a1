"""Memory and seconds of a net for a single large field, whole and cut by space over worker processes.

``python -m tools.benchmarks.bench_space --size 4096`` trains a convolutional net on batches of one field of so many
points a side: by one process, and in stripes by two and four. Each row has the largest resident memory of a worker, and
the loss of the last step. With ``--limit 2.0`` each worker process may use so many GiB of data (RLIMIT_DATA): runs that
need more say so.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import zarr

import dsinga
from dsinga import nn
from dsinga.cluster import connect
from dsinga.data import open_records
from dsinga.job import ClusterConf, Job

STEPS = 3


def field_job(size: int, workers: int, folder: Path, filters: int = 4) -> Job:
    """Return the job of three convolutions of a field of ``size`` x ``size`` points, in stripes over the workers."""
    path = folder / f"{size}.zarr"
    if not path.exists():
        rng = np.random.default_rng(0)
        group = zarr.open_group(path, mode="w")
        for name in ("data", "label"):
            array = group.create_array(name, shape=(2, 1, size, size), chunks=(1, 1, 512, size), dtype="float32")
            for number in range(2):
                array[number] = rng.normal(size=(1, size, size)).astype(np.float32)
    x = nn.Input((1, size, size), name="data")
    y = x
    for number in (1, 2):
        y = nn.Conv2D(filters, 3, padding=1, kernel_initializer="he_normal", name=f"conv{number}")(y)
        y = nn.ReLU(name=f"relu{number}")(nn.BatchNormalization(name=f"norm{number}")(y))
    model = nn.Model(x, nn.Conv2D(1, 3, padding=1, name="output")(y))
    model.compile(nn.SGD(0.01), "mse")
    records = open_records(str(path), data="data", label="label")
    job = model.job(records, train_steps=STEPS, batch_size=1, seed=1)
    cluster = ClusterConf(nworkers_per_group=workers)
    return job.replace(cluster=cluster, disp_freq=1, net=job.net.replace(partition_dim=2))


def largest_resident() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def set_limit(gib: float) -> None:
    """Let this process, and each that it starts, use so many GiB of data."""
    size = int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def measure(size: int, workers: int, folder: Path) -> str:
    """Train in so many worker processes; return a row of the table."""
    job = field_job(size, workers, folder)
    with connect(workers=workers, separate_processes=True) as client:
        started = time.perf_counter()
        try:
            result = dsinga.train(job, client=client, progress=False)
        except Exception as error:
            return f"{workers} workers: {type(error).__name__}: {str(error).splitlines()[0][:150]}"
        seconds = (time.perf_counter() - started) / STEPS
        peaks = ", ".join(f"{peak:,.0f}" for peak in client.run(largest_resident).values())
    loss = [row["loss"] for row in result.history if "loss" in row][-1]
    return f"{workers} workers: peaks {peaks} MiB, {seconds:.1f} s a step with the start, loss {loss:.7f}"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--limit", type=float, default=0.0)
    options = parser.parse_args(arguments)
    if options.limit:
        set_limit(options.limit)
    with tempfile.TemporaryDirectory() as folder:
        for workers in options.workers:
            print(measure(options.size, workers, Path(folder)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
