"""Builds the nets of jobs, whole or partitioned, and tells what memory and padding their training needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.api.argument_types import typed
from dsinga.api.jobs_with_data import job_with_data, roots, with_workers
from dsinga.base.errors import UserError
from dsinga.job import AlgType, Job, Phase, Precision
from dsinga.job.enums import PRECISIONS, find_phase
from dsinga.net import NeuralNet, PartitionedNet
from dsinga.net.worker_memory import Memory, worker_memory
from dsinga.ops import cpu_ops
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.checked_job import CheckedJob, build_partitioned_net, check_job
from dsinga.reading.sampler import padding_share
from dsinga.training import create_updater

PADDING_BATCHES = 200  # that are read for the share of padding


@typed()
def build_net(
    job: Job | str | os.PathLike[str],
    phase: str = "train",
    *,
    data: Any = None,
    data_root: str | os.PathLike[str] | None = None,
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
    data_root: str | os.PathLike[str] | None = None,
) -> PartitionedNet:
    """Return the net of a phase, cut for ``workers`` workers of a group, without training.

    In a notebook it is drawn with a colour for each worker. ``partition: auto`` is ignored, because its choice depends
    on the cluster; see :func:`dsinga.plan`. ``data`` are arrays in place of stores, as in :func:`dsinga.train`. Raises
    UserError for bad input.
    """
    net_phase = find_phase(phase)
    job = with_workers(job_with_data(job, data, net_phase, data_root), workers)
    return build_partitioned_net(job, net_phase, workers, roots(job, data_root))


def slots_and_bf16(job: Job) -> tuple[int, bool]:
    """Return how many arrays the updater of a job keeps for each param, and whether features are in bfloat16 here."""
    bf16 = job.precision is Precision.kBF16 and cpu_ops(PRECISIONS[job.precision]).has_bf16_features
    return len(create_updater(job.updater).state_slots), bf16


def training_memory(job: Job, locals_: Sequence[NeuralNet], reader: BatchReader) -> list[Memory]:
    """Return the memory of each worker of a group, in a process of its own; ``locals_`` are their training nets."""
    slots, bf16 = slots_and_bf16(job)
    return [
        worker_memory(local, slots, len(locals_), *reader.sizes(local), bf16, job.micro_batches) for local in locals_
    ]


def expected_memory(
    job: Job, net: NeuralNet | PartitionedNet, data_root: str | os.PathLike[str] | None = None
) -> list[Memory]:
    """Return the memory that each worker, in a process of its own, needs to train ``net``, the job's net of kTrain.

    The list is empty if the job is not trained by back-propagation, or if its stores or its updater are missing.
    """
    if job.train_one_batch.alg is AlgType.kCD:
        return []
    locals_ = (net,) if isinstance(net, NeuralNet) else net.locals
    try:
        return training_memory(job, locals_, CheckedJob(job, roots(job, data_root)).reader(Phase.kTrain, len(locals_)))
    except UserError:
        return []


def describe_padding(job: Job, data_root: str | os.PathLike[str] | None = None) -> str:
    """Return the share of padding in shuffled batches and in those by length, "" where no lengths are known.

    Of a batch the steps up to the end of its longest sequence count. The first batches are read, at most an epoch.
    """
    try:
        sampler = CheckedJob(job, roots(job, data_root)).reader(Phase.kTrain).sampler
    except UserError:  # stores are missing
        return ""
    if (lengths := sampler.lengths) is None:
        return ""
    batches = min(PADDING_BATCHES, -(-sampler.length // sampler.batchsize))
    orders = (order.rows(0, 0, batches * sampler.batchsize) for order in (replace(sampler, lengths=None), sampler))
    shuffled, by_length = (padding_share([*map(lengths.of, np.split(rows, batches))]) for rows in orders)
    return (
        f"padding, up to the longest sequence of a batch: {shuffled:.1%} of the steps in shuffled batches, "
        f"{by_length:.1%} by length (group_by_length: {sampler.grouped})"
    )
