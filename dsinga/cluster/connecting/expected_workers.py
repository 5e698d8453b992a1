"""Waits for Dask workers that are expected but have not joined, such as jobs in a batch queue."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from distributed import Client, SpecCluster, Status
from distributed.deploy.adaptive import Adaptive
from distributed.deploy.cluster import Cluster

from dsinga.base.errors import ClusterNotReady, SchedulerLost, TooFewWorkers, UserError
from dsinga.base.settings import read_setting
from dsinga.cluster.dask.dask_workers import Workers, ask_scheduler, available_workers, require_workers, staying_workers
from dsinga.cluster.dask.waiting import Announcements, StillWaiting, how_to_give_up, wait_until
from dsinga.job import ClusterConf
from dsinga.loop.cancellation import Cancellation
from dsinga.monitor.progress import duration

# Dask workers join a scheduler one after another. None is expected any more when so many seconds have passed since the
# last one: as many as the first one has taken, from the start of the scheduler on, within these bounds.
ARRIVAL_SECONDS, MOST_ARRIVAL_SECONDS = 10.0, 60.0
# Seconds that a cluster may take to submit the job of a worker.
SUBMIT_SECONDS = 60.0
# The states of a worker's process or job that could not be started, or has ended.
ENDED = (Status.created, Status.failed, Status.closing, Status.closed)
# An adaptive cluster starts ended jobs again: after so many that have ended at once, something is wrong with them.
MAX_ENDED_JOBS = 3

# Seconds between two questions to SLURM, which answers them for all users of a cluster.
QUERY_SECONDS = 20.0
# Seconds that SLURM may take to answer.
ANSWER_SECONDS = 10.0

_log = logging.getLogger(__name__)
_lock = threading.Lock()
# For each adaptive cluster with runs: the minimum that its user has set, and the number of Dask workers of each run.
_kept: weakref.WeakKeyDictionary[Adaptive, tuple[int, list[int]]] = weakref.WeakKeyDictionary()
_T = TypeVar("_T")


def await_workers(
    client: Client,
    attempt: Callable[[Workers], _T],
    *,
    patience: float = ClusterConf().patience,
    shortage: Callable[[_T, Workers], str] = lambda _result, _workers: "",
    cancellation: Cancellation | None = None,
    announce: Callable[[str], None] = _log.warning,
) -> _T:
    """Call ``attempt(workers)`` until the Dask workers suffice or no more will come; return its result.

    Workers in a batch queue (of a cluster object such as SLURMCluster) are awaited without limit, or for
    ``dsinga.queue_timeout``. With only a scheduler, a run with too few Dask workers waits at most ``patience`` seconds.
    A run that would be better with more waits while they keep joining.

    Args:
        client: the cluster's client.
        attempt: receives the scheduler's information on each Dask worker, by address. It raises TooFewWorkers if they
            do not suffice, UserError if they are the wrong ones.
        patience: the most seconds to wait with only a scheduler.
        shortage: receives the result of ``attempt`` and the same workers; returns why more would be better, or "".
        cancellation: ends the wait.
        announce: called with a sentence about the wait; logs it by default.

    Raises the UserError of ``attempt`` when no more Dask workers are expected, ClusterNotReady after ``patience`` or
    ``dsinga.queue_timeout``, and Cancelled.
    """
    expectation, announcements = _expectation(client, patience), Announcements(announce)

    def try_workers(waited: float) -> _T | StillWaiting:
        all_workers = available_workers(client)
        workers = staying_workers(all_workers)
        error = None
        try:
            result = attempt(workers)
            lack = shortage(result, workers)
        except UserError as refusal:
            error, lack = refusal, str(refusal).partition(";")[0]
        is_too_small = isinstance(error, TooFewWorkers) or not workers
        expected = expectation.update(all_workers, is_too_small) if lack else _Expected()
        if error and not expected.text:
            raise (UserError(f"{lack}; {expected.failure}") if expected.failure else error)
        if not error and (not expected.text or waited >= expectation.limit):
            if announcements.count:
                remark = f"; {expected.failure}" if expected.failure else ""
                announce(f"the wait is over after {duration(waited)}{remark}")
            return result
        topic = f"{lack}; waiting for {expected.text}"
        limit = "" if math.isinf(expectation.limit) else f", {duration(expectation.limit)} at most"
        failure = f"{lack}; waited {duration(waited)} for {expected.text}, as {expectation.limit_source}"
        sentence = f"{topic}; {duration(waited)} so far{limit}, {how_to_give_up()}"
        return StillWaiting(sentence, ClusterNotReady(failure), topic)

    return wait_until(try_workers, expectation.limit, announcements, (cancellation or Cancellation()).check)


def await_number_of_workers(
    client: Client,
    count: int,
    patience: float = ClusterConf().patience,
    cancellation: Cancellation | None = None,
    announce: Callable[[str], None] = _log.warning,
) -> None:
    """Wait for ``count`` Dask workers as long as more are expected; any number suffices (:func:`await_workers`)."""

    def shortage(workers: Workers, _: Workers) -> str:
        return "" if len(workers) >= count else f"{len(workers)} of {count} Dask workers are there"

    with keep_workers(client, count):
        await_workers(
            client, require_workers, patience=patience, shortage=shortage, cancellation=cancellation, announce=announce
        )


def await_as_many_workers(client: Client, count: int, seconds: float, check: Callable[[], None]) -> None:
    """Wait until a restarted scheduler has ``count`` Dask workers. Raises SchedulerLost after ``seconds``."""

    def count_workers(_: float) -> StillWaiting | None:
        present = len(available_workers(client))
        sentence = f"only {present} of {count} Dask workers have come back"
        failure = SchedulerLost(f"{sentence} within {seconds:g} s")
        return None if present >= count else StillWaiting(f"{sentence} yet", failure, topic=present)

    wait_until(count_workers, seconds, Announcements(_log.warning), check)


class _Expected(NamedTuple):
    """The expected and the failed Dask workers of a run, in words; empty for none."""

    text: str = ""
    failure: str = ""


def _expectation(client: Client, patience: float) -> _OfCluster | _OfScheduler:
    cluster = getattr(client, "cluster", None)  # an object that is no client is refused later
    if isinstance(cluster, SpecCluster):
        return _OfCluster(cluster)
    return _OfScheduler(client, patience)


class _OfScheduler:
    """Tells whether Dask workers may still join a scheduler that does not know how many will."""

    limit_source = "cluster.patience says; see the logs of the Dask workers, or let it be longer"

    def __init__(self, client: Client, patience: float):
        self.limit = patience
        self._client = client
        self._addresses: set[str] = set()
        self._ends_at, self._seconds = 0.0, 0.0

    def update(self, workers: Workers, is_too_small: bool) -> _Expected:
        """Return which Dask workers may still come, besides the present ``workers``."""
        if is_too_small:
            return _Expected("others")
        if workers.keys() - self._addresses:
            self._addresses |= workers.keys()
            self._read_arrivals(workers)
        if time.monotonic() >= self._ends_at:
            return _Expected()
        return _Expected(f"others until none has come for {self._seconds:.0f} s")

    def _read_arrivals(self, workers: Workers) -> None:
        """Ask the scheduler when ``workers`` joined it, by its clock."""
        events = ask_scheduler(self._client, "events", topic="all")
        added = [{"action": "add-worker", "worker": address} for address in workers]
        joins = [at for at, event in events if event in added]
        started = float(ask_scheduler(self._client, "identity", n_workers=0)["started"])
        # The scheduler forgets events; then it is no new one.
        first = min(joins) - started if len(joins) == len(workers) else 0.0
        age = max(info["last_seen"] for info in workers.values()) - max(joins, default=-math.inf)
        self._seconds = min(max(ARRIVAL_SECONDS, first), MOST_ARRIVAL_SECONDS)
        self._ends_at = time.monotonic() + self._seconds - age


class _OfCluster:
    """Tells which Dask workers a cluster object has requested that are not there yet."""

    limit_source = "dsinga.queue_timeout says"

    def __init__(self, cluster: SpecCluster):
        self.limit = read_setting("queue_timeout")
        self._cluster, self._started = cluster, time.monotonic()
        self._jobs = SlurmJobs()
        self._ended_jobs: set[str] = set()

    def update(self, workers: Workers, is_too_small: bool) -> _Expected:
        """Return which Dask workers may still come, besides the present ``workers``."""
        cluster, names = self._cluster, {str(info["name"]) for info in workers.values()}
        spec, processes = dict(cluster.worker_spec), dict(cluster.workers)  # copies: its event loop changes them
        kind, minimum = type(cluster).__name__, minimum_workers(cluster)
        count, jobs, failures = 0, [], []
        for key, each in spec.items():
            missing = sum(f"{key}{suffix}" not in names for suffix in each.get("group", [""]))
            process = processes.get(key)
            if not missing:
                continue
            if process is None:  # being submitted, or lost before
                is_awaited = bool(minimum) or time.monotonic() - self._started < SUBMIT_SECONDS
            elif process.status in ENDED:
                is_awaited = False
                failures.append(f"{kind} could not start its worker {key}; its error is in the log")
            elif ended := self._jobs.ended(process):
                self._ended_jobs.add(str(process.job_id))
                is_awaited = bool(minimum) and len(self._ended_jobs) < MAX_ENDED_JOBS
                failures.append(ended)
            else:
                is_awaited = True
                jobs.append(self._jobs.describe(process))
            count += missing if is_awaited else 0
        count += max(0, minimum - sum(len(each.get("group", [""])) for each in spec.values()))
        names_of_jobs = ", ".join(filter(None, jobs))
        words = f"{count} that {kind} has requested{f' ({names_of_jobs})' if names_of_jobs else ''}" if count else ""
        return _Expected(words, failures[0] if failures else "")


class SlurmJobs:
    """The state of this user's jobs in SLURM's queue, asked for now and then, to explain a wait."""

    def __init__(self) -> None:
        self._states: dict[str, str] | None = None
        self._asked_at = -math.inf
        self._seen_at: dict[str, float] = {}  # when a job was first described: it is in the queue since before

    def describe(self, process: Any) -> str:
        """Return the state of a worker's job, "job 17: pending (Resources)", or "" if it has none."""
        job = getattr(process, "job_id", None)
        if not job:
            return ""
        state = (self._active(process) or {}).get(str(job))
        return f"job {job}: {state}" if state else f"job {job}"

    def ended(self, process: Any) -> str:
        """Return a sentence that a worker's job has ended, with its log's path, or ""."""
        job, active = getattr(process, "job_id", None), self._active(process)
        if not job or active is None or str(job) in active or self._asked_at <= self._seen_at[str(job)]:
            return ""
        folder = process.log_directory
        log = f"{folder}/{process.job_name or 'worker'}-{job}.err" if folder else f"slurm-{job}.out"
        return f"the job {job}, whose log is {log}, has ended"

    def _active(self, process: Any) -> dict[str, str] | None:
        """Return the state of this user's jobs by id; None without an answer of SLURM."""
        if getattr(process, "submit_command", None) != "sbatch" or not shutil.which("squeue"):
            return None
        self._seen_at.setdefault(str(process.job_id), time.monotonic())
        if time.monotonic() - self._asked_at >= QUERY_SECONDS:
            self._asked_at, self._states = time.monotonic(), _query()
        return self._states


def _query() -> dict[str, str] | None:
    """Ask SLURM for each waiting or running job's state, "running" or "pending (Resources)"."""
    command = ["squeue", "--me", "--noheader", "--format", "%A %T %r"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    states = {}
    for line in answer.splitlines():
        job, state, reason = line.split(maxsplit=2)
        states[job] = state.lower() if reason in ("None", "(null)") else f"{state.lower()} ({reason})"
    return states


@contextlib.contextmanager
def keep_workers(client: Client, count: int) -> Iterator[None]:
    """Keep ``count`` Dask workers more than other runs need in an adaptive cluster, up to its maximum.

    Dask would start none for a waiting run, which has no tasks, and might end some during a pause.
    """
    adaptive = _adaptive(getattr(client, "cluster", None))
    if adaptive is None:
        yield
        return
    with _lock:
        _kept.setdefault(adaptive, (adaptive.minimum, []))[1].append(count)
        _set_minimum(adaptive)
    try:
        yield
    finally:
        with _lock:
            _kept[adaptive][1].remove(count)
            _set_minimum(adaptive)
            if not _kept[adaptive][1]:
                del _kept[adaptive]


def minimum_workers(cluster: SpecCluster) -> int:
    """Return an adaptive cluster's minimum of Dask workers; 0 for other clusters."""
    adaptive = _adaptive(cluster)
    return adaptive.minimum if adaptive else 0


def _adaptive(cluster: Cluster | None) -> Adaptive | None:
    adaptive = getattr(cluster, "_adaptive", None)
    return adaptive if isinstance(adaptive, Adaptive) and adaptive.state in ("starting", "running") else None


def _set_minimum(adaptive: Adaptive) -> None:
    minimum, counts = _kept[adaptive]
    adaptive.minimum = max(minimum, int(min(adaptive.maximum, sum(counts))))
