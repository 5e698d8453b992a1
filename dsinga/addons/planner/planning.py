"""Predicts the time of an iteration of a job, and compares it with that of a run."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from pathlib import Path
from typing import Any

from dask.system import CPU_COUNT
from dask.utils import parse_bytes
from distributed.system import MEMORY_LIMIT

from dsinga.addons.planner.comparison import Comparison, compare_run
from dsinga.addons.planner.link import GIGABIT, parse_network
from dsinga.addons.planner.plan import Plan, price_sites
from dsinga.addons.planner.pricing import make_plan, plan_net, whole_job
from dsinga.api.jobs_with_data import job_with_data, roots
from dsinga.base.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.base.settings import read_setting
from dsinga.base.standard_streams import error_stream
from dsinga.job import Job, Phase
from dsinga.reading.checked_job import check_job


@typed()
def plan(
    job: Job | str | os.PathLike[str],
    *,
    data: Any = None,
    workers: int | None = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    memory: str | None = None,
    sites: int | None = None,
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
        memory: the memory of each worker, such as "2GB". Then micro-batches and recomputation are chosen, too, so that
            each alternative fits into it, if it can (:class:`dsinga.addons.planner.fitting.MemoryFit`).
        sites: the number of sites that average their params (``sync_method: kMean``), each with such a worker group on
            this machine; bandwidth and latency are then those between sites.
        data_root: where relative paths of the job are looked up last.
        progress: whether to show on standard error what is being measured, at first and every few seconds.

    Raises UserError for bad input, and where the net cannot be trained in ``memory``.
    """
    job = job_with_data(job, data, Phase.kTrain, data_root)
    limit = None if memory is None else parse_size(memory)
    machine = _machine(job, bandwidth, latency, data_root, progress)
    if sites is None:
        return make_plan(job, workers=workers, memory=MEMORY_LIMIT, limit=limit, **machine)
    link = machine.pop("network") or GIGABIT
    numbers = sum(
        param.size for param in plan_net(check_job(whole_job(job), machine["roots"], [Phase.kTrain])).params.values()
    )
    price_sites(sites, numbers, 1.0, link)  # refuses bad input before anything is timed
    plan = make_plan(job, workers=workers, memory=MEMORY_LIMIT, limit=limit, network=None, **machine)
    seconds = plan.alternatives[0].prediction.seconds
    return dataclasses.replace(plan, sites=price_sites(sites, numbers, seconds, link))


def parse_size(text: str) -> int:
    """Return the bytes that a text such as "2GB" or "1.5 GiB" says. Raises UserError for another, and below 1 MiB."""
    try:
        size = int(parse_bytes(text))
    except ValueError:
        size = 0
    if size < 1 << 20:
        raise UserError(f"memory must be a size such as 2GB or 512MiB, not {text!r}")
    return size


@typed()
def compare_with_plan(
    job: Job | str | os.PathLike[str],
    workspace: str | os.PathLike[str],
    *,
    data: Any = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    data_root: str | None = None,
    progress: bool = True,
) -> Comparison:
    """Compare the finished run in a workspace with its prediction, part by part.

    ``parts`` of the result are computing layers, updating params, exchange and waiting, and reading records, each with
    its ``predicted`` and ``measured`` seconds of an iteration; ``verdict`` is a sentence about the largest miss. The
    prediction is for the workers, servers and cuts of the run, on machines like this one. ``bandwidth`` and ``latency``
    are those between the hosts of the run; the other arguments are those of :func:`plan`.

    Raises UserError for bad input, a workspace without a finished run, and a run of another job.
    """
    job = job_with_data(job, data, Phase.kTrain, data_root)
    return compare_run(job, Path(workspace), **_machine(job, bandwidth, latency, data_root, progress))


def _machine(
    job: Job, bandwidth: str | None, latency: str | None, data_root: str | None, progress: bool
) -> dict[str, Any]:
    """Return the arguments of predictions that describe this machine and the network, and where files are."""
    return {
        "cores": CPU_COUNT,
        "network": parse_network(bandwidth, latency),
        "roots": roots(job, data_root),
        "cache": read_setting("cache"),
        "announce": partial(print, file=error_stream(), flush=True) if progress else None,
    }
