"""Who runs what: partitions and servers to Dask workers, cores to kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlparse

from distributed import Client

from dsinga.errors import RunError, UserError
from dsinga.job.topology import Topology

# Addresses of Dask workers, one a member, group by group.
Groups = tuple[tuple[str, ...], ...]


class Placement(NamedTuple):
    """Where everything runs: ``partitions[group][number]`` and ``servers[server group][number]`` are addresses.

    ``threads[group][number]`` are the kernel threads of each partition, ``devices[group][number]`` the GPU that it
    computes on, None for CPU cores; without any, all compute on cores.
    """

    partitions: Groups
    servers: Groups
    threads: tuple[tuple[int, ...], ...]
    devices: tuple[tuple[int | None, ...], ...] = ()

    def device(self, group: int, number: int) -> int | None:
        """Return the GPU that a partition computes on, None for CPU cores."""
        return self.devices[group][number] if self.devices else None

    @property
    def addresses(self) -> set[str]:
        """Every Dask worker that the run cannot do without."""
        return {address for group in (*self.partitions, *self.servers) for address in group}


def available_workers(client: Client) -> dict[str, dict[str, Any]]:
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
    """Deal partitions over the Dask workers' threads, and servers over their processes.

    A partition holds a thread of its Dask worker while a round runs, and waits there for the other partitions: two
    may not share one. The partitions of all groups, one group behind the other, are dealt one a Dask worker, or in
    blocks of ``nworkers_per_procs`` as far as a Dask worker has threads, before any gets more.

    A server group lives in the processes of its worker groups, server i beside worker i where there are as many. With
    ``server_worker_separate`` it is in processes without partitions, ``nservers_per_procs`` servers in each; Dask
    workers that are threads of one process cannot be separate, so there it has no effect.

    Raises UserError where there are too few threads, or processes.
    """
    if not workers:
        raise UserError("the Dask cluster has no workers; start some with `dask worker SCHEDULER --nthreads 1`")
    if topology.separate and processes(workers) > 1:
        rest, servers = _set_apart(topology, workers)
        partitions = _deal(topology, rest)
    else:
        partitions = _deal(topology, workers)
        servers = tuple(_beside(topology, group, partitions) for group in range(topology.server_groups))
    return Placement(partitions, servers, _threads(partitions, workers))


def _deal(topology: Topology, workers: Mapping[str, Mapping[str, Any]]) -> Groups:
    """Return the Dask worker of each partition."""
    block = topology.workers_per_process
    slots = [(turn // block, address) for address, worker in workers.items() for turn in range(worker["nthreads"])]
    slots.sort(key=lambda slot: slot[0])  # stable: a block a worker before any gets a second
    wanted = topology.groups * topology.workers
    if wanted > len(slots):
        fewer = "" if topology.groups == 1 else "cluster.nworker_groups or "
        apart = " beside those of the servers" if topology.separate else ""
        raise UserError(
            f"the job wants {wanted} workers, the Dask cluster has {len(slots)} worker threads{apart}; start more "
            f"Dask workers, or ask for fewer with --workers or {fewer}cluster.nworkers_per_group"
        )
    return _grouped([address for _, address in slots[:wanted]], topology.workers)


def _beside(topology: Topology, server_group: int, partitions: Groups) -> tuple[str, ...]:
    """Return the Dask workers of a server group's servers, all in the processes of its worker groups."""
    beside = [address for group in topology.worker_groups(server_group) for address in partitions[group]]
    if len(beside) == topology.servers:
        return tuple(beside)
    homes = [home for home in dict.fromkeys(beside) for _ in range(topology.servers_per_process)]
    first = server_group * topology.servers  # server groups that share processes do not all begin with the first one
    return tuple(homes[(first + server) % len(homes)] for server in range(topology.servers))


def _set_apart(
    topology: Topology, workers: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Mapping[str, Any]], Groups]:
    """Return the Dask workers that are left for partitions, and those of the servers: the last ones."""
    share, count = topology.servers_per_process, topology.server_groups * topology.servers
    needed = -(-count // share)
    if needed >= len(workers):
        raise UserError(
            f"server_worker_separate: the job's {count} servers, {share} a process, need {needed} processes of their "
            f"own, the Dask cluster has {len(workers)} with those for the workers; start more Dask worker processes, "
            "or leave server_worker_separate out"
        )
    rest, homes = list(workers)[:-needed], list(workers)[-needed:]
    servers = _grouped([homes[server // share] for server in range(count)], topology.servers)
    return {address: workers[address] for address in rest}, servers


def _grouped(addresses: Sequence[str], size: int) -> Groups:
    return tuple(tuple(addresses[start : start + size]) for start in range(0, len(addresses), size))


def _threads(partitions: Groups, workers: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[int, ...], ...]:
    """Share the cores that the Dask workers of each host were given among the partitions there."""
    crowd = Counter(host(address) for group in partitions for address in group)
    cores = Counter[str]()
    for address, worker in workers.items():
        cores[host(address)] += worker["nthreads"]
    return tuple(tuple(max(1, cores[host(at)] // crowd[host(at)]) for at in group) for group in partitions)


def host(address: str) -> str:
    """Return what tells the machine of a Dask worker."""
    return process(address) if address.startswith("inproc://") else urlparse(address).hostname or address
