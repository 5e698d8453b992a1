"""What a cluster of one's own is set to, so that workers are not kept from computing."""

from __future__ import annotations

import resource

import numpy as np
from dask.system import CPU_COUNT
from distributed import Client, get_worker

from dsinga.api import train
from dsinga.job import AlgConf, Job
from dsinga.layers import Rows
from dsinga.registry import register
from dsinga.training import bp

TURNS = 50
MEGABYTE = 1 << 20
MET: list[tuple[Rows, int]] = []


def tells_its_share(net, values, records, ctx, push):
    MET.append((ctx.rows, get_worker().state.nthreads))
    return bp(net, values, records, ctx, push)


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


def test_event_loops_are_looked_at_once_a_second_without_a_dashboard(processes: Client, threads: Client) -> None:
    for client in (processes, threads):
        apart = client.run(lambda dask_worker: dask_worker.periodic_callbacks["tick"].callback_time)
        here = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.periodic_callbacks["tick"].callback_time)
        assert {here, *apart.values()} == {1000}  # ms


def test_a_job_that_names_no_workers_has_one_with_all_cores(job: Job) -> None:
    register("algorithm", "TellsItsShare")(tells_its_share)
    assert job.cluster is None
    train(job.replace(train_steps=1, train_one_batch=AlgConf(user_alg="TellsItsShare")), progress=False)
    assert MET == [((0, 100, 100), CPU_COUNT)]
