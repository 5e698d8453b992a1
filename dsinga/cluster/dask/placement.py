"""Places a run's workers and servers on Dask workers, and divides each host's cores among its workers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from dsinga.base.advice import option
from dsinga.base.arguments import counted
from dsinga.base.errors import TooFewWorkers
from dsinga.cluster.dask.dask_workers import Workers, count_processes, host, process
from dsinga.cutting.cluster_topology import Topology
from dsinga.layers.interface.context import cut_evenly
from dsinga.ops.block_sums import nodes
from dsinga.ops.types import Devices, Groups


class Sites(NamedTuple):
    """The sites (one for each worker group) that a job needs: ``groups`` sites of ``size`` threads.

    ``patterns`` match the names of each site's Dask workers, such as "10.0.1.*". Without patterns each site is a host.
    """

    groups: int
    size: int
    patterns: Sequence[str] = ()


class Thread(NamedTuple):
    """A thread of a Dask worker: its address, its host, and its names for patterns."""

    address: str
    host: str
    names: Collection[str]


def worker_names(address: str, info: Mapping[str, Any]) -> list[str]:
    """Return the names that a site's pattern may match: a Dask worker's address, host, name and resources."""
    if "names" in info:
        return [address, *info["names"]]
    return [address, *(str(info[key]) for key in ("host", "name") if key in info), *info.get("resources", {})]


def matches(names: Collection[str], pattern: str) -> bool:
    """Whether a site's pattern matches one of a Dask worker's names."""
    return any(fnmatchcase(name, pattern) for name in names)


def choose_sites(threads: Sequence[Thread], sites: Sites, crowded: bool = False) -> list[list[str]]:
    """Choose the Dask workers of each site; return the addresses of its threads, fewer sites if threads are missing.

    With patterns, the result ends before the first site that lacks threads. If ``crowded``, threads may be in several
    sites.
    """
    if not threads:
        return []
    if sites.patterns:
        return _matching(threads, sites, crowded)
    hosts: dict[str, list[str]] = {}
    for thread in threads:
        hosts.setdefault(thread.host, []).append(thread.address)
    if crowded:
        needed = sites.groups * sites.size
        hosts = {host: list(itertools.islice(itertools.cycle(on_host), needed)) for host, on_host in hosts.items()}
    chunks = [
        (number, at, on_host[number * sites.size : (number + 1) * sites.size])
        for at, on_host in enumerate(hosts.values())
        for number in range(len(on_host) // sites.size)
    ]
    return [chunk for _, _, chunk in sorted(chunks)[: sites.groups]]


def _matching(threads: Sequence[Thread], sites: Sites, crowded: bool) -> list[list[str]]:
    left, chosen = list(threads), []
    for pattern in sites.patterns:
        found = [thread for thread in left if matches(thread.names, pattern)]
        if crowded:
            found = list(itertools.islice(itertools.cycle(found or left), sites.size))
        if len(found) < sites.size:
            break
        chosen.append([thread.address for thread in found[: sites.size]])
        if not crowded:
            taken = {id(thread) for thread in found[: sites.size]}
            left = [thread for thread in left if id(thread) not in taken]
    return chosen


class Placement(NamedTuple):
    """Where a run's workers and servers are: their Dask workers, threads and GPUs.

    Attributes:
        workers: each worker's Dask worker, by address: [group][partition].
        servers: each server's Dask worker, by address: [server group][server].
        threads: each worker's number of kernel threads: [group][partition].
        devices: each worker's GPU, None for CPU cores: [group][partition]; empty if all compute on cores.
        teams: the blocks that a thread computes together, in order: [group][team]; empty without blocks.
    """

    workers: Groups
    servers: Groups
    threads: tuple[tuple[int, ...], ...]
    devices: Devices = ()
    teams: tuple[tuple[range, ...], ...] = ()

    def device(self, group: int, number: int) -> int | None:
        """Return a worker's GPU, None for CPU cores."""
        return self.devices[group][number] if self.devices else None

    def with_threads(self, *limits: int | None) -> Placement:
        """Return the placement with each worker's kernel threads limited to each given limit."""
        limit = min(filter(None, limits))
        return self._replace(threads=tuple(tuple(min(count, limit) for count in group) for group in self.threads))

    @property
    def on_cores(self) -> bool:
        """Whether no worker computes on a GPU."""
        return all(device is None for group in self.devices for device in group)

    def actors(self, group: int, joined: bool) -> Sequence[range]:
        """Return the workers of a group that each Actor computes: one or, if blocks are ``joined``, a team on cores."""
        if joined and self.on_cores:
            return self.teams[group]
        return [range(worker, worker + 1) for worker in range(len(self.workers[group]))]

    @property
    def processes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The process numbers of the first group's workers, and of the first server group's servers."""
        groups = self.workers[0], self.servers[0]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(map(process, itertools.chain(*groups))))}
        workers, servers = (tuple(numbers[process(address)] for address in group) for group in groups)
        return workers, servers

    @property
    def in_one_process(self) -> bool:
        """Whether all workers and servers are in one process, so that servers may use the workers' GPU."""
        return len(set(map(process, self.addresses))) == 1

    @property
    def most_workers(self) -> int:
        """The largest number of the run's workers in a process."""
        return max(Counter(process(address) for group in self.workers for address in group).values())

    @property
    def addresses(self) -> set[str]:
        """The addresses of all Dask workers that the run needs."""
        return {address for group in (*self.workers, *self.servers) for address in group}


def place(topology: Topology, workers: Workers, crowded: bool = False) -> Placement:
    """Assign the workers of a run to threads of Dask workers, and its servers to their processes.

    Each worker gets its own thread. Workers are assigned in order, group by group: one to each Dask worker, then a
    second one to each, and so on. ``nworkers_per_procs`` assigns blocks instead, as far as a Dask worker has threads.
    Groups that average their params are sites. A site is on the Dask workers that its pattern matches, or else on one
    host if possible.

    A server group is in the processes of its worker groups, server i with worker i if the numbers are equal. With
    ``server_worker_separate``, servers are in processes without workers of the run, ``nservers_per_procs`` in each,
    unless all Dask workers are in one process.

    Raises TooFewWorkers for too few threads or processes. If ``crowded``, threads get several workers instead.
    """
    if not workers:
        needed = topology.groups * topology.workers
        noun = "worker" if needed == 1 else "workers"
        raise TooFewWorkers(
            f"the job needs {needed} {noun}, but the Dask cluster has no workers; start some with `dask worker "
            "SCHEDULER --nthreads 1`"
        )
    apart = processes_apart(topology, workers)
    if apart and not (crowded and apart >= len(workers)):
        remaining_workers, servers = _place_servers_apart(topology, workers)
        run_workers = _place_workers(topology, remaining_workers, crowded)
    else:
        run_workers = _place_workers(topology, workers, crowded)
        servers = tuple(_place_servers_beside(topology, group, run_workers) for group in range(topology.server_groups))
    return Placement(run_workers, servers, _threads(run_workers, workers), teams=_teams(topology, run_workers, workers))


def place_lost(topology: Topology, placement: Placement, workers: Workers) -> Placement:
    """Return a placement that moves the workers and servers on lost Dask workers to ``workers``.

    Workers move to the Dask workers with the fewest of them for each thread, within their site if they can. Servers
    move to a Dask worker of their group.
    """
    load = Counter(address for group in placement.workers for address in group)

    def replaced(address: str, near: Collection[str]) -> str:
        if address in workers:
            return address
        address = min(near, key=lambda address: (load[address] + 1) / workers[address]["nthreads"])
        load[address] += 1
        return address

    moved = tuple(
        tuple(replaced(address, _near(topology, number, group, workers)) for address in group)
        for number, group in enumerate(placement.workers)
    )
    beside = [[a for g in topology.worker_groups(group) for a in moved[g]] for group in range(topology.server_groups)]
    servers = tuple(
        tuple(
            address if address in workers else beside[group][n % len(beside[group])]
            for n, address in enumerate(addresses)
        )
        for group, addresses in enumerate(placement.servers)
    )
    teams = tuple(
        before if group == placement.workers[number] else after  # those of a group that goes on stay
        for number, (group, before, after) in enumerate(
            zip(moved, placement.teams, _teams(topology, moved, workers), strict=False)
        )
    )
    return placement._replace(workers=moved, servers=servers, teams=teams)


def _teams(topology: Topology, groups: Groups, workers: Workers) -> tuple[tuple[range, ...], ...]:
    """Divide each Dask worker's blocks of a group among its threads, into nodes of the tree of sums."""
    if topology.threads is None:
        return ()
    load = Counter(address for group in groups for address in group)
    teams: list[tuple[range, ...]] = []
    for group in groups:
        found: list[range] = []
        for address in dict.fromkeys(group):
            blocks = [block for block, at in enumerate(group) if at == address]
            threads = max(1, min(workers[address]["nthreads"] * len(blocks) // load[address], topology.threads))
            for own in cut_evenly(len(blocks), min(threads, len(blocks))):
                found += nodes(blocks[own.start : own.stop], topology.workers)
        teams.append(tuple(sorted(found, key=lambda team: team.start)))
    return tuple(teams)


def _near(topology: Topology, number: int, group: Sequence[str], workers: Workers) -> Collection[str]:
    """Return the Dask workers of a group's site; all without a site, or if none is left."""
    sites, hosts = sites_of(topology), {host(address) for address in group}
    if sites is None:
        return workers
    if sites.patterns:
        near = [a for a in workers if matches(worker_names(a, workers[a]), sites.patterns[number])]
    else:
        near = [address for address in workers if host(address) in hosts]
    return near or workers


def processes_apart(topology: Topology, workers: Workers) -> int:
    """Return how many Dask workers a job needs for separate servers; 0 if all workers are in one process."""
    if not topology.separate or count_processes(workers) < 2:
        return 0
    return -(-topology.server_groups * topology.servers // topology.servers_per_process)


def _place_workers(topology: Topology, workers: Workers, crowded: bool) -> Groups:
    """Return each worker's Dask worker; if ``crowded``, threads may get several.

    Each thread of a group that shares threads gets workers in a row, as many as the others if possible.
    """
    threads = _dealt_threads(topology, workers)
    if topology.threads is not None:
        shared = min(topology.threads, topology.workers, max(1, len(threads) // topology.groups))
        places = _place_workers(topology._replace(workers=shared, threads=None), workers, crowded)
        return tuple(tuple(group[k * shared // topology.workers] for k in range(topology.workers)) for group in places)
    needed = topology.groups * topology.workers
    sites = sites_of(topology)
    if sites is not None:
        named = [Thread(address, host(address), worker_names(address, workers[address])) for address in threads]
        chosen = choose_sites(named, sites, crowded)
        if len(chosen) == topology.groups:
            return tuple(map(tuple, chosen))
        if sites.patterns and len(threads) >= needed:
            raise TooFewWorkers(
                f"site {sites.patterns[len(chosen)]!r} needs {topology.workers} threads of Dask workers of this host, "
                "name, address or resource, and there are fewer; start more there, or give another pattern"
            )
        threads.sort(key=host)  # stable
    if crowded:
        threads = list(itertools.islice(itertools.cycle(threads), needed))
    if needed > len(threads):
        fewer = "" if topology.groups == 1 else "cluster.nworker_groups or "
        available = counted(len(threads), "worker thread")
        apart = " beside those of the servers" if topology.separate else ""
        raise TooFewWorkers(
            f"the job needs {needed} workers, but the Dask cluster has {available}{apart}; start more Dask workers, or "
            f"request fewer with {option('workers', 'N')} or {fewer}cluster.nworkers_per_group"
        )
    return _grouped(threads[:needed], topology.workers)


def _dealt_threads(topology: Topology, workers: Workers) -> list[str]:
    """Return the Dask worker of each thread: each one's first block of threads, then each second block."""
    block = topology.workers_per_process
    threads = [(thread // block, address) for address, info in workers.items() for thread in range(info["nthreads"])]
    return [address for _, address in sorted(threads, key=lambda entry: entry[0])]  # stable


def sites_of(topology: Topology) -> Sites | None:
    """Return the sites that a topology needs, one for each worker group; None if groups do not average params."""
    mean = topology.mean
    return None if mean is None else Sites(topology.groups, topology.workers, tuple(mean.site))


def _place_servers_beside(topology: Topology, server_group: int, run_workers: Groups) -> tuple[str, ...]:
    addresses = [address for group in topology.worker_groups(server_group) for address in run_workers[group]]
    if len(addresses) == topology.servers:
        return tuple(addresses)
    places = [address for address in dict.fromkeys(addresses) for _ in range(topology.servers_per_process)]
    first = server_group * topology.servers  # spreads server groups that share processes
    return tuple(places[(first + server) % len(places)] for server in range(topology.servers))


def _place_servers_apart(topology: Topology, workers: Workers) -> tuple[dict[str, Mapping[str, Any]], Groups]:
    """Reserve the last Dask workers for servers; return the others and the servers' Dask workers."""
    per_process, count = topology.servers_per_process, topology.server_groups * topology.servers
    needed = processes_apart(topology, workers)
    if needed >= len(workers):
        raise TooFewWorkers(
            f"server_worker_separate: the job's {count} servers, {per_process} a process, need {needed} processes of "
            f"their own, but the Dask cluster has {len(workers)} processes, and the workers need some, too; start more "
            "Dask worker processes, or leave server_worker_separate out"
        )
    remaining, reserved = list(workers)[:-needed], list(workers)[-needed:]
    servers = _grouped([reserved[server // per_process] for server in range(count)], topology.servers)
    return {address: workers[address] for address in remaining}, servers


def _grouped(addresses: Sequence[str], size: int) -> Groups:
    return tuple(tuple(addresses[start : start + size]) for start in range(0, len(addresses), size))


def _threads(run_workers: Groups, workers: Workers) -> tuple[tuple[int, ...], ...]:
    """Divide the threads of each host that no other run holds; return the kernel threads of each worker."""
    count_on = Counter(host(address) for group in run_workers for address in group)
    threads_on: dict[str, int] = Counter()
    for address, info in workers.items():
        threads_on[host(address)] += info["nthreads"]
    threads_on |= {host(address): info["host_threads"] for address, info in workers.items() if "host_threads" in info}
    share = {name: max(1, threads_on[name] // count) for name, count in count_on.items()}
    return tuple(tuple(share[host(address)] for address in group) for group in run_workers)
