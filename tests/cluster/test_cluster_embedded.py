"""What a cluster of one's own is set to, and which threads compute, so that workers are not kept from computing."""

from __future__ import annotations

import logging
import resource
import threading

import numpy as np
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, get_worker

from dsinga.api import train
from dsinga.job import AlgConf, Job
from dsinga.layers import Rows
from dsinga.registry import register
from dsinga.training import bp

TURNS = 50
MEGABYTE = 1 << 20
MET: list[tuple[Rows, int]] = []
THREADS: set[tuple[str, int, str]] = set()


def tells_its_share(net, values, records, ctx, push):
    MET.append((ctx.rows, get_worker().state.nthreads))
    return bp(net, values, records, ctx, push)


def tells_its_thread(net, values, records, ctx, push):
    thread = threading.current_thread()
    THREADS.add((thread.name, thread.ident, get_worker().address))
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


def test_what_goes_wrong_in_an_event_loop_is_told_but_no_wait_that_nobody_waits_for(threads: Client, caplog) -> None:
    loop = threads.loop.asyncio_loop
    with caplog.at_level(logging.ERROR):  # Dask has set it higher
        for error in (TimeoutError("Timeout"), OSError("no route")):
            loop.create_future().set_exception(error)  # and let go of it
    assert "no route" in caplog.text
    assert "Timeout" not in caplog.text


def test_rounds_of_a_worker_with_several_threads_run_in_one(job: Job):
    """It is none of Dask's, which take turns, and what runs there finds its Dask worker."""
    register("algorithm", "TellsItsThread")(tells_its_thread)
    job = job.replace(train_one_batch=AlgConf(user_alg="TellsItsThread"))
    with (
        LocalCluster(n_workers=1, threads_per_worker=3, processes=False, dashboard_address=":0", memory_limit=0) as one,
        Client(one, set_as_default=False) as client,
    ):
        train(job, client, progress=False)
        ((name, _, address),) = THREADS
        assert address == one.workers[0].address
    assert name.startswith("dsinga ")
