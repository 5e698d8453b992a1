"""A run of a job in this process, without Dask: for jobs of one worker that need no cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from dsinga.base.error_frames import cleared_frames
from dsinga.engine import local_job
from dsinga.engine.local_engine import LocalEngine
from dsinga.job import AlgType, Job, PartitionMethod, Phase, check
from dsinga.job.topology import topology as create_topology
from dsinga.loop.cancellation import Cancellation, deferred_interrupts
from dsinga.loop.initial_state import RunOptions, begin_run
from dsinga.loop.observer import Observer
from dsinga.loop.run_loop import Outcome, run_to_end
from dsinga.net import NeuralNet
from dsinga.net.memory_check import as_size
from dsinga.passes.devices import check_precision, local_processor
from dsinga.passes.processor import PRECISIONS, cpu_ops
from dsinga.reading.batch_reader import open_batch_reader
from dsinga.training import create_updater
from dsinga.training.local_updater import LocalUpdater

_log = logging.getLogger(__name__)


def train_locally(job: Job, observer: Observer, options: RunOptions, max_threads: int | None = None) -> Outcome:
    """Train a job in this thread; the bits are those of :func:`dsinga.cluster.train`.

    :func:`dsinga.engine.local_job.trains_locally` says which jobs this can train.
    """
    return continue_locally(job, observer, options, max_threads=max_threads)[0]


@cleared_frames("dsinga")
def continue_locally(
    job: Job,
    observer: Observer,
    options: RunOptions,
    *,
    updater: LocalUpdater | None = None,
    shuffle: bool = True,
    max_threads: int | None = None,
) -> tuple[Outcome, LocalUpdater]:
    """Train a job as :func:`train_locally` does, and return the updater, too, with which training may go on.

    ``updater`` is that of earlier training: its steps count for the order of records, random numbers and the learning
    rate. Without ``shuffle`` records are taken in their order.
    """
    started = time.perf_counter()
    cancellation = Cancellation(options.cancelled)
    with deferred_interrupts(cancellation):
        if job.neuralnet.partition is PartitionMethod.auto:
            job = fit_to_memory(job, options.roots)
        opened = local_job.open_local_job(job, options.roots, shuffle)
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
        from dsinga.planner.memory import device_memory  # the planner is for those who want a GPU

        return device_memory(net, slots, job.micro_batches)

    device = local_processor(job, bytes_needed).device
    check_precision(job, ((device,),))
    return device


def fit_to_memory(job: Job, roots: Sequence[str]) -> Job:
    """Return a job of ``partition: auto`` with the micro-batches and the recomputation that this process needs.

    A job of kCD, or for GPUs, is returned as it is. Raises UserError where the net cannot be trained in the memory.
    """
    from dsinga.planner.fitting import NetVariants, fit_or_refuse  # other jobs do without the planner

    if job.train_one_batch.alg is AlgType.kCD or job.gpu:
        return job
    check(job)
    limit, slots = local_job.memory_limit(), len(create_updater(job.updater).state_slots)
    bf16 = cpu_ops(PRECISIONS[job.precision]).has_bf16_features
    reader = open_batch_reader(job, Phase.kTrain, 1, roots)
    choice = fit_or_refuse(NetVariants.of(job, reader, slots, bf16), limit)
    fitted = choice.applied(job)
    if fitted != job:
        _log.info("partition: auto trains with %s, to fit into %s of memory", choice.words(), as_size(limit))
    return fitted
