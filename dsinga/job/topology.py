"""From ClusterProto to numbers: the groups of workers and of servers that a job asks for, and who tells whom."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from dsinga.job.enums import SlicingMethod, SyncTopology
from dsinga.job.schema import ClusterConf, Job

Edges = tuple[tuple[int, int], ...]


class Topology(NamedTuple):
    """``groups`` worker groups of ``workers`` each, ``server_groups`` server groups of ``servers`` each.

    The worker groups are asynchronous to each other; the workers of one are synchronous. A server group has a whole
    copy of the params, which ``slicing`` cuts for its servers, and serves ``groups / server_groups`` worker groups,
    of which none is ever more than ``staleness`` steps ahead of the slowest (None: no bound). Two server groups joined
    by one of ``edges`` exchange what their params have changed by every ``sync_freq`` updates. For ``warmup`` steps
    worker group 0 is alone. ``workers_per_process``, ``servers_per_process`` and ``separate`` (servers get processes of
    their own) say where all of them are to run.
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

    def server_group(self, group: int) -> int:
        """Return the server group of a worker group."""
        return group // (self.groups // self.server_groups)

    def served(self, server_group: int) -> range:
        """Return the worker groups of a server group."""
        share = self.groups // self.server_groups
        return range(server_group * share, (server_group + 1) * share)

    def neighbours(self, server_group: int) -> list[int]:
        """Return the server groups that a server group exchanges changes with."""
        return [one + other - server_group for one, other in self.edges if server_group in (one, other)]

    @property
    def framework(self) -> str:
        """The name that the topology has in the literature, or the empty string.

        Several worker groups are Downpour where they share one server group, and distributed Hogwild where each has a
        server group of its own; what is between the two is a hybrid.
        """
        if self.groups == 1:
            if self.workers == 1:
                return ""
            return "AllReduce" if self.workers == self.servers and not self.separate else "Sandblaster"
        if self.server_groups == 1:
            return "Downpour"
        return "distributed Hogwild" if self.server_groups == self.groups else "hybrid"

    def describe(self) -> str:
        """Return the topology in words: "Downpour: 2 groups of 2 workers, 1 group of 2 servers"."""
        parts = [_groups(self.groups, self.workers, "worker", self.groups > 1)]
        parts.append(_groups(self.server_groups, self.servers, "server", self.groups > 1))
        if self.separate:
            parts[-1] += " in processes of their own"
        if self.edges:
            edges = ", ".join(f"{one}-{other}" for one, other in self.edges)
            often = "every update" if self.sync_freq == 1 else f"every {self.sync_freq} updates"
            parts.append(f"synchronised along {edges} {often}")
        if self.staleness is not None and self.groups > 1:
            parts.append(f"at most {_count(self.staleness, 'step')} apart")
        if self.warmup and self.groups > 1:
            parts.append(f"after {_count(self.warmup, 'step')} of group 0 alone")
        return (f"{self.framework}: " if self.framework else "") + ", ".join(parts)


def _groups(groups: int, members: int, noun: str, grouped: bool) -> str:
    words = _count(members, noun)
    return f"{_count(groups, 'group')} of {words}" if grouped else words


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def topology(job: Job, at_hand: int, processes: int) -> Topology:
    """Return the topology of a job, which has been checked, on ``at_hand`` Dask workers in ``processes`` processes.

    A job without ``cluster {}`` is one group over the workers at hand, with a server in each process, but never more
    workers than the batch has rows.
    """
    conf = job.cluster
    if conf is None:
        workers = max(1, min(at_hand, smallest_batch(job)))
        return Topology(workers, min(processes, workers))
    return Topology(
        workers=conf.nworkers_per_group,
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
    )


def sync_edges(conf: ClusterConf) -> Edges:
    """Return the pairs of server groups that are neighbours, each once, the smaller number first.

    They are the job's own where it gives any; else all pairs, or 0-1, 1-2, ... closed to a ring, or a star round 0.
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
    """Return the smallest batch size that an input layer of the job names, at least 1."""
    sizes = [sum(layer.store_conf.batchsize) for layer in job.neuralnet.layer if layer.store_conf]
    legacy = [layer.lmdbdata_conf or layer.sharddata_conf for layer in job.neuralnet.layer]
    sizes += [conf.batchsize for conf in legacy if conf]
    return min((size for size in sizes if size), default=1)
