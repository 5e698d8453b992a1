"""Inspects a job without running it: its net, whole or partitioned."""

from __future__ import annotations

import os
from typing import Any

from dsinga.api.jobs_with_data import job_with_data, roots, with_workers
from dsinga.base.argument_types import typed
from dsinga.job import Job
from dsinga.job.enums import find_phase
from dsinga.net import NeuralNet, PartitionedNet
from dsinga.reading.checked_job import build_partitioned_net, check_job


@typed()
def build_net(
    job: Job | str | os.PathLike[str], phase: str = "train", *, data: Any = None, data_root: str | None = None
) -> NeuralNet:
    """Return the net of a phase, without training: its layers, shapes and params.

    ``data`` are arrays that the phase's input layer reads in place of its store; see :func:`dsinga.train`. Raises
    UserError for bad input.
    """
    net_phase = find_phase(phase)
    job = job_with_data(job, data, net_phase, data_root)
    return check_job(job, roots(job, data_root), [net_phase]).net(net_phase)


@typed()
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
    on the cluster; see :func:`dsinga.plan`. ``data`` are arrays in place of stores, as in :func:`dsinga.train`. Raises
    UserError for bad input.
    """
    net_phase = find_phase(phase)
    job = with_workers(job_with_data(job, data, net_phase, data_root), workers)
    return build_partitioned_net(job, net_phase, workers, roots(job, data_root))
