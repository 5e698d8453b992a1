"""Trains a job on a cluster from beginning to end: prepares it, runs the loop, and closes it after errors."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from distributed import Client

from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import WorkerLost
from dsinga.cluster.dask.dask_workers import task_client
from dsinga.cluster.dask.placement import Placement
from dsinga.cluster.dask.supervision import Check
from dsinga.cluster.placing.prepare import PreparedRun, prepare_run
from dsinga.cluster.queue.claims import HeldThreads
from dsinga.cluster.queue.usable_workers import ANYWHERE, WorkerSelection
from dsinga.cluster.run.cluster_engine import ClusterEngine
from dsinga.cluster.run.group_rounds import ROUNDS, Grain
from dsinga.cluster.run.recovery import RESTARTS_FROM_SNAPSHOT, RecoverableRun
from dsinga.cluster.run_events import RunEvents
from dsinga.job import Job
from dsinga.loop.cancellation import Cancellation, deferred_interrupts
from dsinga.loop.initial_state import RunOptions, begin_run
from dsinga.loop.run_loop import TrainedParams, run_to_end
from dsinga.loop.view import Observer
from dsinga.reading.checked_job import CheckedJob, check_job

_log = logging.getLogger(__name__)

NO_OPTIONS = RunOptions()


@cleared_frames("dsinga")
def train(
    job: Job | CheckedJob,
    client: Client,
    observer: Observer,
    options: RunOptions = NO_OPTIONS,
    *,
    grain: Grain = ROUNDS,
    selection: WorkerSelection = ANYWHERE,
    max_threads: int | None = None,
) -> TrainedParams:
    """Train a job on the cluster of ``client``, from its first step or from a checkpoint as ``options`` say.

    ``selection`` says which Dask workers the run may use, and ``max_threads`` limits each worker's kernel threads.
    Several asynchronous worker groups resume at the step of group 0's checkpoint, with other bits than an uninterrupted
    run.

    Another thread may set ``options.cancelled``. With a workspace, training then writes a checkpoint after its rounds
    in flight. Without, it ends at once.

    Raises UserError before training for bad input, RunError if a worker or server is lost, and Diverged if a loss is
    not finite. Raises Cancelled if ``cancelled`` was set before the last step.
    """
    started = time.perf_counter()
    cancellation = Cancellation(options.cancelled)
    checked = check_job(job, options.roots)
    grain.check(checked.job)
    task_client()  # before a run on a cluster that was started within a task makes one
    with (
        deferred_interrupts(cancellation),
        _prepare_again(
            checked, client, selection=selection, max_threads=max_threads, cancellation=cancellation,
            announce=observer.waiting,
        ) as prepared,
    ):  # fmt: skip
        if grain is not ROUNDS:  # which computes each block by tasks of its own
            prepared = replace(prepared, config=replace(prepared.config, joins_blocks=False))
        nets = {phase: net.whole for phase, net in prepared.config.nets.items()}
        all_extensions, begin = begin_run(prepared.job, nets, prepared.epochs, options)
        observer.begin(begin.step)

        def make_check(placement: Placement) -> Check:
            held = HeldThreads(client, prepared.config.run, placement.addresses, observer.waiting)

            def check(quiet: float) -> None:
                cancellation.check()
                held.check(quiet)

            return check

        run = RecoverableRun(prepared, client, begin, make_check, observer.waiting)
        events = RunEvents(prepared, client, lambda method: run.cluster_run.servers.ask_all(method))
        return run_to_end(
            ClusterEngine(prepared, run, grain, events), begin, observer, [events, *all_extensions],
            options, prepared.topology.describe(), cancellation, started,
        )  # fmt: skip


@contextlib.contextmanager
def _prepare_again(checked: CheckedJob, client: Client, **options: Any) -> Iterator[PreparedRun]:
    conf = checked.job.cluster
    limit = conf.max_restarts if conf else None
    left = RESTARTS_FROM_SNAPSHOT if limit is None else limit
    with contextlib.ExitStack() as stack:
        while True:
            try:
                prepared = stack.enter_context(prepare_run(checked, client, **options))
                break
            except WorkerLost as loss:
                if not left:
                    raise
                _log.warning("%s; the run is prepared again", loss)
                left -= 1
        yield prepared
