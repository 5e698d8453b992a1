"""What a cluster of one's own is set to, so that workers are not kept from computing."""

from __future__ import annotations

import resource

import numpy as np
from distributed import Client

TURNS = 50
MEGABYTE = 1 << 20


def new_pages() -> int:
    """Return how many pages a process meets anew while arrays of a megabyte come and go, a few times to begin with."""
    for turn in range(2 * TURNS):
        if turn == TURNS:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.ones(MEGABYTE, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_worker_processes_keep_the_memory_of_arrays_that_come_and_go(processes: Client) -> None:
    for pages in processes.run(new_pages).values():
        assert pages < TURNS * MEGABYTE // resource.getpagesize() // 4


def test_nobody_samples_the_threads_of_workers_without_a_dashboard(processes: Client, threads: Client) -> None:
    for client in (processes, threads):
        assert not any(client.run(lambda dask_worker: "profile" in dask_worker.periodic_callbacks).values())
