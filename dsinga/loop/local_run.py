"""Trains jobs of one worker in this process, without Dask."""

from __future__ import annotations

import time
from typing import Any

from dsinga.base.arguments import counted
from dsinga.base.cores import memory_limit
from dsinga.base.error_frames import cleared_frames
from dsinga.base.registry import find, lookup
from dsinga.engine.local_engine import LocalEngine
from dsinga.job import ClusterConf, Job, PartitionMethod, Phase
from dsinga.loop.cancellation import Cancellation, deferred_interrupts
from dsinga.loop.initial_state import RunOptions, begin_run
from dsinga.loop.run_loop import TrainedParams, run_to_end
from dsinga.loop.view import Observer
from dsinga.net.neuralnet import check_memory
from dsinga.ops import get_ops
from dsinga.passes.opened_job import OpenedJob, open_job
from dsinga.passes.processors import read_device, training_device
from dsinga.reading.checked_job import CheckedJob, FitToMemory, check_job, planning
from dsinga.training import check_patterns, create_updater
from dsinga.training.local_updater import LocalUpdater, Slots

# What else a job may say of its cluster where it has one worker: how fast that is, not what it computes.
FREE_FIELDS = ("workspace", "max_restarts", "patience")
ONE_WORKER = "1 worker, 1 server"  # in words, as a cluster describes it in checkpoints


def trains_locally(job: Job) -> bool:
    """Whether the local engine can train a job: one worker, on CPU cores or a GPU, or blocks on CPU cores."""
    conf = job.cluster or ClusterConf()
    return (
        conf == ClusterConf().replace(**{name: getattr(conf, name) for name in FREE_FIELDS})
        and job.experience is None
        and not (job.blocks and (job.gpu or read_device() == "gpu"))
        and not _waits_for_tasks(job)
    )


def _waits_for_tasks(job: Job) -> bool:
    name = job.train_one_batch.user_alg
    return bool(name and getattr(find("algorithm", name), "waits_for_tasks", False))


def open_local_job(checked: CheckedJob) -> OpenedJob:
    """Open the stores of a job with one worker, and build its nets."""
    job = checked.job
    get_ops()  # raises UserError where the setting names no kernels
    opened = open_job(checked, job.blocks or 1)
    check_memory(opened.nets.values(), 1, memory_limit())
    check_patterns(job.updater, opened.nets[Phase.kTrain].params)
    for reader in opened.readers.values():
        for store in reader.stores.values():
            if store.from_files:
                check_first_block(store)
    return opened


def check_first_block(store: Any) -> None:
    """Raise UserError if the first records of a store are damaged."""
    for column in store.columns:
        column.load(0, column.sample_rows)  # past the cache, which may have what was not damaged yet


@cleared_frames("dsinga")
def continue_locally(
    job: Job | CheckedJob,
    observer: Observer,
    options: RunOptions,
    *,
    earlier: tuple[Slots, int] = ({}, 0),
    max_threads: int | None = None,
) -> TrainedParams:
    """Train a job with one worker in this thread, and return the outcome.

    ``earlier`` has the updater's state and steps of earlier training, which count.
    """
    started = time.perf_counter()
    cancellation = Cancellation(options.cancelled)
    with deferred_interrupts(cancellation):
        checked = check_job(job, options.roots)
        if checked.job.neuralnet.partition is PartitionMethod.auto:
            with planning(checked.job):
                fit: FitToMemory = lookup("hook", "fit_to_memory")
            checked = fit(checked, memory_limit())
        job, opened = checked.job, open_local_job(checked)
        epochs = opened.readers[Phase.kTrain].epochs if job.epochs else None
        all_extensions, begin = begin_run(job, opened.nets, epochs, options)
        device = training_device(job, opened.nets[Phase.kTrain])
        updater = None
        if earlier[1]:
            conf = job.updater.replace(earlier_steps=0)  # the updater counts them itself
            updater = LocalUpdater(create_updater(conf), opened.nets[Phase.kTrain].params)
            updater.resume_learnt(*earlier)
        engine = LocalEngine(job, opened, begin, updater, max_threads, device)
        observer.begin(begin.step)  # moves files of an earlier run, so what can be refused has been
        topology = counted(job.blocks, "block") if job.blocks else ONE_WORKER
        return run_to_end(engine, begin, observer, all_extensions, options, topology, cancellation, started)
