"""The queue of runs where processes die, and on schedulers without dsinga or with another version of it."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from distributed import Client

from dsinga import RunError
from dsinga.cluster import connect
from dsinga.job import Job
from tests.support.gated_runs import PATIENCE, Gate
from tests.support.observers import train_observed
from tests.support.refusals import refused
from tests.support.small_job import JOB, with_topology, without_restarts

pytestmark = [pytest.mark.process, pytest.mark.ci, pytest.mark.usefixtures("announced_at_once")]


# A driver that trains until it is killed.
DRIVER = """
import sys
import dsinga
from distributed import Client

dsinga.train(sys.argv[1], Client(sys.argv[2]), workers=3)
"""


def test_a_killed_driver_gives_its_workers_to_the_next_run(job: Job, processes: Client, stores: Path) -> None:
    conf = stores / "killed.conf"
    conf.write_text(JOB.replace("train_steps: 50", "train_steps: 100000000"))
    address = processes.scheduler.address  # type: ignore[union-attr]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(conf), address], stderr=subprocess.PIPE, text=True)
    try:
        assert "step 10/" in next(line for line in driver.stderr if "step" in line)
        gate = Gate(opened=True)
        with ThreadPoolExecutor() as pool:
            run = pool.submit(train_observed, with_topology(job, 3), processes, gate)
            assert gate.waited.wait(PATIENCE)
            driver.kill()
            assert run.result(PATIENCE).step == 50
    finally:
        driver.kill()
        driver.communicate()


def test_a_run_that_waits_begins_on_the_workers_that_a_lost_one_leaves(job: Job) -> None:
    with connect(workers=2, separate_processes=True) as client, ThreadPoolExecutor() as pool:
        first, second = Gate(), Gate(opened=True)
        endless = without_restarts(with_topology(job, 2)).replace(train_steps=100_000)
        lost = pool.submit(train_observed, endless, client, first)
        assert first.reached.wait(PATIENCE)
        other = pool.submit(train_observed, with_topology(job, 1), client, second)
        assert second.waited.wait(PATIENCE)
        os.kill(client.run(os.getpid).popitem()[1], signal.SIGKILL)
        first.go.set()
        refused(lambda: lost.result(PATIENCE), "was lost", error=RunError)
        assert other.result(PATIENCE).step == 50
