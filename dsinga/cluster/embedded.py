"""Where a run takes its Dask client from: the user's, a running scheduler's, or an in-process cluster of our own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster

from dsinga.errors import UserError

CONNECT_SECONDS = 10
# Dask has worker processes give freed memory back at once, so that an iteration of the CIFAR-10 net meets 750 pages
# anew, at 5 us each. These limits are what glibc comes to if it is left alone; what the environment says goes before.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": 32 << 20, "MALLOC_TRIM_THRESHOLD_": 64 << 20}

# Without a dashboard nobody wants to see the stacks of workers, a hundred times a second, nor how soon event loops come
# round, fifty times a second each, scheduler's and nannies' too: a tenth of a core for two processes, and each time a
# thread that computes has to make room.
UNWATCHED = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def connect(
    *,
    scheduler: str | None = None,
    scheduler_file: str | None = None,
    workers: int | None = None,
    separate_processes: bool = False,
    dashboard: bool = False,
) -> Iterator[Client]:
    """Yield a client of the scheduler at that address or file, or else of a cluster that lives as long as the block.

    The embedded cluster has ``workers`` workers (one a core by default) that share the cores of this machine, as
    threads of this process unless ``separate_processes``. It has a ``dashboard`` only if that is asked for, whose
    address is logged: whoever trains by one command would wait half a second for it, and not look.

    Raises UserError where no scheduler answers within 10 seconds.
    """
    if scheduler or scheduler_file:
        with _existing(scheduler, scheduler_file) as client:
            yield client
        return
    count = workers or CPU_COUNT
    settings: dict[str, object] = {f"distributed.nanny.pre-spawn-environ.{name}": at for name, at in MALLOC.items()}
    if not dashboard:
        settings |= UNWATCHED
    # On a busy machine it tells, with a traceback, that a connection of a cluster which has just been closed is closed.
    logging.getLogger("distributed.batched").setLevel(logging.WARNING)
    with dask.config.set(settings):
        cluster = LocalCluster(
            n_workers=count,
            threads_per_worker=max(1, CPU_COUNT // count),
            processes=separate_processes,
            dashboard_address=":0",  # any free port: a second run must not complain about the first
            silence_logs=logging.CRITICAL,  # what a task raises reaches the user as our own message
            memory_limit=0,  # a round holds its task for a second and more: pausing it would stop the whole group
            scheduler_kwargs={"dashboard": dashboard},
        )
    with cluster, Client(cluster, set_as_default=False) as client:
        client.loop.asyncio_loop.set_exception_handler(_tell)
        if dashboard:
            _log.info("the dashboard is at %s", client.dashboard_link)
        yield client


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tell what went wrong in Dask's event loop, but not that a wait has ended which nobody waits for any more.

    On a busy machine the loop ends before its connections have: what would send on them next leaves such a wait.
    """
    if context["message"] != "Future exception was never retrieved" or str(context.get("exception")) != "Timeout":
        loop.default_exception_handler(context)


def _existing(scheduler: str | None, scheduler_file: str | None) -> Client:
    if scheduler_file:
        _await_file(Path(scheduler_file))
    try:
        return Client(scheduler, scheduler_file=scheduler_file, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(f"no Dask scheduler answers at {scheduler or scheduler_file}: {error}") from error


def _await_file(path: Path) -> None:
    """Wait for a scheduler that is just starting to write its file; Dask's client would wait for ever."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"no Dask scheduler has written {path}; start one with `dask scheduler --scheduler-file {path}`"
            )
        time.sleep(0.05)
