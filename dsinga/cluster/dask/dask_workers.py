"""Lists the Dask workers of a cluster, with their processes and hosts, and finds a task's client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlparse

from distributed import Client, get_worker

from dsinga.base.errors import RunError, SchedulerLost, TooFewWorkers, UserError
from dsinga.base.settings import read_setting

# Seconds between two looks, while the scheduler is asked something, whether it is still there.
SCHEDULER_CHECK_SECONDS = 0.1

_making = threading.Lock()  # held while the client of a Dask worker is made
# The scheduler's information on each Dask worker, by address.
Workers = Mapping[str, Mapping[str, Any]]


def available_workers(client: Client) -> dict[str, dict[str, Any]]:
    """Return the scheduler's information on each Dask worker, by address, in a fixed order."""
    if not isinstance(client, Client) or client.asynchronous:
        kind = "an asynchronous Client" if isinstance(client, Client) else f"a {type(client).__name__}"
        raise UserError(f"client must be a distributed.Client with asynchronous=False, not {kind}")
    # Not client.scheduler_info(): its cache sometimes has no workers, because another thread refreshes it without them.
    workers = ask_scheduler(client, "identity", n_workers=-1)["workers"]
    return {address: workers[address] for address in sorted(workers, key=lambda a: (str(workers[a]["name"]), a))}


def ask_scheduler(
    client: Client, method: str, limit: float | None = None, check: Callable[[], None] = lambda: None, **arguments: Any
) -> Any:
    """Call a method of the scheduler and return its result; call ``check`` several times a second meanwhile.

    Raises SchedulerLost soon after losing the scheduler, RunError without an answer in ``limit`` seconds, by default
    ``dsinga.timeout``.
    """
    if client.scheduler is None or client.status == "closed":
        raise RunError("the Dask client is closed; create a new one")
    _check_connected(client)
    limit = read_setting("timeout") if limit is None else limit
    deadline = time.monotonic() + limit
    coroutine = getattr(client.scheduler, method)(**arguments)
    call = asyncio.run_coroutine_threadsafe(coroutine, client.loop.asyncio_loop)  # type: ignore[union-attr]
    try:
        check()
        while not concurrent.futures.wait([call], SCHEDULER_CHECK_SECONDS).done:
            check()
            _check_connected(client)
            if time.monotonic() > deadline:
                raise RunError(f"waited {limit:g} s for the Dask scheduler to answer {method!r}")
        return call.result()
    except RunError:
        raise
    except (OSError, RuntimeError) as error:  # RuntimeError once the client has given the scheduler up
        raise SchedulerLost(f"the Dask scheduler was lost: {error}") from error
    finally:
        call.cancel()


def _check_connected(client: Client) -> None:
    if client.status == "connecting":
        raise SchedulerLost(f"the Dask scheduler was lost: the connection to {client.scheduler.address} has ended")  # type: ignore[union-attr]


def staying_workers(workers: Workers) -> Workers:
    """Return the Dask workers that are not being retired."""
    return {address: info for address, info in workers.items() if not info["status"].startswith("closing")}


def require_workers(workers: Workers) -> Workers:
    """Return ``workers`` unchanged; raise TooFewWorkers if there are none."""
    if not workers:
        raise TooFewWorkers("the Dask cluster has no workers; start some with `dask worker SCHEDULER --nthreads 1`")
    return workers


def count_processes(workers: Workers) -> int:
    """Return how many processes these Dask workers have."""
    return len({process(address) for address in workers})


def process(address: str) -> str:
    """Return a text that identifies a Dask worker's process: its address, or "inproc" for workers in this process."""
    return "inproc" if address.startswith("inproc://") else address


def host(address: str) -> str:
    """Return a text that identifies a Dask worker's machine: its host name, or "inproc" for this process."""
    return process(address) if address.startswith("inproc://") else urlparse(address).hostname or address


def on_several_hosts(addresses: Iterable[str]) -> bool:
    """Whether Dask workers are on several machines, which exchange params in pieces."""
    return len({host(address) for address in addresses}) > 1


def task_client() -> Client | None:
    """Return the client of the Dask worker that runs the calling task, None outside tasks.

    It is made by one thread, without context variables, which would tie it to the first task.
    """
    try:
        worker = get_worker()
    except ValueError:  # this is no task
        return None
    with _making:
        return contextvars.Context().run(worker._get_client)
