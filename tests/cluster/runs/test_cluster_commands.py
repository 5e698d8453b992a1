"""A scheduler and a Dask worker started by the commands of docs/howto/security.md: their open ports, and their logs."""

import contextlib
import ipaddress
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from distributed import Client

from dsinga.api import train
from dsinga.cluster import connect
from dsinga.job import Job
from tests.support.executed_pages import ROOT, blocks, command_environment, end_group
from tests.support.small_job import with_topology
from tests.support.tls import security, write_certificates

pytestmark = [pytest.mark.process, pytest.mark.ci]
# Seconds until processes have started or ended.
PATIENCE = 60
# So often a client connects, trains and closes: what it leaves to be sent as it closes is not always too late.
RUNS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the commands of the page have started a cluster, with its certificates and logs."""
    folder = write_certificates(tmp_path_factory.mktemp("cluster"))
    shell = command_environment(tmp_path_factory.mktemp("commands"), folder / "cache")
    page = blocks((ROOT / "docs/howto/security.md").read_text(encoding="utf-8"))
    (script,) = [block.text for block in page if block.file == "start.sh"]
    process = subprocess.Popen(["bash", "-c", f"{script}wait\n"], cwd=folder, env=shell, start_new_session=True)
    try:
        yield folder
    finally:
        end_group(process.pid)
        process.wait(PATIENCE)


@contextlib.contextmanager
def connected(folder: Path) -> Iterator[Client]:
    """Give a client of the cluster."""
    with connect(scheduler_file=str(folder / "scheduler.json"), security=security(folder)) as client:
        client.wait_for_workers(1, timeout=PATIENCE)
        yield client


def cluster_processes(client: Client) -> list[psutil.Process]:
    """Return the Dask worker, its nanny, and the scheduler."""
    (worker,) = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
    nanny = next(parent for parent in worker.parents() if "worker" in parent.cmdline())
    return [worker, nanny, psutil.Process(client.run_on_scheduler(os.getpid))]


def open_addresses(processes: list[psutil.Process]) -> list[list[str]]:
    """Return the addresses at which each process listens that other machines can reach."""
    return [
        [
            connection.laddr.ip
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN and not ipaddress.ip_address(connection.laddr.ip).is_loopback
        ]
        for process in processes
    ]


def test_no_port_is_open_to_other_machines(folder: Path) -> None:
    with connected(folder) as client:
        assert open_addresses(cluster_processes(client)) == [[], [], []]


def test_logs_have_no_error_after_good_ends(folder: Path, job: Job, caplog: pytest.LogCaptureFixture) -> None:
    with connected(folder) as client:
        processes = cluster_processes(client)
    for _ in range(RUNS):
        with connected(folder) as client:
            train(with_topology(job, 2), client, progress=False)
    _, nanny, scheduler = processes
    for process in (nanny, scheduler):
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    logs = {name: (folder / f"{name}.log").read_text(encoding="utf-8") for name in ("scheduler", "workers")}
    assert "End scheduler" in logs["scheduler"]
    assert "End worker" in logs["workers"]
    for name, text in logs.items():
        assert not [word for word in ("Traceback", " - ERROR", " - CRITICAL") if word in text], f"{name}:\n{text}"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("separate_processes", [False, True])
def test_no_port_of_an_embedded_cluster_is_open_to_other_machines(separate_processes: bool) -> None:
    before = set(psutil.Process().net_connections("inet"))
    with connect(workers=1, separate_processes=separate_processes, dashboard=True) as client:
        here = set(psutil.Process().net_connections("inet")) - before
        addresses = {connection.laddr.ip for connection in here if connection.status == psutil.CONN_LISTEN}
        assert addresses == {"127.0.0.1"}
        workers = [psutil.Process(pid) for pid in client.run(os.getpid).values() if separate_processes]
        assert open_addresses(workers) == [[] for _ in workers]
