"""A Dask worker that dies ends a run without restarts with a clear error, and the run can be resumed.

Calls between workers and servers wait for five minutes, longer than a test may take: a run that ends here was ended by
the supervision of its workers.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dsinga import RunError, cluster
from dsinga.api import roots, train
from dsinga.cluster import connect, prepare_run
from dsinga.cluster.run.servers import Servers
from dsinga.job import ClusterConf, Job
from tests.support.small_job import assert_same, with_topology, without_restarts

pytestmark = pytest.mark.process


class KillAt:
    """An observer that kills a process once ``step`` steps are done."""

    def __init__(self, pid: int, step: int):
        self._pid, self._step = pid, step
        self.killed = False

    def waiting(self, sentence: str) -> None: ...

    def begin(self, step: int) -> None:
        pass

    def record(self, row: dict[str, Any]) -> None:
        if row["step"] >= self._step and not self.killed:
            self.killed = True
            os.kill(self._pid, signal.SIGKILL)

    def progress(self, row: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("victim", [0, 1], ids=["the one with the server", "one without a server"])
def test_a_killed_worker_ends_the_run(job: Job, tmp_path: Path, victim: int) -> None:
    job = without_restarts(with_topology(job, 2)).replace(train_steps=100_000, checkpoint_freq=20)
    with connect(workers=2, separate_processes=True) as client:
        workers = cluster.available_workers(client)
        address = list(workers)[victim]
        observer = KillAt(client.run(os.getpid)[address], 50)
        with pytest.raises(RunError) as raised:
            cluster.train(job, client, observer, workspace=tmp_path, roots=roots(job, None))
        assert observer.killed
        assert address in str(raised.value)
        assert "was lost" in str(raised.value)
        assert re.search(r"steps were done; go on from .*/checkpoint/step[46]0 with resume=True", str(raised.value))


@pytest.mark.parametrize(
    ("figures", "victim"),
    [
        ({"nworkers_per_group": 2, "nservers_per_group": 2}, 1),
        ({"nworkers_per_group": 2, "server_worker_separate": True}, 2),
        ({"nworker_groups": 3}, 1),
        ({"nworker_groups": 2, "server_worker_separate": True}, 2),
        ({"nworker_groups": 3, "nserver_groups": 3, "sync_topology": "kStar"}, 1),
    ],
    ids=[
        "AllReduce, a worker with a server",
        "Sandblaster, the server",
        "Downpour, a worker of another group",
        "Downpour, the server",
        "Hogwild, a group at the rim",
    ],
)
def test_the_loss_of_any_member_ends_the_run(job: Job, figures: dict[str, Any], victim: int) -> None:
    """Also of a member that the others do not wait for at once."""
    job = job.replace(cluster=ClusterConf(**figures, max_restarts=0), train_steps=100_000)
    with connect(workers=3, separate_processes=True) as client:
        address = list(cluster.available_workers(client))[victim]
        observer = KillAt(client.run(os.getpid)[address], 20)
        with pytest.raises(RunError, match="was lost") as raised:
            cluster.train(job, client, observer, roots=roots(job, None))
        assert address in str(raised.value)
        assert observer.killed


def test_a_killed_run_resumes_to_the_same_bits(job: Job, tmp_path: Path) -> None:
    job = with_topology(job, 2).replace(train_steps=60, checkpoint_freq=20)
    with connect(workers=2) as client:
        unbroken = train(job, client, progress=False)
    with connect(workers=2, separate_processes=True) as client:
        pid = next(iter(client.run(os.getpid).values()))
        endless = without_restarts(job).replace(train_steps=100_000)
        with pytest.raises(RunError):
            cluster.train(endless, client, KillAt(pid, 40), workspace=tmp_path, roots=roots(job, None))
    for later in tmp_path.glob("checkpoint/step*"):
        if int(later.name[4:]) > 40:
            later.rename(tmp_path / later.name)
    with connect(workers=2) as client:
        resumed = train(job, client, workspace=tmp_path, resume=True, progress=False)
    assert_same(resumed.params, unbroken.params)


def test_a_server_that_is_lost_is_named_to_its_driver(job: Job) -> None:
    with connect(workers=2, separate_processes=True) as client:
        with prepare_run(with_topology(job, 2), client, roots(job, None)) as layout:
            pass
        servers = Servers(client, layout.config, layout.placement)
        servers.create(0)
        victim = layout.placement.servers[0][0]
        os.kill(client.run(os.getpid)[victim], signal.SIGKILL)
        for _ in range(2):  # when the call fails, and when Dask knows without a call
            with pytest.raises(RunError, match="was lost") as raised:
                servers.call(0, "snapshot", None)
            assert victim in str(raised.value)


def test_no_thread_is_left_behind(job: Job) -> None:
    with connect(workers=2) as client:
        before = threading.active_count()
        train(with_topology(job, 2), client, progress=False)
        deadline = time.monotonic() + 10
        while left := [thread.name for thread in threading.enumerate() if thread.name.startswith("dsinga")]:
            assert time.monotonic() < deadline, left
            threading.Event().wait(0.01)
        assert threading.active_count() <= before + 4  # Dask's pools may have grown
