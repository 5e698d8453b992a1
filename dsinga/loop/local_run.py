"""A run of a job in this process, without Dask: for jobs of one worker that need no cluster."""

from __future__ import annotations

import time

from dsinga.base.error_frames import cleared_frames
from dsinga.engine import local_job
from dsinga.engine.local_engine import LocalEngine
from dsinga.job import Job, PartitionMethod, Phase
from dsinga.job.topology import topology as create_topology
from dsinga.loop.cancellation import Cancellation, deferred_interrupts
from dsinga.loop.initial_state import RunOptions, begin_run
from dsinga.loop.observer import Observer
from dsinga.loop.run_loop import Outcome, run_to_end
from dsinga.net import NeuralNet
from dsinga.passes.processors import check_precision, local_processor
from dsinga.reading.checked_job import CheckedJob, check_job, partition_hook
from dsinga.training import create_updater
from dsinga.training.local_updater import LocalUpdater


def train_locally(
    job: Job | CheckedJob, observer: Observer, options: RunOptions, max_threads: int | None = None
) -> Outcome:
    """Train a job in this thread; the bits are those of :func:`dsinga.cluster.train`.

    :func:`dsinga.engine.local_job.trains_locally` says which jobs this can train.
    """
    return continue_locally(job, observer, options, max_threads=max_threads)[0]


@cleared_frames("dsinga")
def continue_locally(
    job: Job | CheckedJob,
    observer: Observer,
    options: RunOptions,
    *,
    updater: LocalUpdater | None = None,
    shuffle: bool = True,
    max_threads: int | None = None,
) -> tuple[Outcome, LocalUpdater]:
    """Train in this thread; return the outcome and the updater, to continue later.

    ``updater`` is that of earlier training: its steps count for the order of records, random numbers and the learning
    rate. Without ``shuffle`` records are taken in their order.
    """
    started = time.perf_counter()
    cancellation = Cancellation(options.cancelled)
    with deferred_interrupts(cancellation):
        checked = check_job(job, options.roots)
        if checked.job.neuralnet.partition is PartitionMethod.auto:
            checked = partition_hook(checked.job, "fit_to_memory")(checked, local_job.memory_limit())
        job, opened = checked.job, local_job.open_local_job(checked, shuffle)
        epochs = opened.readers[Phase.kTrain].epochs if job.epochs else None
        all_extensions, begin = begin_run(job, opened.nets, epochs, options)
        topology = create_topology(job, 1, 1).describe()
        engine = LocalEngine(job, opened, begin, updater, max_threads, _choose_device(job, opened.nets[Phase.kTrain]))
        begin.release()  # the engine has copies
        observer.begin(begin.step)  # moves files of an earlier run, so what can be refused has been
        outcome = run_to_end(engine, begin, observer, all_extensions, options, topology, cancellation, started)
        return outcome, engine.kept_updater()


def _choose_device(job: Job, net: NeuralNet) -> int | None:
    """Return the GPU that trains a job, None for CPU cores. Raises UserError where the job must not have these."""
    slots = len(create_updater(job.updater).state_slots)

    def bytes_needed() -> int:
        from dsinga.net.worker_memory import device_memory  # for those alone who want a GPU

        return device_memory(net, slots, job.micro_batches)

    device = local_processor(job, bytes_needed).device
    check_precision(job, ((device,),))
    return device
