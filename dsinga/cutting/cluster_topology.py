"""The topology of a job's training: its worker groups, server groups, and the links between server groups."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from dsinga.base.arguments import counted
from dsinga.job.enums import Compression, SlicingMethod, SyncTopology
from dsinga.job.schema import ClusterConf, Job

Edges = tuple[tuple[int, int], ...]


class Topology(NamedTuple):
    """The numbers and sizes of worker and server groups that train a job, and how they share params.

    ``groups`` worker groups of ``workers`` each use ``server_groups`` server groups of ``servers`` each. The workers of
    a group are synchronous; the groups are asynchronous to each other unless ``is_synchronous``. A server group has a
    whole copy of the params, and serves ``groups / server_groups`` worker groups. None of them is more than
    ``staleness`` steps ahead of the slowest (None: no bound).

    ``slicing`` names the method that slices params for the servers, in blocks of ``block_size`` elements or
    ``block_rows`` rows of embeddings, if given. Two server groups linked by one of ``edges`` exchange their params'
    changes every ``sync_freq`` updates, by the ``sync_method`` of that name with the settings ``mean``. Worker group 0
    trains alone for ``warmup`` steps.

    The workers of a group share at most ``threads`` threads of Dask workers, and fewer while there are fewer. None
    requires a thread for each. ``workers_per_process``, ``servers_per_process`` and ``separate`` (servers run in
    processes without workers) constrain the placement.
    """

    workers: int
    servers: int
    slicing: SlicingMethod = SlicingMethod.kSinga
    groups: int = 1
    server_groups: int = 1
    edges: Edges = ()
    sync_freq: int = 1
    staleness: int | None = None
    warmup: int = 0
    workers_per_process: int = 1
    servers_per_process: int = 1
    separate: bool = False
    block_size: int | None = None
    block_rows: int | None = None
    sync_method: str = "kSum"
    mean: Any = None
    threads: int | None = None

    @property
    def is_synchronous(self) -> bool:
        """Whether several worker groups wait for each other, so that they do the same steps."""
        return self.mean is not None and not self.mean.asynchronous

    def server_group(self, group: int) -> int:
        """Return the number of the server group that serves a worker group."""
        return group // (self.groups // self.server_groups)

    def worker_groups(self, server_group: int) -> range:
        """Return the numbers of the worker groups that a server group serves."""
        share = self.groups // self.server_groups
        return range(server_group * share, (server_group + 1) * share)

    def linked_groups(self, server_group: int) -> list[int]:
        """Return the server groups with which a server group exchanges changes of params."""
        return [first + second - server_group for first, second in self.edges if server_group in (first, second)]

    def common_start(self, step: int, train_steps: int) -> int:
        """Return the step from which all worker groups train, after any warm-up of group 0 alone."""
        return max(step, min(self.warmup, train_steps)) if self.groups > 1 else step

    @property
    def framework(self) -> str:
        """The topology's name in the literature, such as "Downpour" or "Hogwild", or "".

        Several worker groups are Downpour if they share one server group, distributed Hogwild if each has its own, and
        hybrid otherwise. Server groups that average their params are local SGD.
        """
        if self.groups == 1:
            if self.workers == 1:
                return ""
            return "AllReduce" if self.workers == self.servers and not self.separate else "Sandblaster"
        if self.server_groups == 1:
            return "Downpour"
        if self.mean is not None:
            return "local SGD"
        return "distributed Hogwild" if self.server_groups == self.groups else "hybrid"

    def describe(self) -> str:
        """Return the topology in words: "Downpour: 2 groups of 2 workers, 1 group of 2 servers"."""
        noun = "worker" if self.threads is None else "block"
        if self.threads is not None and self.groups == 1:  # the number of servers is no matter either
            return counted(self.workers, noun)
        parts = [_groups(self.groups, self.workers, noun, self.groups > 1)]
        parts.append(_groups(self.server_groups, self.servers, "server", self.groups > 1))
        if self.separate:
            parts[-1] += " in processes of their own"
        if self.edges:
            edges = ", ".join(f"{first}-{second}" for first, second in self.edges)
            interval = "every update" if self.sync_freq == 1 else f"every {self.sync_freq} updates"
            parts.append(f"synchronised{'' if self.mean is None else self.mean.update_words} along {edges} {interval}")
        if self.mean is not None and self.mean.compression is not Compression.kNone:
            parts.append(f"changes sent as {self.mean.compression.name}")
        if self.staleness is not None and self.groups > 1:
            parts.append(f"at most {counted(self.staleness, 'step')} apart")
        if self.warmup and self.groups > 1:
            parts.append(f"after {counted(self.warmup, 'step')} of group 0 alone")
        return (f"{self.framework}: " if self.framework else "") + ", ".join(parts)


def _groups(groups: int, members: int, noun: str, grouped: bool) -> str:
    words = counted(members, noun)
    return f"{counted(groups, 'group')} of {words}" if grouped else words


def topology(job: Job, available: int, processes: int) -> Topology:
    """Return the worker and server groups of a job on ``available`` Dask workers in ``processes`` processes.

    A job without ``cluster {}`` has one group of all available workers, or of as many as the batch has rows. It has a
    server in each process. With ``blocks`` each block of a batch has a worker.
    """
    conf = job.cluster
    if conf is None:
        workers = job.blocks or max(1, min(available, smallest_batch(job)))
        return Topology(workers, min(processes, workers), threads=job.blocks or None)
    return Topology(
        workers=job.blocks or conf.nworkers_per_group,
        servers=conf.nservers_per_group,
        slicing=conf.slicing,
        groups=conf.nworker_groups,
        server_groups=conf.nserver_groups,
        edges=sync_edges(conf),
        sync_freq=conf.sync_freq,
        staleness=conf.staleness,
        warmup=job.warmup_steps,
        workers_per_process=conf.nworkers_per_procs,
        servers_per_process=conf.nservers_per_procs,
        separate=conf.server_worker_separate,
        block_size=conf.block_size,
        block_rows=conf.block_rows,
        sync_method=conf.user_sync_method or conf.sync_method.name,
        mean=conf.mean,
        threads=conf.nworkers_per_group if job.blocks else None,
    )


def sync_edges(conf: ClusterConf) -> Edges:
    """Return the pairs of server groups that exchange changes, each once, the smaller number first.

    They are the job's ``sync_edge``; without any, all pairs, a ring 0-1, 1-2, ..., or a star around 0.
    """
    groups = range(conf.nserver_groups)
    if conf.sync_edge:
        pairs = [tuple(edge.group) for edge in conf.sync_edge]
    elif conf.sync_topology is SyncTopology.kAllToAll:
        pairs = list(itertools.combinations(groups, 2))
    elif conf.sync_topology is SyncTopology.kStar:
        pairs = [(0, group) for group in groups[1:]]
    else:
        pairs = [(group, (group + 1) % len(groups)) for group in groups if len(groups) > 1]
    return tuple(sorted({(min(pair), max(pair)) for pair in pairs}))


def smallest_batch(job: Job) -> int:
    """Return the smallest batch size of a job's input layers, at least 1, to limit the number of workers."""
    sizes = [sum(layer.store_conf.batchsize) for layer in job.neuralnet.layer if layer.store_conf]
    legacy = [layer.lmdbdata_conf or layer.sharddata_conf for layer in job.neuralnet.layer]
    sizes += [conf.batchsize for conf in legacy if conf]
    return min((size for size in sizes if size), default=1)


def group_seed(seed: int, group: int) -> int:
    """Return a worker group's random seed: the job's for group 0, distant ones for others."""
    return (seed + group * 0x9E37_79B9_7F4A_7C15) % 2**64
