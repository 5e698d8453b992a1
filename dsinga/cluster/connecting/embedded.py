"""Connects to a running Dask scheduler, or starts an embedded cluster for a run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, Nanny, Worker
from distributed.deploy.cluster import Cluster
from distributed.security import Security

from dsinga.base.advice import option
from dsinga.base.errors import ClusterNotReady, UserError
from dsinga.base.regular_files import parse_json, read_regular_text
from dsinga.cluster.connecting.credentials import embedded_credentials, explained_start, find_credentials
from dsinga.cluster.connecting.scheduler_probe import (
    NoScheduler,
    SilentScheduler,
    check_scheduler,
    check_version,
    with_scheme,
)
from dsinga.cluster.dask.waiting import Announcements, StillWaiting, how_to_give_up, wait_until
from dsinga.cluster.dask.worker_memory import MALLOC_SETTINGS
from dsinga.job import ClusterConf
from dsinga.monitor.progress import duration

# Seconds to wait for a scheduler to answer.
CONNECT_SECONDS = 10
# Seconds between two checks whether a scheduler has written its file.
FILE_CHECK_SECONDS = 0.05
# Dask settings for a cluster without a dashboard, which shows these measurements. Sampling the stacks of workers and
# the delays of all event loops would take a tenth of a core for two processes, and interrupt threads that compute. And
# Dask would keep the last 1,000 messages to each Dask worker, for those who look for faults in Dask.
QUIET_SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.low-level-log-length": 100,
    "distributed.diagnostics.computations.max-history": 10,
}

LOOPBACK = "127.0.0.1"

_log = logging.getLogger(__name__)


class ThreadWorker(Worker):
    """A Dask worker in a thread of this process, with a web server that other machines cannot reach."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **{**options, "dashboard_address": f"{LOOPBACK}:0", "dashboard": False})


MOST_WORKERS = 256  # of an embedded cluster


@contextlib.contextmanager
def connect(
    *,
    scheduler: str | None = None,
    scheduler_file: str | None = None,
    workers: int | None = None,
    separate_processes: bool = False,
    dashboard: bool = False,
    security: Security | bool | None = None,
    patience: float = ClusterConf().patience,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Client]:
    """Connect to a running scheduler, or start an embedded cluster for the block; yield the client.

    Args:
        scheduler: a running scheduler's address.
        scheduler_file: a running scheduler's file. Without both, an embedded cluster is started.
        workers: the embedded cluster's number of Dask workers, by default one a core. They share the cores.
        separate_processes: whether these Dask workers are processes, not threads of this process.
        dashboard: whether the embedded cluster has a dashboard (half a second to start); the log says its address.
        security: TLS credentials, by default from Dask's settings (``distributed.comm.tls``). True makes certificates
            for an embedded cluster of processes. Threads have no connections to secure.
        patience: the most seconds to wait for a scheduler that has not written its file or is silent.
        check: called during the wait; its error ends the wait.

    Raises UserError if nothing listens at a scheduler's address within 10 seconds, ClusterNotReady after ``patience``.
    """
    if scheduler or scheduler_file:
        with _connect_to(scheduler, scheduler_file, security, patience, check) as client:
            yield client
        return
    if security and not separate_processes:
        raise UserError(
            f"TLS is for a running scheduler or for worker processes; give {option('scheduler', 'ADDRESS')}, or leave "
            "the certificates out: workers in threads of this process have no connections"
        )
    # When the cluster is closed on a busy machine, this logger prints tracebacks about connections that are closed.
    logging.getLogger("distributed.batched").setLevel(logging.WARNING)
    with dask.config.set(_settings(separate_processes, dashboard)), _explained_spawn(), explained_start():
        cluster = _start_cluster(workers or CPU_COUNT, separate_processes, dashboard, security)
    with cluster, Client(cluster, set_as_default=False) as client:
        client.loop.asyncio_loop.set_exception_handler(_report)
        if dashboard:
            _log.info("the dashboard is at %s", client.dashboard_link)
        yield client


def _settings(separate_processes: bool, dashboard: bool) -> dict[str, object]:
    settings: dict[str, object] = {
        f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in MALLOC_SETTINGS.items()
    }
    if not separate_processes:
        # Threads cannot be lost alone. After the sleep of a laptop, the scheduler would count them as lost.
        settings["distributed.scheduler.worker-ttl"] = None
    if not dashboard:
        settings |= QUIET_SETTINGS
    return settings


def _start_cluster(
    count: int, separate_processes: bool, dashboard: bool, security: Security | bool | None
) -> LocalCluster:
    """Start ``count`` Dask workers that share this machine's cores."""
    if count > max(MOST_WORKERS, CPU_COUNT):
        raise UserError(
            f"the job wants {count:,} workers, but a cluster that is started here has at most {MOST_WORKERS}: use "
            "fewer groups or workers (cluster { }), or name a larger cluster by its scheduler"
        )
    return LocalCluster(
        n_workers=count,
        threads_per_worker=max(1, CPU_COUNT // count),
        processes=separate_processes,
        # Where Dask's settings require encryption, it would let threads send each other messages by TLS.
        protocol=None if separate_processes else "inproc://",
        security=embedded_credentials(security) if separate_processes else None,
        # Any free port, so that two runs at once do not warn about each other; for this machine only. Dask has
        # a web server without a dashboard, too.
        dashboard_address=f"{LOOPBACK}:0",
        worker_class=Nanny if separate_processes else ThreadWorker,
        silence_logs=logging.CRITICAL,  # errors of tasks are raised to the user
        memory_limit=0,  # a paused worker would stop its whole worker group
        scheduler_kwargs={"dashboard": dashboard},
    )


@contextlib.contextmanager
def _explained_spawn() -> Iterator[None]:
    """Replace Dask's error by a UserError if started processes run the user's script again."""
    # A new process imports the main script, which must not start processes in turn.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit("a process of a cluster ran the script that starts the cluster")
    try:
        yield
    except RuntimeError as error:
        script = getattr(sys.modules["__main__"], "__file__", None)
        if script is None or "failed to start" not in str(error):
            raise
        raise UserError(
            f"the processes of the cluster did not start; each of them imports {script}: put what starts the cluster "
            "behind `if __name__ == '__main__':`"
        ) from error


def check_client(client: Any) -> None:
    """Raise UserError if ``client=`` is an address or a cluster instead of a client."""
    if isinstance(client, (str, Cluster)):
        what = repr(client) if isinstance(client, str) else f"a {type(client).__name__}"
        text = "address" if isinstance(client, str) else "cluster"
        raise UserError(f"client= takes a Dask client, not {what}; give distributed.Client({text})")


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of Dask's event loop, except timeouts that a busy loop leaves at its end."""
    if context["message"] != "Future exception was never retrieved" or str(context.get("exception")) != "Timeout":
        loop.default_exception_handler(context)


def _connect_to(
    scheduler: str | None,
    scheduler_file: str | None,
    security: Security | bool | None,
    patience: float,
    check: Callable[[], None],
) -> Client:
    if isinstance(security, bool):
        raise UserError("a running scheduler has its certificates; give yours as security=distributed.Security(...)")

    def connect_once(waited: float) -> Client | StillWaiting:
        try:
            return _reach(scheduler or _read_address(Path(scheduler_file or "")), scheduler or scheduler_file, security)
        except NoScheduler as error:
            if scheduler and not isinstance(error, SilentScheduler):  # an address is that of a scheduler that runs
                raise
            fault, _, remedy = str(error).partition(";")
            times = f"{duration(waited)} so far, {duration(patience)} at most"
            failure = f"{fault}; waited {duration(waited)} for it, as cluster.patience says;{remedy}"
            return StillWaiting(
                f"{fault}; waiting for it; {times}, {how_to_give_up()}", ClusterNotReady(failure), fault
            )

    return wait_until(connect_once, patience, Announcements(_log.warning), check, FILE_CHECK_SECONDS)


def _reach(address: str, place: str | None, security: Security | None) -> Client:
    """Connect to a scheduler. Raises NoScheduler if a later attempt may reach it."""
    try:
        credentials = find_credentials(address, security)
        address = with_scheme(address, credentials)
        check_scheduler(address, credentials, CONNECT_SECONDS)
        check_version(address, credentials, CONNECT_SECONDS)
        return Client(address, security=credentials, timeout=CONNECT_SECONDS, set_as_default=False)
    except UserError:
        raise
    except (OSError, ValueError) as error:
        kind = SilentScheduler if isinstance(error, TimeoutError) else UserError
        raise kind(
            f"no Dask scheduler answers at {place}: {error}; check the address, or start one with `dask scheduler`"
        ) from error


def _read_address(path: Path) -> str:
    """Read the address in a scheduler's file."""
    missing = f"no Dask scheduler has written {path}; start one with `dask scheduler --scheduler-file {path}`"
    text = ""
    try:
        text = read_regular_text(path)
        return str(parse_json(text)["address"])
    except FileNotFoundError:
        raise NoScheduler(missing) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, json.JSONDecodeError) and text.strip()[:1] in ("", "{"):
            raise NoScheduler(missing) from error
        raise UserError(f"{path} is not a file that `dask scheduler --scheduler-file` wrote: {error!r}") from error
