"""Hosts whose network can be cut: network namespaces at a bridge, a Dask worker on each. Needs root and ``ip``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from distributed import Client

from tests.support.executed_pages import ROOT

NETWORK = "10.79.0"
HERE = f"{NETWORK}.254"
START_SECONDS = 60.0


class Hosts:
    """Hosts with a Dask worker each, of one thread. The scheduler and the driver are on another one.

    Attributes:
        client: a client of the cluster.
    """

    def __init__(self, client: Client, ports: list[str]):
        self.client = client
        self._ports = ports

    def cut(self, number: int) -> None:
        """Cut the network of a host: nothing that is sent arrives, and no connection is closed."""
        _ip(f"link set {self._ports[number]} down")

    def mend(self, number: int) -> None:
        """Undo :meth:`cut`."""
        _ip(f"link set {self._ports[number]} up")


def can_make_hosts() -> bool:
    """Whether this process may make network namespaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


@contextlib.contextmanager
def hosts(count: int, folder: Path) -> Iterator[Hosts]:
    """Start a scheduler here and a Dask worker on each of ``count`` hosts; logs are written to ``folder``."""
    bridge, ports = f"dsbr{os.getpid()}", [f"ds{number}p{os.getpid()}" for number in range(count)]
    names = [f"dsinga-chaos-{number}-{os.getpid()}" for number in range(count)]
    file = folder / "scheduler.json"
    with contextlib.ExitStack() as stack:
        _ip(f"link add {bridge} type bridge")
        stack.callback(_ip, f"link del {bridge}")
        _ip(f"addr add {HERE}/24 dev {bridge}")
        _ip(f"link set {bridge} up")
        for number, (name, port) in enumerate(zip(names, ports, strict=True)):
            _ip(f"netns add {name}")
            stack.callback(_ip, f"netns del {name}")
            _ip(f"link add {port} type veth peer name eth0 netns {name}")
            stack.callback(_ip, f"link del {port}")  # the system takes its time to delete a namespace's
            _ip(f"link set {port} master {bridge}")
            _ip(f"link set {port} up")
            _ip(f"-n {name} addr add {NETWORK}.{number + 1}/24 dev eth0")
            _ip(f"-n {name} link set eth0 up")
            _ip(f"-n {name} link set lo up")
        start = [sys.executable, "-m"]
        scheduler = ["distributed.cli.dask_scheduler", f"--host={HERE}", "--port=0", "--dashboard-address=:0"]
        _start(stack, [*start, *scheduler, "--scheduler-file", str(file)], folder / "scheduler.log")
        worker = ["distributed.cli.dask_worker", "--no-nanny", "--nthreads=1", "--no-dashboard", "--memory-limit=0"]
        for number, name in enumerate(names):
            command = ["ip", "netns", "exec", name, *start, *worker, f"--host={NETWORK}.{number + 1}"]
            command += ["--name", str(number), "--scheduler-file", str(file)]
            _start(stack, command, folder / f"worker{number}.log")
        client = stack.enter_context(Client(scheduler_file=str(file), set_as_default=False, timeout=START_SECONDS))
        client.wait_for_workers(count, timeout=START_SECONDS)
        yield Hosts(client, ports)


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, timeout=30)


def _start(stack: contextlib.ExitStack, command: list[str], log: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
