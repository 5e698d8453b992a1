"""The settings of an embedded cluster, and the threads in which its workers compute."""

import contextlib
import logging
import resource
import socket
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.config
import numpy as np
import pytest
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, get_worker

from dsinga.api import train
from dsinga.base.registry import register
from dsinga.cluster import connect
from dsinga.job import AlgConf, Job
from dsinga.layers import Rows
from dsinga.training import bp
from tests.support.programs import python

REPEATS = 50
MEGABYTE = 1 << 20
SHARES: list[tuple[Rows, int]] = []
THREADS: set[tuple[str, int, str]] = set()


def waits_for_tasks(algorithm: Any) -> Any:
    """Say that an algorithm uses Dask, so that even one worker is trained on a cluster."""
    algorithm.waits_for_tasks = True
    return algorithm


@waits_for_tasks
def record_share(net, values, records, ctx, push):
    SHARES.append((ctx.rows, get_worker().state.nthreads))
    return bp(net, values, records, ctx, push)


def record_thread(net, values, records, ctx, push):
    thread = threading.current_thread()
    THREADS.add((thread.name, thread.ident, get_worker().address))
    return bp(net, values, records, ctx, push)


def page_faults() -> int:
    """Return the page faults while arrays of a megabyte are made and freed, after as many that are not counted."""
    for repeat in range(2 * REPEATS):
        if repeat == REPEATS:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.ones(MEGABYTE, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_worker_processes_reuse_the_memory_of_freed_arrays(processes: Client) -> None:
    for pages in processes.run(page_faults).values():
        assert pages < REPEATS * MEGABYTE // resource.getpagesize() // 4


def test_threads_are_never_taken_for_lost_workers(threads: Client) -> None:
    """As after the sleep of a laptop, in which they have sent no heartbeats."""
    assert not threads.run_on_scheduler(lambda dask_scheduler: dask_scheduler.worker_ttl)


def test_without_a_dashboard_workers_are_not_profiled_and_event_loops_tick_once_a_second() -> None:
    """Whatever Dask's settings are, which the fixtures of these tests change, too."""
    usual = {"distributed.worker.profile.enabled": True, "distributed.admin.tick.interval": "20ms"}
    with dask.config.set(usual), connect(workers=1) as client:
        (callbacks,) = client.run(lambda dask_worker: dask_worker.periodic_callbacks).values()
        assert "profile" not in callbacks
        assert callbacks["tick"].callback_time == 1000  # ms


def test_a_job_that_names_no_workers_has_one_with_all_cores(job: Job) -> None:
    register("algorithm", "RecordShare")(record_share)
    assert job.cluster is None
    train(job.replace(train_steps=1, train_one_batch=AlgConf(user_alg="RecordShare")), progress=False)
    assert SHARES == [((0, 100, 100), CPU_COUNT)]


@pytest.fixture
def usual_port_taken() -> Iterator[None]:
    """As where another Dask runs on the machine: a dashboard cannot have its usual port."""
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # another process has it already
            taken.bind(("0.0.0.0", 8787))
            taken.listen()
        yield


def test_the_dashboards_of_several_runs_do_not_warn_about_each_other(usual_port_taken: None) -> None:
    with warnings.catch_warnings(record=True) as shown, connect(workers=1, dashboard=True):
        pass
    assert not [warning for warning in shown if "already in use" in str(warning.message)]


def test_errors_of_an_event_loop_are_logged_but_for_abandoned_timeouts(threads: Client, caplog) -> None:
    loop = threads.loop.asyncio_loop
    with caplog.at_level(logging.ERROR):  # Dask has set it higher
        for error in (TimeoutError("Timeout"), OSError("no route")):
            loop.create_future().set_exception(error)  # the future is dropped at once
    assert "no route" in caplog.text
    assert "Timeout" not in caplog.text


def test_all_rounds_of_a_worker_run_in_one_thread(job: Job):
    """The thread is none of Dask's pool, but code in it finds its Dask worker."""
    register("algorithm", "RecordThread")(record_thread)
    job = job.replace(train_one_batch=AlgConf(user_alg="RecordThread"))
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=3, processes=False, dashboard_address=":0", memory_limit=0
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        train(job, client, progress=False)
        ((name, _, address),) = THREADS
        assert address == local.workers[0].address
    assert name.startswith("dsinga ")


@pytest.mark.ci
def test_a_script_that_starts_processes_when_it_is_imported_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from dsinga.cluster import connect\n\nwith connect(workers=1, separate_processes=True):\n    pass\n"
    )
    result = python(script, fails=True)
    assert f"each of them imports {script}: put what starts the cluster behind `if __name__ ==" in result.stderr
