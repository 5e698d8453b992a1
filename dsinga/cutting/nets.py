"""Builds the net of a job cut for several workers, to look at it."""

from __future__ import annotations

import os
from typing import Any

from dsinga.api.argument_types import typed
from dsinga.api.jobs_with_data import job_with_data, roots, with_workers
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.phases import cut_nets
from dsinga.job import ClusterConf, Job, Phase
from dsinga.job.enums import find_phase
from dsinga.net import create_net
from dsinga.reading.checked_job import check_job, check_same_params


@typed()
def partition_net(
    job: Job | str | os.PathLike[str],
    workers: int,
    phase: str = "train",
    *,
    data: Any = None,
    data_root: str | os.PathLike[str] | None = None,
) -> PartitionedNet:
    """Return the net of a phase, cut for ``workers`` workers of a group, to inspect or draw it.

    A notebook draws it with a colour for each worker. ``partition: auto`` is ignored, because its choice depends on the
    cluster; see :func:`dsinga.plan`. ``data`` is as in :func:`dsinga.train`.
    """
    net_phase = find_phase(phase)
    job = with_workers(job_with_data(job, data, net_phase, data_root), workers)
    phases = list(dict.fromkeys([Phase.kTrain, net_phase]))
    checked = check_job(job, roots(job, data_root), phases)
    readers = {name: checked.reader(name, workers) for name in phases}
    nets = {name: create_net(job.neuralnet, name, reader.infos) for name, reader in readers.items()}
    check_same_params(nets)
    return cut_nets(nets, readers, (job.cluster or ClusterConf()).fullc_gather)[net_phase]
