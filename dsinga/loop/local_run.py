"""A run of a job in this process, without Dask: for jobs of one worker that need no cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from dsinga.engine.local_engine import LocalEngine
from dsinga.engine.local_job import open_local_job
from dsinga.engine.local_updater import LocalUpdater
from dsinga.error_frames import cleared_frames
from dsinga.extensions import ExtensionLike
from dsinga.job import Job, Phase
from dsinga.job.topology import topology as create_topology
from dsinga.loop.beginning import begin_run
from dsinga.loop.cancellation import Cancellation
from dsinga.loop.interrupts import deferred_interrupts
from dsinga.loop.observer import Observer
from dsinga.loop.running import Outcome, RunFolder, run_to_end
from dsinga.worker.batch_reader import steps_per_epoch


@cleared_frames("dsinga")
def train_here(
    job: Job,
    observer: Observer,
    *,
    workspace: Path | None = None,
    roots: Sequence[str] = (),
    resume: bool | Path = False,
    extensions: Sequence[ExtensionLike] = (),
    params: Mapping[str, np.ndarray] | None = None,
    updater: LocalUpdater | None = None,
    shuffle: bool = True,
    max_threads: int | None = None,
    cancelled: threading.Event | None = None,
    saved: Callable[[], None] | None = None,
    check_workspace: Callable[[], None] | None = None,
) -> Outcome:
    """Train a job in this thread; the arguments and the bits are those of :func:`dsinga.cluster.train`.

    :func:`dsinga.engine.local_job.trains_locally` says which jobs this can train. ``updater`` is that of earlier
    training, which goes on: its steps count for the order of records, random numbers and the learning rate. Without
    ``shuffle`` records are taken in their order.
    """
    started = time.perf_counter()
    cancellation = Cancellation(cancelled)
    with deferred_interrupts(cancellation):
        opened = open_local_job(job, roots, shuffle)
        epoch = steps_per_epoch(opened.readers[Phase.kTrain]) if job.epochs else None
        all_extensions, begin = begin_run(
            job, opened.nets, epoch, extensions=extensions, workspace=workspace, resume=resume, params=params or {},
            roots=roots,
        )  # fmt: skip
        observer.begin(begin.step)
        topology = create_topology(job, 1, 1).describe()
        return run_to_end(
            LocalEngine(job, opened, begin, updater, max_threads), begin, observer, all_extensions,
            RunFolder(folder=workspace, topology=topology, saved=saved, check=check_workspace), cancellation, started,
        )  # fmt: skip
