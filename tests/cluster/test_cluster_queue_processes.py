"""The queue of runs where processes die, and on schedulers without dsinga or with another version of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dsinga import RunError, UserError, cluster
from dsinga.api import roots
from dsinga.cluster import claims, connect, run_queue
from dsinga.cluster.cancellation import Cancellation
from dsinga.cluster.claims import Request, claim_workers
from dsinga.job import Job
from dsinga.job.topology import Topology
from tests.support.gated_runs import PATIENCE, Gate, run_states
from tests.support.small_job import JOB, with_topology

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def announce_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "FIRST_ANNOUNCEMENT_SECONDS", 0.0)


# A cluster in a process that cannot import dsinga: two Dask workers of two threads, one of which has a GPU.
FOREIGN = """
import sys
sys.modules["dsinga"] = None
from distributed import Scheduler, Worker
import asyncio

async def main():
    async with Scheduler(port=0, dashboard_address=":0") as scheduler:
        async with Worker(scheduler.address, nthreads=2, name="a", resources={"GPU": 1}, dashboard=False):
            async with Worker(scheduler.address, nthreads=2, name="b", dashboard=False):
                print(scheduler.address, flush=True)
                await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""
# A driver that trains until it is killed.
DRIVER = """
import sys
import dsinga
from distributed import Client

dsinga.train(sys.argv[1], Client(sys.argv[2]), workers=3)
"""


@pytest.fixture(scope="module")
def foreign() -> Iterator[Client]:
    with subprocess.Popen([sys.executable, "-c", FOREIGN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with Client(process.stdout.readline().decode().strip(), set_as_default=False) as client:
            yield client
        process.communicate()


def claim(client: Client, run: str = "run", workers: int = 1) -> Any:
    return claim_workers(client, Request(run, run, Topology(workers, 1)), Cancellation(), lambda sentence: None)


def test_the_scheduler_needs_no_dsinga(foreign: Client) -> None:
    with claim(foreign, "first", 3) as first, claim(foreign, "second") as second:
        assert [info["nthreads"] for info in first.workers.values()] == [2, 1]
        assert [info["host_threads"] for info in first.workers.values()] == [4, 4]
        assert [(info["nthreads"], info["host_threads"]) for info in second.workers.values()] == [(1, 1)]
        assert run_states(foreign) == {"first": "running", "second": "running"}
    assert run_states(foreign) == {}


def test_another_version_of_the_queue_is_refused_while_runs_are_in_it(
    foreign: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claim(foreign):
        for module in (claims, run_queue):
            monkeypatch.setattr(module, "PROTOCOL", 2)
        claims._pickle_by_value.cache_clear()
        refused = r"another version of dsinga has runs on this cluster \(its queue of runs has version 1, this one 2\)"
        with pytest.raises(UserError, match=refused), claim(foreign, "newer"):
            pass
    with claim(foreign, "newer"):
        assert run_states(foreign) == {"newer": "running"}
    monkeypatch.undo()
    claims._pickle_by_value.cache_clear()
    with claim(foreign):
        assert run_states(foreign) == {"run": "running"}


def test_a_killed_driver_gives_its_workers_to_the_next_run(job: Job, processes: Client, stores: Path) -> None:
    conf = stores / "killed.conf"
    conf.write_text(JOB.replace("train_steps: 50", "train_steps: 100000000"))
    address = processes.scheduler.address  # type: ignore[union-attr]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(conf), address], stderr=subprocess.PIPE, text=True)
    try:
        assert driver.stderr is not None
        assert "step 10/" in next(line for line in driver.stderr if "step" in line)
        gate = Gate(opened=True)
        with ThreadPoolExecutor() as pool:
            run = pool.submit(cluster.train, with_topology(job, 3), processes, gate, roots=roots(job, None))
            assert gate.waited.wait(PATIENCE)
            driver.kill()
            assert run.result(PATIENCE).step == 50
    finally:
        driver.kill()
        driver.communicate()


def test_a_run_that_waits_begins_on_the_workers_that_a_lost_one_leaves(job: Job) -> None:
    with connect(workers=2, separate_processes=True) as client, ThreadPoolExecutor() as pool:
        first, second = Gate(), Gate(opened=True)
        lost = pool.submit(cluster.train, with_topology(job, 2), client, first, roots=roots(job, None))
        assert first.reached.wait(PATIENCE)
        other = pool.submit(cluster.train, with_topology(job, 1), client, second, roots=roots(job, None))
        assert second.waited.wait(PATIENCE)
        os.kill(client.run(os.getpid).popitem()[1], signal.SIGKILL)
        first.go.set()
        with pytest.raises(RunError, match="was lost"):
            lost.result(PATIENCE)
        assert other.result(PATIENCE).step == 50
