"""From ClusterProto to numbers: how many workers and servers a job asks for."""

from __future__ import annotations

from typing import NamedTuple

from dsinga.job import Job, SlicingMethod


class Topology(NamedTuple):
    """One worker group of ``workers``, one server group of ``servers``; ``slicing`` cuts the params for the servers."""

    workers: int
    servers: int
    slicing: SlicingMethod

    def describe(self) -> str:
        """Return the topology in words."""
        return f"{_count(self.workers, 'worker')}, {_count(self.servers, 'server')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def topology(job: Job, at_hand: int, processes: int) -> Topology:
    """Return the topology of ``job`` on a cluster with ``at_hand`` Dask workers in ``processes`` processes.

    A job without ``cluster {}`` is one group over the workers at hand, with a server in each process, but never more
    workers than the batch has rows. Raises JobError for several groups, which run asynchronously.
    """
    conf = job.cluster
    if conf is None:
        workers = max(1, min(at_hand, smallest_batch(job)))
        return Topology(workers, min(processes, workers), SlicingMethod.kSinga)
    for field in ("nworker_groups", "nserver_groups"):
        if getattr(conf, field) != 1:
            raise conf.error(
                f"{field}: {getattr(conf, field)} asks for asynchronous groups, which this version does not run; "
                "use 1 group and nworkers_per_group for synchronous workers",
                field,
            )
    return Topology(conf.nworkers_per_group, conf.nservers_per_group, conf.slicing)


def smallest_batch(job: Job) -> int:
    """Return the smallest batch size that an input layer of the job names, at least 1."""
    sizes = [sum(layer.store_conf.batchsize) for layer in job.neuralnet.layer if layer.store_conf]
    legacy = [layer.lmdbdata_conf or layer.sharddata_conf for layer in job.neuralnet.layer]
    sizes += [conf.batchsize for conf in legacy if conf]
    return min((size for size in sizes if size), default=1)
