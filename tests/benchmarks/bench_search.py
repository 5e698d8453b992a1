"""How near a search comes to the ideal packing of its runs: ``python -m tests.benchmarks.bench_search``.

20 settings of one job, with different numbers of steps, on two worker processes with two threads each. First each
setting is trained alone, with the kernel threads that it has in the search, and timed; then all are searched. The ideal
is what list scheduling of the single times gives, in the order of the settings (each begins as soon as a processor is
free), on as many processors as there are threads, or cores if these are fewer. No packing is shorter than the lower
bound: all work divided by the processors, or the longest run. Drivers and scheduler need processors, too; alone they
have the other ones: processor time tells how much of the difference that is. The last lines say how many threads were
idle, by the times of the runs within the search.
"""

from __future__ import annotations

import argparse
import heapq
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster

import dsinga
from dsinga.api.clients import find_cluster
from dsinga.api.execution import Execution, TrainingOptions
from dsinga.data import write_store
from dsinga.job import Job
from dsinga.models import mlp

PROCESSES, THREADS, SETTINGS = 2, 2, 20
STEPS = 400  # of a run, on average


def list_schedule(durations: Sequence[float], processors: int) -> float:
    """Return when the last of these durations ends, each begun in order as soon as a processor is free."""
    free = [0.0] * processors
    for duration in durations:
        heapq.heappush(free, heapq.heappop(free) + duration)
    return max(free)


def lower_bound(durations: Sequence[float], processors: int) -> float:
    """Return a time that no packing is shorter than."""
    return max(sum(durations) / processors, max(durations))


def processor_seconds() -> float:
    """Return the processor time that this process and those that it has started have used."""
    process = psutil.Process()
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def make_job(folder: Path) -> Job:
    """Return a job with its records in ``folder``."""
    random = np.random.default_rng(0)
    records = random.integers(0, 255, (4000, 784)).astype(np.uint8), random.integers(0, 10, 4000)
    for name in ("train", "test"):
        write_store(folder / f"{name}_data.zarr", [records])
    return mlp([256, 128], data=str(folder), train_steps=1, test_freq=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help="mean number of steps of a run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    random = np.random.default_rng(1)
    steps = [int(count) for count in random.permutation(np.linspace(0.25, 1.75, SETTINGS) * arguments.steps)]
    threads = PROCESSES * THREADS
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=PROCESSES, threads_per_worker=THREADS, processes=True, dashboard_address=":0", memory_limit=0
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        job = make_job(Path(folder))
        source, options = find_cluster(client), TrainingOptions(workers=1, progress=False)
        warm = dsinga.search(job, {"train_steps": [5] * threads}, client, progress=False)  # kernels, imports
        assert len(warm) == threads
        alone, used = [], processor_seconds()
        for count in steps:
            started = time.perf_counter()
            Execution(job.replace(train_steps=count), source, options, max_threads=1).execute()
            alone.append(time.perf_counter() - started)
        used_alone = processor_seconds() - used
        used, started = processor_seconds(), time.perf_counter()
        result = dsinga.search(job, {"train_steps": steps}, client, progress=False)
        total, used_together = time.perf_counter() - started, processor_seconds() - used
    assert all(row["state"] == "finished" for row in result)
    processors = min(threads, CPU_COUNT)
    ideal, bound = list_schedule(alone, processors), lower_bound(alone, processors)
    within = [row["seconds"] for row in result]
    figures = {
        "threads": threads,
        "cores": CPU_COUNT,
        "alone_seconds": round(sum(alone), 2),
        "search_seconds": round(total, 2),
        "ideal_seconds": round(ideal, 2),
        "lower_bound_seconds": round(bound, 2),
        "search_to_ideal": round(total / ideal, 3),
        "search_to_lower_bound": round(total / bound, 3),
        "alone_processor_seconds": round(used_alone, 2),
        "search_processor_seconds": round(used_together, 2),
        "search_to_alone_processors": round(total * processors / used_alone, 3),
        "slots_packing_seconds": round(list_schedule(within, threads), 2),
        "busy_share_of_threads": round(sum(within) / (threads * total), 3),
    }
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:24} {figure:10,.3f}")


if __name__ == "__main__":
    main()
