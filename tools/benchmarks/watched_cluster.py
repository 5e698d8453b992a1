"""A Dask cluster of two worker processes with a limit of memory, whose memory is written down while something runs.

Each run has a fault or none, its seconds, what it returned, and for each worker process the memory at each second; a
process that Dask's nanny started in place of another one is a line of its own.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import dask
import psutil
from distributed import Client, LocalCluster

WORKERS = 2
MIB = 1 << 20


class Run(NamedTuple):
    """What became of a run on the cluster.

    Attributes:
        name: who trained.
        seconds: until it ended.
        fault: why it did not train to the end; "" if it did.
        result: what it returned, None if it did not.
        memory: by worker process, its pairs of seconds and MiB.
    """

    name: str
    seconds: float
    fault: str
    result: Any
    memory: list[list[tuple[float, float]]]

    @property
    def killed(self) -> int:
        """Worker processes that ended before the run did."""
        return len(self.memory) - WORKERS

    def __str__(self) -> str:
        most = max((mib for process in self.memory for _, mib in process), default=0.0)
        what = self.fault or "trained to the end"
        killed = f", {self.killed} worker processes killed" if self.killed > 0 else ""
        return f"{self.name}: {what}, {self.seconds:.0f} s, at most {most:.0f} MiB{killed}"


def watch(
    name: str, train: Callable[[Client], Any], memory_limit: int, folder: Path, most_seconds: int = 3600,
    spill: int = 4 << 30,
) -> Run:  # fmt: skip
    """Run ``train`` on a new cluster; ``memory_limit`` is that of each worker process, in bytes.

    What a cluster raises that does not end in order, after all, is left out.

    Args:
        name: of the run.
        train: called with a client of the cluster, in the main thread.
        memory_limit: of each worker process, in bytes.
        folder: where the workers may put what does not fit into memory.
        most_seconds: after which the run is ended.
        spill: the most bytes that a worker puts there.
    """
    settings = {"distributed.worker.memory.max-spill": spill, "distributed.admin.large-graph-warning-threshold": "1GB"}
    found: list[Run] = []
    try:
        with (
            dask.config.set(settings),
            LocalCluster(
                n_workers=WORKERS, threads_per_worker=1, memory_limit=memory_limit, dashboard_address=":0",
                local_directory=str(folder),
            ) as cluster,
            Client(cluster) as client,
            _Memory(cluster) as memory,
        ):  # fmt: skip
            seconds, fault, result = _outcome(train, client, most_seconds)
            found.append(Run(name, seconds, fault, result, memory.stop()))
    except Exception:  # of a cluster that does not end in order, whose workers hang
        if not found:
            raise
    return found[0]


def _outcome(train: Callable[[Client], Any], client: Client, most_seconds: int) -> tuple[float, str, Any]:
    """Return the seconds that a function takes, why it fails, and what it returns."""
    fault, result, started = "", None, time.monotonic()
    signal.signal(signal.SIGALRM, _end)
    signal.alarm(most_seconds)
    try:
        result = train(client)
    except Exception as error:  # of whatever is compared: any class
        fault = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    finally:
        signal.alarm(0)
    return time.monotonic() - started, fault, result


def _end(number: int, frame: Any) -> None:
    raise TimeoutError("the time for the run is over")


class _Memory:
    """Writes down the memory of the worker processes of a cluster, each second, on a thread."""

    def __init__(self, cluster: LocalCluster):
        self._cluster, self._over, self._points = cluster, threading.Event(), dict[int, list[tuple[float, float]]]()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _write(self) -> None:
        while not self._over.wait(1.0 if self._points else 0.0):
            for nanny in list(self._cluster.workers.values()):
                try:
                    resident = psutil.Process(nanny.pid).memory_info().rss
                except (psutil.Error, ValueError, TypeError, AttributeError):  # between two processes
                    continue
                point = (round(time.monotonic() - self._started, 1), round(resident / MIB, 1))
                self._points.setdefault(nanny.pid, []).append(point)

    def stop(self) -> list[list[tuple[float, float]]]:
        """Return the points of each process that there was."""
        self._over.set()
        self._thread.join()
        return list(self._points.values())
