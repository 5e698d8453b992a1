"""What many runs leave in the processes of a cluster: ``python -m tools.soak [--minutes 30] [--runs 60]``.

Runs of five kinds follow one another, spread over the minutes, on a scheduler and two Dask workers that are processes
of their own. After each run four figures of every process are read from the system, the client's included: resident
memory, open descriptors, threads, and maps of shared memory. None may be more than 2% higher (counts: more than two
higher) after the last five runs than after run five, on average; the exit status is 1 where one is. All processes have
the environment of this one: the settings for long-lived clusters in docs/howto/speed.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from distributed import Client

import dsinga
from dsinga.data import write_store
from dsinga.job import ClusterConf, Job
from dsinga.models import mlp

FIRST = 5  # the run with which the last five are compared
GOAL = 0.02  # share by which resident memory may grow
COUNT_GOAL = 2  # descriptors, threads and maps that may be added
SETTLE_SECONDS = 1.0  # memory of a run is given back a little after its end
MEGABYTE = 2**20
WORKERS, THREADS = 2, 2

Figures = dict[str, float]


def train(job: Job, client: Client, folder: Path) -> None:
    """Train with two workers and two servers, with tests, checkpoints and metrics in a workspace."""
    dsinga.train(job, client, workspace=str(folder / "workspace"), progress=False)


def train_asynchronously(job: Job, client: Client, folder: Path) -> None:
    """Train two groups of one worker, each with a server group of its own."""
    job = job.replace(cluster=ClusterConf(nworker_groups=2, nserver_groups=2))
    dsinga.train(job, client, progress=False)


def train_from_arrays(job: Job, client: Client, folder: Path) -> None:
    """Train from arrays in the client's memory."""
    random = np.random.default_rng(1)
    data = random.integers(0, 255, (2000, 784)).astype(np.uint8), random.integers(0, 10, 2000)
    dsinga.train(job, client, data=data, progress=False)


def train_and_predict(job: Job, client: Client, folder: Path) -> None:
    """Train, then predict the features of all records in the client's memory."""
    params = dsinga.train(job, client, progress=False).params
    dsinga.predict(job, params, "fc2", "test", client)


def diverge(job: Job, client: Client, folder: Path) -> None:
    """Train with a learning rate at which the loss becomes infinite: the run fails."""
    rate = job.updater.learning_rate.replace(base_lr=1e6)
    with contextlib.suppress(dsinga.RunError):
        dsinga.train(job.replace(updater=job.updater.replace(learning_rate=rate)), client, progress=False)


KINDS: Sequence[Callable[[Job, Client, Path], None]] = (
    train, train_asynchronously, train_from_arrays, train_and_predict, diverge,
)  # fmt: skip


def make_job(folder: Path) -> Job:
    """Return a job for two workers with its records in ``folder``."""
    random = np.random.default_rng(0)
    for name, count in (("train", 4000), ("test", 500)):
        records = random.integers(0, 255, (count, 784)).astype(np.uint8), random.integers(0, 10, count)
        write_store(folder / f"{name}_data.zarr", [records])
    job = mlp([512, 256], data=str(folder), train_steps=60, test_freq=30)
    return job.replace(cluster=ClusterConf(nworkers_per_group=2, nservers_per_group=2), checkpoint_freq=30)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[Client, dict[str, int]]]:
    """Start a scheduler and Dask workers as commands; give a client, and the numbers of all processes by name."""
    file = folder / "scheduler.json"
    common = ["--scheduler-file", str(file)]
    commands = {"scheduler": ["distributed.cli.dask_scheduler", *common, "--port", "0", "--dashboard-address", ":0"]}
    for number in range(WORKERS):
        options = [*common, "--nthreads", str(THREADS), "--no-nanny", "--dashboard-address", ":0"]
        commands[f"worker {number}"] = ["distributed.cli.dask_worker", *options]
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            with open(folder / f"{name}.log", "wb") as log:
                started[name] = subprocess.Popen([sys.executable, "-m", *command], stderr=log, stdout=log, cwd=folder)
        with Client(scheduler_file=str(file), set_as_default=False, timeout=60) as client:
            client.wait_for_workers(WORKERS, timeout=60)
            yield client, {"client": os.getpid(), **{name: process.pid for name, process in started.items()}}
    finally:
        for process in reversed(started.values()):  # a Dask worker whose scheduler has gone waits for another one
            process.terminate()
            process.wait(timeout=30)


def figures(pid: int) -> Figures:
    """Return resident MiB, and the numbers of descriptors, threads and maps of shared memory, of a process."""
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text(encoding="utf-8").split()[1])
    maps = (folder / "maps").read_text(encoding="utf-8")
    return {
        "MiB": pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE,
        "descriptors": len(os.listdir(folder / "fd")),
        "threads": len(os.listdir(folder / "task")),
        "shared maps": maps.count("memfd:dsinga") + maps.count("/dev/shm/"),
    }


def soak(minutes: float, runs: int) -> dict[str, list[Figures]]:
    """Return the figures of each process after each run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = make_job(folder)
        with cluster(folder) as (client, pids):
            table: dict[str, list[Figures]] = {process: [] for process in pids}
            began = time.monotonic()
            for run in range(runs):
                KINDS[run % len(KINDS)](job, client, folder)
                time.sleep(SETTLE_SECONDS)
                for process, pid in pids.items():
                    table[process].append(figures(pid))
                row = ", ".join(f"{process} {rows[-1]['MiB']:.1f}" for process, rows in table.items())
                print(f"run {run + 1}: MiB {row}", file=sys.stderr, flush=True)
                threading.Event().wait(max(0.0, began + 60 * minutes * (run + 1) / runs - time.monotonic()))
    return table


def report(table: dict[str, list[Figures]]) -> int:
    """Print each figure after run five and, on average, after the last five; return 1 if one has grown too much."""
    print(f"| process | figure | run {FIRST} | last {len(KINDS)} runs | growth | largest |\n|" + " --- |" * 6)
    status = 0
    for process, rows in table.items():
        for figure in rows[0]:
            column = [row[figure] for row in rows]
            early, late = column[FIRST - 1], mean(column[-len(KINDS) :])
            growth = late / early - 1 if early else 0.0
            failed = growth > GOAL if figure == "MiB" else late - early > COUNT_GOAL
            status |= failed
            cells = [process, figure, f"{early:.1f}", f"{late:.1f}", f"{growth:+.1%}", f"{max(column):.1f}"]
            print(f"| {' | '.join(cells)} |{' too much' if failed else ''}")
    return int(status)


def main() -> int:
    """Run the soak and print its table; return 1 if a process has grown."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--json", type=Path, help="write the figures after each run there, too")
    options = parser.parse_args()
    table = soak(options.minutes, options.runs)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1), encoding="utf-8")
    return report(table)


if __name__ == "__main__":
    sys.exit(main())
