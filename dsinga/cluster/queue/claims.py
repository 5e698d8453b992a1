"""Claims threads of Dask workers for a run: waits for them, and gives them back at the run's end."""

from __future__ import annotations

import contextlib
import getpass
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from distributed import Client
from distributed.protocol.pickle import dumps

from dsinga.base.arguments import counted
from dsinga.base.errors import RunError, UserError
from dsinga.base.settings import read_setting
from dsinga.cluster.dask.dask_workers import Workers, ask_scheduler, available_workers
from dsinga.cluster.dask.placement import Placement, processes_apart, sites_of
from dsinga.cluster.dask.waiting import Announcements, StillWaiting, how_to_give_up, wait_until
from dsinga.cluster.preflight.check import check_workers_ready
from dsinga.cluster.queue.run_queue import NAME, PROTOCOL, RunQueue
from dsinga.cluster.queue.usable_workers import ANYWHERE, WorkerSelection, aliases
from dsinga.cutting.cluster_topology import Topology
from dsinga.loop.cancellation import Cancellation
from dsinga.monitor.progress import duration

# Seconds that one call of the scheduler waits for a turn.
CALL_SECONDS = 5.0
# Seconds without a task that ends, after which the Dask workers are asked for their tasks; and between two questions.
QUIET_SECONDS = 3.0
QUESTION_SECONDS = 5.0
# Seconds that Dask workers may take to answer.
ANSWER_SECONDS = 3
GONE = "the Dask client was disconnected from the scheduler, which has dropped the run"
# Seconds to give back a claim.
RELEASE_SECONDS = 3


class Request(NamedTuple):
    """What a run asks the queue for: threads, and the Dask workers that may give them.

    Attributes:
        topology: its groups; each worker needs a thread of a Dask worker, separate servers need whole Dask workers.
    """

    run: str
    job: str
    topology: Topology
    selection: WorkerSelection = ANYWHERE

    @property
    def threads(self) -> int:
        """The most threads that all groups use."""
        return self.topology.groups * (self.topology.threads or self.topology.workers)

    def message(self, client: Client, workers: Workers) -> dict[str, Any]:
        """Return the request as a dict of plain values, to send to the scheduler."""
        return {
            "run": self.run,
            "job": self.job,
            "client": client.id,
            "user": user_name(),
            "threads": self.threads,
            "least": self.threads if self.topology.threads is None else self.topology.groups,
            "threads_per_process": self.topology.workers_per_process,
            "server_processes": processes_apart(self.topology, workers),
            "resources": dict(self.selection.resources),
            "hosts": aliases(client, self.selection.hosts, workers),
            **({} if (sites := sites_of(self.topology)) is None else {"sites": list(sites)}),
        }


class Claim:
    """The threads of Dask workers that a run holds, which it can keep, exchange or give back.

    Attributes:
        workers: by the Dask worker's address, {"nthreads": threads that the run holds, "host_threads": threads of its
            host that no other run holds, "names": names of it and of its resources}. Separate servers' come last.
    """

    def __init__(self, client: Client, run: str, workers: dict[str, dict[str, Any]]):
        self._client, self._run = client, run
        self.workers = workers

    def keep(self, placement: Placement) -> None:
        """Give back all threads that a placement does not use."""
        used = Counter(address for group in placement.workers for address in group)
        held = {address: self.workers[address]["nthreads"] for address in placement.addresses}
        granted = {address: min(used[address], count) or count for address, count in held.items()}
        self.workers = {a: {**info, "nthreads": granted[a]} for a, info in self.workers.items() if a in granted}
        ask_scheduler(self._client, "dsinga_keep", run=self._run, granted=granted)

    def offer(self, without: Collection[str]) -> dict[str, int]:
        """Ask which threads :meth:`replace` would bring; return their numbers by the Dask worker's address."""
        return dict(ask_scheduler(self._client, "dsinga_offer", run=self._run, without=sorted(without)))

    def replace(self, without: Collection[str]) -> None:
        """Exchange lost threads for others: as many as the run asked for, or as are free.

        Dask workers in ``without`` are not used.
        """
        view = ask_scheduler(self._client, "dsinga_replace", run=self._run, without=sorted(without))
        if view["state"] == "gone":
            raise RunError(GONE)
        self.workers = view["workers"]


@contextlib.contextmanager
def claim_workers(
    client: Client, request: Request, cancellation: Cancellation, announce: Callable[[str], None]
) -> Iterator[Claim]:
    """Claim threads of Dask workers for a run; wait for other runs; give them back at the end.

    Raises UserError if the cluster is too small and cannot grow, RunError after ``dsinga.queue_timeout``, and Cancelled
    soon after a cancellation.
    """
    workers = available_workers(client)
    message = request.message(client, workers)
    try:
        view = _claim(client, workers, message)
        if view["state"] == "waiting":
            view = _wait(client, request, cancellation, Announcements(announce))
        if view["state"] == "gone":
            raise RunError(GONE)
        yield Claim(client, request.run, view["workers"])
    finally:
        # Where the scheduler or the client is gone, the claim is, too; a client that has given up raises RuntimeError.
        with contextlib.suppress(RunError, RuntimeError, OSError, TimeoutError):
            ask_scheduler(client, "dsinga_release", RELEASE_SECONDS, run=request.run)


def _claim(client: Client, workers: Workers, message: Mapping[str, Any]) -> dict[str, Any]:
    try:
        ask_scheduler(client, "register_scheduler_plugin", plugin=dumps(RunQueue()), name=NAME, idempotent=True)
    except (ImportError, AttributeError) as error:
        check_workers_ready(client, workers)  # says what is to be installed
        raise UserError(f"the Dask scheduler cannot load dsinga: {error}; install this version there") from error
    view = ask_scheduler(client, "dsinga_claim", protocol=PROTOCOL, request=message)
    if view["protocol"] != PROTOCOL:
        check_workers_ready(client, workers)
        raise UserError(
            f"another version of dsinga serves the queue of runs of this cluster (protocol {view['protocol']}, here "
            f"{PROTOCOL}); use the same version, or restart the scheduler"
        )
    return dict(view)


def _wait(client: Client, request: Request, cancellation: Cancellation, announcements: Announcements) -> dict[str, Any]:
    limit = read_setting("queue_timeout")

    def ask(waited: float) -> dict[str, Any] | StillWaiting:
        seconds = max(0.0, min(CALL_SECONDS, announcements.seconds_left(), limit - waited))
        view = ask_scheduler(client, "dsinga_wait", check=cancellation.check, run=request.run, seconds=seconds)
        if view["state"] != "waiting":
            return dict(view)
        sentence = _waits_for(request, view)
        failure = RunError(f"{sentence}; that is as long as dsinga.queue_timeout lets it")
        return StillWaiting(f"{sentence}; it begins by itself, {how_to_give_up()}", failure, topic=view["fits"])

    return wait_until(ask, limit, announcements, pause=0.0)


def _waits_for(request: Request, view: Mapping[str, Any]) -> str:
    threads = counted(request.threads, "worker thread")
    if request.topology.separate:
        threads += " and Dask workers for the servers alone"
    threads += f" {request.selection}" if str(request.selection) else ""
    sentence = f"the run of {request.job!r} has waited {duration(view['seconds'])} for {threads}"
    if not view["fits"]:
        count, workers = view["room"]
        room = f"{counted(count, 'thread')} on {counted(workers, 'Dask worker')}" if count else "none"
        return f"{sentence}, more than the Dask cluster has now ({room}); it needs more Dask workers"
    reasons = [f"{_named(run)} has held {run['threads']} for {duration(run['seconds'])}" for run in view["holders"]]
    if view["ahead"]:
        reasons.append(f"{', '.join(map(_named, view['ahead']))} came before")
    return f"{sentence}: {'; '.join(reasons)}" if reasons else sentence


def _named(summary: Mapping[str, Any]) -> str:
    return repr(summary["job"]) + (f" of {summary['user']}" if summary["user"] else "")


def user_name() -> str:
    """Return the name of the user, "" if unknown."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


class HeldThreads:
    """Finds other Dask tasks that hold all threads of a run's Dask worker, which the queue does not know."""

    def __init__(self, client: Client, run: str, addresses: Collection[str], announce: Callable[[str], None]):
        self._client, self._run, self._addresses = client, run, sorted(addresses)
        self._announcements = Announcements(announce)
        self._ask_at = 0.0

    def check(self, quiet: float) -> None:
        """Announce the tasks that the run waits for, if no task of it has ended for ``quiet`` seconds."""
        now = time.monotonic()
        if quiet < QUIET_SECONDS or now < self._ask_at:
            return
        self._ask_at = now + QUESTION_SECONDS
        try:
            executing = self._client.run(
                _executing, workers=self._addresses, on_error="ignore", callback_timeout=ANSWER_SECONDS
            )
        except TimeoutError:  # they are busy; the question comes again
            return
        for address, (threads, names) in executing.items():
            if len(names) >= threads and not any(self._run in name for name in names):
                some = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
                lack = f"all threads of the Dask worker {address} run other tasks: {some}"
                if quiet >= read_setting("queue_timeout"):
                    raise RunError(f"{lack}; that is as long as dsinga.queue_timeout lets the run wait")
                self._announcements.give(
                    f"{lack}; the run goes on when one ends. A task that waits for a run itself must leave its "
                    f"thread meanwhile, by distributed.secede() or worker_client(). {how_to_give_up()}"
                )
                return


def _executing(dask_worker: Any) -> tuple[int, list[str]]:
    return dask_worker.state.nthreads, [str(task.key) for task in dask_worker.state.executing]
