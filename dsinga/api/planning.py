"""Inspects a job without running it: its net, whole or partitioned, and what each partitioning costs."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from dsinga import cluster
from dsinga.api.jobs import job_with_data, roots, with_workers
from dsinga.job import Job, Phase
from dsinga.job.enums import find_phase
from dsinga.net import NeuralNet, PartitionedNet

if TYPE_CHECKING:
    from dsinga.planner.plan import Plan


def build_net(
    job: Job | str | os.PathLike[str], phase: str = "train", *, data: Any = None, data_root: str | None = None
) -> NeuralNet:
    """Return the net of a phase, without training: its layers, shapes and params.

    ``data`` are arrays that the phase's input layer reads in place of its store; see :func:`dsinga.train`. Raises
    UserError for bad input.
    """
    net_phase = find_phase(phase)
    job = job_with_data(job, data, net_phase, data_root)
    return cluster.build_net(job, net_phase, roots(job, data_root))


def partition_net(
    job: Job | str | os.PathLike[str],
    workers: int,
    phase: str = "train",
    *,
    data: Any = None,
    data_root: str | None = None,
) -> PartitionedNet:
    """Return the net of a phase, cut for ``workers`` workers of a group, without training.

    In a notebook it is drawn with a colour for each worker. ``partition: auto`` is ignored, because its choice depends
    on the cluster; see :func:`plan`. ``data`` are arrays in place of stores, as in :func:`dsinga.train`. Raises
    UserError for bad input.
    """
    net_phase = find_phase(phase)
    job = with_workers(job_with_data(job, data, net_phase, data_root), workers)
    return cluster.build_partitioned_net(job, net_phase, workers, roots(job, data_root))


def plan(
    job: Job | str | os.PathLike[str],
    *,
    data: Any = None,
    workers: int | None = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    data_root: str | None = None,
    progress: bool = True,
) -> Plan:
    """Predict the time of an iteration for each way to partition the net of a job.

    Layers are timed on this machine once and cached (dask config ``dsinga.cache``).

    Args:
        job: a Job, or the path of a job file. Its stores may be missing if it gives the shapes of their records.
        data: arrays that the input layer of phase "train" reads in place of its store; see :func:`dsinga.train`.
        workers: the number of workers of the worker group, which need not exist; by default the job's, else one for
            each core of this machine.
        bandwidth: that of the network between machines, such as "1Gbit" or "100MB/s".
        latency: that of the network between machines, such as "0.1ms". With a bandwidth or a latency, workers are on
            machines like this one; without, on this machine as far as it has cores.
        data_root: where relative paths of the job are looked up last.
        progress: whether to show on standard error what is being measured, at first and every few seconds.

    Raises UserError for bad input.
    """
    from dask.system import CPU_COUNT

    from dsinga.planner.link import parse_network
    from dsinga.planner.pricing import make_plan
    from dsinga.settings import read_setting

    job = job_with_data(job, data, Phase.kTrain, data_root)
    network, cache = parse_network(bandwidth, latency), read_setting("cache")
    announce = partial(print, file=sys.stderr, flush=True) if progress else None
    return make_plan(
        job, CPU_COUNT, workers=workers, network=network, roots=roots(job, data_root), cache=cache, announce=announce
    )
