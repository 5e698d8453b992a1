"""Opens a job that the local engine can train: which jobs these are, and whether they fit into memory."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from dsinga.base.registry import find
from dsinga.job import ClusterConf, Job, Phase
from dsinga.job.topology import topology as create_topology
from dsinga.net.memory_check import check_memory
from dsinga.ops import get_ops
from dsinga.passes.opened_job import OpenedJob, open_job
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import check_patterns

# What else a job may say of its cluster where it has one worker: how fast that is, not what it computes.
FREE_FIELDS = ("workspace", "max_restarts", "patience")
# The file with the bytes that the processes of a container may use.
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def trains_locally(job: Job) -> bool:
    """Whether the local engine can train a job: one worker, on CPU cores or on a GPU."""
    conf = job.cluster or ClusterConf()
    return (
        conf == ClusterConf().replace(**{name: getattr(conf, name) for name in FREE_FIELDS})
        and job.experience is None
        and not _waits_for_tasks(job)
    )


def _waits_for_tasks(job: Job) -> bool:
    """Whether a user's algorithm says of itself that it uses Dask: its attribute ``waits_for_tasks`` is true."""
    name = job.train_one_batch.user_alg
    return bool(name and getattr(find("algorithm", name), "waits_for_tasks", False))


def open_local_job(checked: CheckedJob, shuffle: bool = True) -> OpenedJob:
    """Open the stores of a job and build its nets. Raises UserError for what is wrong with them.

    Without ``shuffle`` records are trained on in their order.
    """
    job = checked.job
    get_ops()  # raises UserError where the setting names no kernels
    opened = open_job(checked, create_topology(job, 1, 1))
    check_memory(opened.nets.values(), 1, memory_limit())
    check_patterns(job.updater, opened.nets[Phase.kTrain].params)
    for reader in opened.readers.values():
        for store in reader.stores.values():
            if store.from_files:
                check_first_block(store)
    if shuffle:
        return opened
    reader = opened.readers[Phase.kTrain]
    in_order = replace(reader, sampler=replace(reader.sampler, shuffle=False))
    return opened._replace(readers={**opened.readers, Phase.kTrain: in_order})


def memory_limit() -> int:
    """Return the bytes of memory that this process may use."""
    limit = psutil.virtual_memory().total
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        limit = min(limit, int(CGROUP_LIMIT.read_text()))
    return limit


def check_first_block(store: Any) -> None:
    """Raise UserError where a store is open but cannot be read: the records are damaged."""
    for column in store.columns:
        column.load(0, column.sample_rows)  # past the cache, which may have what was not damaged yet
