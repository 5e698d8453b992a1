"""A thousand partitions whose kernels compute nothing, so that the engine alone runs: what Dask and the driver take.

    python -m tools.benchmarks.bench_many --partitions 1000 [--servers 8] [--processes 1] [--dask-workers 1000]
    python -m tools.benchmarks.bench_many --partitions 250 --cuts          # partitioning alone

The scheduler and the driver are processes of their own, whose processor time is read from the system; the Dask workers,
a thread and a partition each unless fewer are asked for, share a process or some. Prints seconds from ``train`` to the
end of the first round, and what the scheduler and the driver take of a core afterwards, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import dask
import numpy as np
from distributed import Client, Worker
from distributed.protocol.pickle import dumps

import dsinga
from dsinga.addons.planner.benchmark import SilentObserver
from dsinga.base.errors import Cancelled
from dsinga.cluster.connecting.embedded import QUIET_SETTINGS
from dsinga.cluster.preflight.worker_report import MODULES
from dsinga.cluster.run.driver import train
from dsinga.cluster.worker.configure import configure
from dsinga.cutting.cluster_topology import topology as create_topology
from dsinga.cutting.phases import cut_nets
from dsinga.data import write_store
from dsinga.job import ClusterConf, Job, LayerConf
from dsinga.layers import Connection, Cut, Layer, Output, ParamSpec
from dsinga.loop.initial_state import RunOptions
from dsinga.models.blocks import layer, make_job, read, updater
from dsinga.passes.opened_job import open_job
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import create_updater

# The layers with params of the net, and the numbers of each param.
DEPTH, WIDTH = 4, 64
RUN = "from tools.benchmarks.bench_many import run_workers; run_workers({!r}, {}, {})"
START_SECONDS = 200
# Each Dask worker of a process would look at all files and devices of the process.
LONE_SETTINGS = {"distributed.admin.system-monitor.interval": "10m", "distributed.worker.http.routes": []}
HERTZ = os.sysconf("SC_CLK_TCK")


@dsinga.register("layer", "Null")
class Null(Layer):
    """A layer with a param of WIDTH numbers, whose feature and gradients are zeros."""

    cut = Cut(Connection.kOneToOne)

    def __init__(self, conf: Any, source_shapes: Any, info: Any = None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        self.params = (ParamSpec("w", (WIDTH,)),)

    def compute_feature(self, params: Any, sources: Any, ctx: Any) -> Output:
        return Output(sources[0])

    def compute_gradient(self, params: Any, sources: Any, output: Any, grad: Any, needs: Any, ctx: Any) -> Any:
        return (grad if needs[0] else None,), (np.zeros(WIDTH, np.float32),)


@dsinga.register("layer", "NullLoss")
class NullLoss(Layer):
    """A loss of zero."""

    is_loss = True
    source_count = 1
    metric_names = ("loss",)

    def compute_feature(self, params: Any, sources: Any, ctx: Any) -> Output:
        return Output(sources[0], metrics={"loss": (0.0, len(sources[0]))})

    def compute_gradient(self, params: Any, sources: Any, output: Any, grad: Any, needs: Any, ctx: Any) -> Any:
        return (sources[0],), ()


def null_job(partitions: int, servers: int, steps: int, depth: int = DEPTH) -> Job:
    """Return the job of a net that computes nothing, with a record of a batch for each partition."""
    names = ["data", *(f"null{number}" for number in range(depth))]
    layers = read_train(partitions)
    layers += [layer(name, "kUserLayer", source, user_type="Null") for source, name in itertools.pairwise(names)]
    layers.append(layer("loss", "kUserLayer", names[-1], user_type="NullLoss"))
    cluster = ClusterConf(nworkers_per_group=partitions, nservers_per_group=servers)
    return make_job({}, "null", layers, updater("kSGD", 0.1), train_steps=steps, cluster=cluster)


def read_train(records: int) -> list[LayerConf]:
    """Return the input layer of training."""
    return [read("data", "train.zarr", ["kTrain"], records, shape=[1])]


def write_records(folder: Path, count: int) -> None:
    """Write the records of a few batches."""
    write_store(str(folder / "train.zarr"), [(np.zeros((4 * count, 1), np.float32), np.zeros(4 * count, np.int64))])


class Process:
    """Reads what a process has used so far."""

    def __init__(self, pid: int):
        self._folder = Path(f"/proc/{pid}")

    def seconds(self) -> float:
        """Return seconds of processor time."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / HERTZ

    def megabytes(self) -> float:
        """Return the memory that it has now."""
        pages = int((self._folder / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Rounds(SilentObserver):
    """Notes what processes have used at the end of each round; sets ``cancelled`` so many seconds after the first."""

    def __init__(self, processes: dict[str, Process], seconds: float, cancelled: threading.Event):
        self.rows: list[dict[str, float]] = []
        self._processes, self._seconds, self._cancelled = processes, seconds, cancelled

    def begin(self, step: int) -> None:
        """Note when all is prepared."""
        self.prepared = time.perf_counter()

    def progress(self, row: dict[str, Any]) -> None:
        """Note the end of a round."""
        figures = {"time": time.perf_counter(), "step": row["step"]}
        for name, process in self._processes.items():
            figures |= {f"{name} s": process.seconds(), f"{name} MB": process.megabytes()}
        self.rows.append(figures)
        if figures["time"] > self.rows[0]["time"] + self._seconds:
            self._cancelled.set()


def run_workers(address: str, count: int, threads: int) -> None:
    """Run Dask workers in this process until it is ended."""

    async def run() -> None:
        workers = [Worker(address, nthreads=threads, memory_limit=0, dashboard_address=":0") for _ in range(count)]
        for start in range(0, count, 50):
            await asyncio.gather(*workers[start : start + 50])
        await asyncio.gather(*(worker.finished() for worker in workers))

    for module in MODULES:
        importlib.import_module(module)
    # Each process of a cluster looks its packages up once; here a thousand threads would do so at the same time.
    metadata.version = functools.cache(metadata.version)
    with dask.config.set(QUIET_SETTINGS | LONE_SETTINGS):
        asyncio.run(run())


@contextlib.contextmanager
def cluster(dask_workers: int, processes: int, threads: int) -> Iterator[tuple[Client, int]]:
    """Start a scheduler, and processes with Dask workers; give a client, and the number of the scheduler's process."""
    started = []
    quiet = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "stderr": subprocess.DEVNULL}
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "scheduler.json"
            options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
            scheduler = subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_scheduler", *options], **quiet)
            started.append(scheduler)
            client = Client(scheduler_file=str(file), timeout=START_SECONDS)
        with client:
            address = client.scheduler.address
            for number in range(processes):
                count = dask_workers * (number + 1) // processes - dask_workers * number // processes
                started.append(subprocess.Popen([sys.executable, "-c", RUN.format(address, count, threads)], **quiet))
            client.wait_for_workers(dask_workers, timeout=START_SECONDS)
            yield client, scheduler.pid
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def measure(partitions: int, servers: int, dask_workers: int, processes: int, seconds: float) -> dict[str, float]:
    """Train the null job for so many seconds after its first round; return the figures."""
    threads, cancelled = -(-partitions // dask_workers), threading.Event()
    with tempfile.TemporaryDirectory() as folder, cluster(dask_workers, processes, threads) as (client, scheduler):
        write_records(Path(folder), partitions)
        watched = {"scheduler": Process(scheduler), "driver": Process(os.getpid())}
        job, rounds = null_job(partitions, servers, 10**6), Rounds(watched, seconds, cancelled)
        started, before = time.perf_counter(), {name: process.seconds() for name, process in watched.items()}
        with contextlib.suppress(Cancelled):
            train(job, client, rounds, RunOptions(roots=[folder], cancelled=cancelled))
        first, *_, last = rounds.rows
        wall = last["time"] - first["time"]
        middle = next(row for row in rounds.rows if row["time"] >= first["time"] + wall / 2)
        figures = {
            "partitions": partitions, "prepared s": rounds.prepared - started, "first round s": first["time"] - started,
            "rounds": len(rounds.rows), "ms a step": 1e3 * wall / (last["step"] - first["step"]), "watched s": wall,
        }  # fmt: skip
        for name in watched:
            figures[f"{name} to first round s"] = first[f"{name} s"] - before[name]
            figures[f"{name} cores"] = (last[f"{name} s"] - first[f"{name} s"]) / wall
            for moment, row in (("first", first), ("middle", middle), ("last", last)):
                figures[f"{name} MB, {moment}"] = row[f"{name} MB"]
        return figures


def measure_cuts(partitions: int) -> dict[str, float]:
    """Return the seconds that cutting a net takes, and the size of the configuration that workers get."""
    with tempfile.TemporaryDirectory() as folder:
        write_records(Path(folder), partitions)
        job = null_job(partitions, 1, 1)
        topology = create_topology(job, partitions, 1)
        opened = open_job(CheckedJob(job, [folder]), topology.workers, topology.groups)
        began = time.perf_counter()
        nets = cut_nets(opened.nets, opened.readers)
        cut = time.perf_counter() - began
        config = configure(job, topology, opened, nets, create_updater(job.updater), run="run")
        pickled = dumps(config)
    return {"partitions": partitions, "cut s": cut, "config MB": len(pickled) / 1e6}


@click.command()
@click.option("--partitions", "counts", multiple=True, type=int, default=(250, 500, 1000), show_default=True)
@click.option("--servers", default=8, show_default=True)
@click.option("--dask-workers", default=None, type=int, help="By default one for each partition.")
@click.option("--processes", default=1, show_default=True, help="How many processes the Dask workers share.")
@click.option("--seconds", default=60.0, show_default=True, help="How long to watch after the first round.")
@click.option("--cuts", is_flag=True, help="Only cut the net.")
def main(
    counts: tuple[int, ...], servers: int, dask_workers: int | None, processes: int, seconds: float, cuts: bool
) -> None:
    """Print the figures of each number of partitions as a line of JSON."""
    for count in counts:
        if cuts:
            figures = measure_cuts(count)
        else:
            figures = measure(count, servers, dask_workers or count, processes, seconds)
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}), flush=True)


if __name__ == "__main__":
    main()
