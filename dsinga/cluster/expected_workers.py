"""Waiting for Dask workers that are expected but not there yet, such as those of jobs that wait in a batch queue."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import NamedTuple, TypeVar

from distributed import Client, SpecCluster, Status

from dsinga.cluster.dask_workers import Workers, available_workers
from dsinga.cluster.slurm_jobs import SlurmJobs
from dsinga.errors import UserError
from dsinga.settings import read_setting

# Seconds between two looks at the Dask workers of the cluster.
CHECK_SECONDS = 0.2
# Seconds within which another Dask worker joins a cluster that is starting, where nothing says how many will come.
ARRIVAL_SECONDS = 30.0
# Seconds that a cluster may take to submit the job of a worker.
SUBMIT_SECONDS = 60.0
# Seconds of waiting before it is said, and between the same being said again: doubled each time, up to a maximum.
FIRST_NOTICE_SECONDS, NOTICE_SECONDS, MAX_NOTICE_SECONDS = 1.0, 60.0, 1800.0
# What a worker's process or job is like that could not be started, or has ended.
ENDED = (Status.created, Status.failed, Status.closing, Status.closed)

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def await_workers(client: Client, attempt: Callable[[Workers], _T]) -> _T:
    """Return ``attempt(workers)`` for the Dask workers of a cluster, retried while it is refused and more are expected.

    A cluster object such as LocalCluster or SLURMCluster says how many Dask workers it is to have; those of a job in a
    batch queue are waited for without limit, or for ``dsinga.queue_timeout``. Where there is only a scheduler's
    address, workers are expected until none has come for 30 seconds. The wait is logged, with its cause.

    Args:
        client: the client of the cluster.
        attempt: takes the scheduler's information on each Dask worker, by address; raises UserError if these are not
            enough.

    Raises the UserError of ``attempt`` when no more Dask workers are expected.
    """
    expectation, notices, started = _Expectation(client), _Notices(), time.monotonic()
    seconds = read_setting("queue_timeout")
    while True:
        workers = available_workers(client)
        try:
            result = attempt(workers)
        except UserError as error:
            awaited, failure = expectation.update(workers)
            shortage, waited = str(error).partition(";")[0], time.monotonic() - started
            if not awaited:
                raise (UserError(f"{shortage}; {failure}") if failure else error) from None
            if waited > seconds:
                raise UserError(f"{shortage}; waited {_clock(waited)} (dsinga.queue_timeout) for {awaited}") from None
            notices.give(f"{shortage}; waiting for {awaited}", waited)
            threading.Event().wait(CHECK_SECONDS)
        else:
            if notices.given:
                _log.warning("the Dask workers are there after %s", _clock(time.monotonic() - started))
            return result


@contextlib.contextmanager
def keep_workers(client: Client, threads: int) -> Iterator[None]:
    """Keep an adaptive cluster, which has as many Dask workers as it has tasks, at ``threads`` threads or more.

    Without this it would start no workers for a job that waits for some, and might end some of a job that pauses. Other
    clusters, and those whose maximum is lower, stay as they are.
    """
    cluster = client.cluster
    adaptive = getattr(cluster, "_adaptive", None)
    if not isinstance(cluster, SpecCluster) or adaptive is None:
        yield
        return
    minimum = adaptive.minimum
    adaptive.minimum = max(minimum, min(adaptive.maximum, math.ceil(threads / _threads_per_worker(cluster))))
    try:
        yield
    finally:
        adaptive.minimum = minimum


def _threads_per_worker(cluster: SpecCluster) -> int:
    """Return the threads of each new Dask worker of a cluster, of which a batch job may have several."""
    options = cluster.new_spec["options"]
    threads = next((options[name] for name in ("nthreads", "cores") if options.get(name)), 1)
    return max(1, threads // len(cluster.new_spec.get("group", [""])))


class _Expected(NamedTuple):
    """What is awaited, and what has failed, in words; empty where nothing is."""

    awaited: str = ""
    failure: str = ""


class _Expectation:
    """Says which Dask workers are still expected."""

    def __init__(self, client: Client):
        self._cluster = getattr(client, "cluster", None)  # whether this is a client is checked with the first look
        self._started = self._last_arrival = time.monotonic()
        self._addresses: set[str] = set()
        self._jobs = SlurmJobs()

    def update(self, workers: Workers) -> _Expected:
        """Return what is expected beside ``workers``, the Dask workers that are there now."""
        if isinstance(self._cluster, SpecCluster):
            return self._of_cluster(self._cluster, {str(info["name"]) for info in workers.values()})
        now = time.monotonic()
        if workers.keys() - self._addresses:
            self._addresses, self._last_arrival = set(workers), now
        if now - self._last_arrival > ARRIVAL_SECONDS:
            return _Expected()
        return _Expected(f"more Dask workers until none has come for {ARRIVAL_SECONDS:g} s")

    def _of_cluster(self, cluster: SpecCluster, names: set[str]) -> _Expected:
        """Return which workers a cluster has requested beside those with ``names``."""
        spec, processes = dict(cluster.worker_spec), dict(cluster.workers)  # copies: its event loop changes them
        missing = [key for key in spec if any(f"{key}{suffix}" not in names for suffix in spec[key].get("group", [""]))]
        kind = type(cluster).__name__
        awaited, failures = [], []
        for key in missing:
            process = processes.get(key)
            if process is None:  # being submitted, or lost before
                if time.monotonic() - self._started < SUBMIT_SECONDS:
                    awaited.append("")
            elif process.status in ENDED:
                failures.append(f"{kind} could not start its worker {key}; its error is in the log")
            elif ended := self._jobs.ended(process):
                failures.append(f"{ended} before its Dask worker was there")
            else:
                awaited.append(self._jobs.describe(process))
        if not awaited and len(spec) < getattr(getattr(cluster, "_adaptive", None), "minimum", 0):
            awaited.append("")
        jobs = ", ".join(filter(None, awaited))
        count = f"{len(awaited)} worker{'s' if len(awaited) > 1 else ''}"
        words = f"{count} that {kind} has requested{f' ({jobs})' if jobs else ''}" if awaited else ""
        return _Expected(words, failures[0] if failures else "")


class _Notices:
    """Says what is waited for: soon, whenever that changes, and again after longer and longer times."""

    def __init__(self) -> None:
        self.given = ""
        self._next, self._interval = FIRST_NOTICE_SECONDS, NOTICE_SECONDS

    def give(self, text: str, waited: float) -> None:
        """Log ``text`` if it is time to, with the seconds that were waited."""
        if waited < self._next and (not self.given or text == self.given):
            return
        if text == self.given:
            self._interval = min(2 * self._interval, MAX_NOTICE_SECONDS)
        self.given, self._next = text, waited + self._interval
        _log.warning("%s; %s so far, Ctrl-C gives up", text, _clock(waited))


def _clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds: 0:01:30."""
    return str(timedelta(seconds=round(seconds)))
