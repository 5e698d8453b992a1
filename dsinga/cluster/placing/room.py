"""Waits until a cluster has room for a job: the first stage of a run on it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

from distributed import Client

from dsinga.base.errors import TooFewWorkers
from dsinga.cluster.connecting.expected_workers import await_workers, keep_workers
from dsinga.cluster.dask.dask_workers import Workers, count_processes
from dsinga.cluster.queue.usable_workers import WorkerSelection, check_room, usable_workers
from dsinga.cutting.cluster_topology import Topology
from dsinga.cutting.cluster_topology import topology as create_topology
from dsinga.job import ClusterConf, Job
from dsinga.loop.cancellation import Cancellation


@contextlib.contextmanager
def await_room(
    job: Job, client: Client, selection: WorkerSelection, cancellation: Cancellation, announce: Callable[[str], None]
) -> Iterator[Topology]:
    """Wait until a cluster is large enough for a job, regardless of other runs; yield the job's topology."""
    wanted, patience = wanted_processes(job), (job.cluster or ClusterConf()).patience
    choose_topology, shortage = _topology_choice(job, client, selection, wanted)
    with keep_workers(client, int(wanted) if job.cluster else 1):
        yield await_workers(
            client, choose_topology, patience=patience, shortage=shortage, cancellation=cancellation, announce=announce
        )


def wanted_processes(job: Job) -> float:
    """Return the largest number of Dask workers over which a job is spread.

    It is infinite for a job without ``cluster``, which uses all.
    """
    conf = job.cluster
    if conf is None:
        return job.blocks or math.inf
    servers = -(-conf.nserver_groups * conf.nservers_per_group // conf.nservers_per_procs)
    workers = -(-conf.nworker_groups * conf.nworkers_per_group // conf.nworkers_per_procs)
    return workers + (servers if conf.server_worker_separate else 0)


def _topology_choice(
    job: Job, client: Client, selection: WorkerSelection, wanted: float
) -> tuple[Callable[[Workers], Topology], Callable[[Topology, Workers], str]]:
    """Return functions of Dask workers: the job's topology on them, and what it lacks, or ""."""

    def choose_topology(workers: Workers) -> Topology:
        usable = usable_workers(client, selection, workers)
        topology = create_topology(job, len(usable), count_processes(usable))
        check_room(topology, usable, selection)
        least = min(job.cluster.min_workers, wanted) if job.cluster else 1
        if len(usable) < least:
            raise TooFewWorkers(
                f"the run begins with {least} Dask workers, as cluster.min_workers says, but the Dask cluster has "
                f"{len(usable)}; start more Dask workers, or set fewer"
            )
        return topology

    def shortage(_: Topology, workers: Workers) -> str:
        count = len(usable_workers(client, selection, workers))
        of_how_many = "" if math.isinf(wanted) else f" of {wanted}"
        return "" if count >= wanted else f"{count}{of_how_many} Dask worker{'s are' if count > 1 else ' is'} there"

    return choose_topology, shortage
