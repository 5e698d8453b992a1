"""Who runs what: partitions and servers to Dask workers, cores to kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlparse

from distributed import Client

from dsinga.cluster.topology import Topology
from dsinga.errors import RunError, UserError


class Placement(NamedTuple):
    """The Dask worker (by address) of each partition and of each server, and the kernel threads of each partition."""

    partitions: tuple[str, ...]
    servers: tuple[str, ...]
    threads: tuple[int, ...]

    @property
    def addresses(self) -> set[str]:
        """Every Dask worker that the run cannot do without."""
        return {*self.partitions, *self.servers}


def workers_at_hand(client: Client) -> dict[str, dict[str, Any]]:
    """Return address -> information of the Dask workers, in a fixed order.

    Not by ``client.scheduler_info()``: that answers from a cache, which now and then another thread has just refreshed
    with totals alone, and every worker seems to be gone. Raises RunError where the scheduler cannot be asked, and
    UserError for what is no client that waits.
    """
    if not isinstance(client, Client) or client.asynchronous:
        kind = "an asynchronous Client" if isinstance(client, Client) else f"a {type(client).__name__}"
        raise UserError(f"client must be a distributed.Client with asynchronous=False, not {kind}")
    scheduler = client.scheduler
    if scheduler is None or client.status == "closed":
        raise RunError("the Dask client is closed")
    try:
        workers = client.sync(scheduler.identity, n_workers=-1)["workers"]
    except OSError as error:
        raise RunError(f"the Dask scheduler was lost: {error}") from error
    return {address: workers[address] for address in sorted(workers, key=lambda a: (str(workers[a]["name"]), a))}


def processes(workers: Mapping[str, Mapping[str, Any]]) -> int:
    """Return in how many processes these Dask workers live."""
    return len({process(address) for address in workers})


def process(address: str) -> str:
    """Return what tells the process of a Dask worker: its address, or one name for all that share ours."""
    return "inproc" if address.startswith("inproc://") else address


def place(topology: Topology, workers: Mapping[str, Mapping[str, Any]]) -> Placement:
    """Deal partitions over the Dask workers' threads, one worker after the other, and servers over their processes.

    A partition holds a thread of its Dask worker while a round runs, and waits there for the other partitions: two
    may not share one. Raises UserError where there are too few threads.
    """
    if not workers:
        raise UserError("the Dask cluster has no workers; start some with `dask worker SCHEDULER --nthreads 1`")
    slots = [(turn, address) for address, worker in workers.items() for turn in range(worker["nthreads"])]
    slots.sort(key=lambda slot: slot[0])  # stable: one partition a worker before any gets a second
    if topology.workers > len(slots):
        raise UserError(
            f"the job wants {topology.workers} workers, the Dask cluster has {len(slots)} worker threads; start more "
            "Dask workers, or ask for fewer with --workers or cluster.nworkers_per_group"
        )
    partitions = tuple(address for _, address in slots[: topology.workers])
    homes = list(dict.fromkeys(partitions))
    servers = tuple(homes[server % len(homes)] for server in range(topology.servers))
    return Placement(partitions, servers, _threads(partitions, workers))


def _threads(partitions: tuple[str, ...], workers: Mapping[str, Mapping[str, Any]]) -> tuple[int, ...]:
    """Share the cores that the Dask workers of each host were given among the partitions there."""
    crowd = Counter(_host(address) for address in partitions)
    cores = Counter[str]()
    for address, worker in workers.items():
        cores[_host(address)] += worker["nthreads"]
    return tuple(max(1, cores[_host(address)] // crowd[_host(address)]) for address in partitions)


def _host(address: str) -> str:
    return process(address) if address.startswith("inproc://") else urlparse(address).hostname or address
