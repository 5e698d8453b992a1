"""The Dask workers of a cluster, and the process and the host of each by its address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlparse

from distributed import Client

from dsinga.errors import RunError, UserError

# The scheduler's information on each Dask worker, by address.
Workers = Mapping[str, Mapping[str, Any]]


def available_workers(client: Client) -> dict[str, dict[str, Any]]:
    """Return the scheduler's information on each Dask worker, by address, in a fixed order.

    Raises RunError where the scheduler does not answer, and UserError unless ``client`` is a synchronous Client.
    """
    if not isinstance(client, Client) or client.asynchronous:
        kind = "an asynchronous Client" if isinstance(client, Client) else f"a {type(client).__name__}"
        raise UserError(f"client must be a distributed.Client with asynchronous=False, not {kind}")
    scheduler = client.scheduler
    if scheduler is None or client.status == "closed":
        raise RunError("the Dask client is closed; create a new one")
    try:
        # Not client.scheduler_info(), whose cache sometimes has no workers: another thread may refresh it without them.
        workers = client.sync(scheduler.identity, n_workers=-1)["workers"]
    except (OSError, RuntimeError) as error:  # RuntimeError once the client has given the scheduler up
        raise RunError(f"the Dask scheduler was lost: {error}") from error
    return {address: workers[address] for address in sorted(workers, key=lambda a: (str(workers[a]["name"]), a))}


def staying_workers(workers: Workers) -> Workers:
    """Return the Dask workers that are not being retired, as adaptive clusters do with those that they do not need."""
    return {address: info for address, info in workers.items() if not info["status"].startswith("closing")}


def require_workers(workers: Workers) -> Workers:
    """Return ``workers``; raise UserError if there are none."""
    if not workers:
        raise UserError("the Dask cluster has no workers; start some with `dask worker SCHEDULER --nthreads 1`")
    return workers


def count_processes(workers: Workers) -> int:
    """Return the number of processes in which these Dask workers live."""
    return len({process(address) for address in workers})


def process(address: str) -> str:
    """Return an identifier of a Dask worker's process: its address, or "inproc" for all workers in this process."""
    return "inproc" if address.startswith("inproc://") else address


def host(address: str) -> str:
    """Return an identifier of a Dask worker's machine: its host name, or "inproc" for all workers in this process."""
    return process(address) if address.startswith("inproc://") else urlparse(address).hostname or address


def on_several_hosts(addresses: Iterable[str]) -> bool:
    """Whether Dask workers are on more than one machine, so that these exchange params in pieces."""
    return len({host(address) for address in addresses}) > 1
