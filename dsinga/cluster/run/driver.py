"""The driver of a training run: where it begins, how it ends, whatever happens."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from dsinga.advice import job_field, option, short_path
from dsinga.checkpoint import Checkpoint, latest, port, read_checkpoint, read_newest_checkpoint
from dsinga.cluster.dask.dask_workers import task_client
from dsinga.cluster.dask.error_frames import cleared_frames
from dsinga.cluster.dask.placement import Placement
from dsinga.cluster.dask.supervision import Check
from dsinga.cluster.placing.prepare import PreparedRun, prepare_run
from dsinga.cluster.queue.claims import HeldThreads
from dsinga.cluster.queue.usable_workers import ANYWHERE, WorkerSelection
from dsinga.cluster.run.grain import ROUNDS, Grain
from dsinga.cluster.run.recovery import RESTARTS_FROM_SNAPSHOT, RecoverableRun
from dsinga.cluster.run.snapshots import RunSnapshot
from dsinga.cluster.run.training_loop import Observer, TrainingLoop
from dsinga.errors import Cancelled, Diverged, RunError, SchedulerLost, UserError, WorkerLost
from dsinga.extensions import ExtensionLike, check_extensions, create_extensions
from dsinga.job import Job, Phase
from dsinga.loop.cancellation import CANCELLED, Cancellation
from dsinga.loop.interrupts import deferred_interrupts
from dsinga.loop.loop_state import (
    check_loop_state,
    describe_last_good,
    describe_last_good_in,
    describe_way_on,
    read_rate_factors,
)
from dsinga.net import NeuralNet
from dsinga.training import check_start, initial_values
from dsinga.training.divergence import first_not_finite
from dsinga.worker.param_slices import Arrays

_log = logging.getLogger(__name__)


@dataclass
class Outcome:
    """What a run ends with: the params, the steps done, and the timings in seconds of the last iterations.

    ``batchsize`` are the rows that all worker groups together take in a step, ``timings`` are those of group 0.
    ``stopped`` says why training ended before its last step, "" if it did not; ``remarks`` are sentences of extensions.
    ``unsaved`` says why the last step has no checkpoint in the workspace, "" if it has.
    """

    params: Arrays
    step: int
    net: NeuralNet
    batchsize: int
    timings: list[dict[str, float]]
    stopped: str = ""
    remarks: Sequence[str] = ()
    unsaved: str = ""


@cleared_frames("dsinga")
def train(
    job: Job,
    client: Client,
    observer: Observer,
    *,
    workspace: Path | None = None,
    roots: Sequence[str] = (),
    resume: bool | Path = False,
    grain: Grain = ROUNDS,
    extensions: Sequence[ExtensionLike] = (),
    params: Mapping[str, np.ndarray] | None = None,
    selection: WorkerSelection = ANYWHERE,
    max_threads: int | None = None,
    cancelled: threading.Event | None = None,
    saved: Callable[[], None] | None = None,
    check_workspace: Callable[[], None] | None = None,
) -> Outcome:
    """Train ``job`` on the cluster of ``client`` from its first step, or from a checkpoint if ``resume``.

    True stands for the newest undamaged checkpoint in the workspace; a path for that checkpoint.

    The run waits for threads of Dask workers where other runs hold them (:mod:`dsinga.cluster.queue.claims`).
    ``selection`` says which Dask workers it may use, and ``max_threads`` limits the kernel threads of each partition.

    Several worker groups are asynchronous: all of them go on from a checkpoint, which group 0 has written, at its step,
    and the params are not the same bits as those of a run that was never cut. ``extensions`` run besides those that the
    job names. ``params`` replace initial values, by name; params that the net does not have are left out.

    ``cancelled`` may be set by another thread, while the run waits or trains. With a workspace, training then ends
    after its rounds in flight, and a checkpoint is written; without, it ends at once. ``saved`` is called after each
    checkpoint that was written, ``check_workspace`` before; it raises RunError where none must be written.

    Raises UserError before training for bad input, RunError where a worker or server is lost on the way, Diverged where
    a loss is no longer finite, Cancelled if ``cancelled`` was set before the last step, and what an extension raises.
    """
    started = time.perf_counter()
    cancellation = Cancellation(cancelled)
    grain.check(job)
    task_client()  # before a run on a cluster that was started within a task makes one
    with (
        deferred_interrupts(cancellation),
        _prepare_again(
            job, client, roots, selection=selection, max_threads=max_threads, cancellation=cancellation,
            announce=observer.waiting,
        ) as prepared,
    ):  # fmt: skip
        all_extensions = create_extensions(job, extensions, prepared.epoch)
        nets = {phase: net.whole for phase, net in prepared.config.nets.items()}
        check_extensions(all_extensions, job, nets, workspace)
        begin = _resumed(prepared, workspace, resume) if resume else _fresh(job, prepared, roots, params or {})
        observer.begin(begin.step)

        def make_check(placement: Placement) -> Check:
            held = HeldThreads(client, prepared.config.run, placement.addresses, observer.waiting)

            def check(quiet: float) -> None:
                cancellation.check()
                held.check(quiet)

            return check

        first = RunSnapshot(begin.step, begin.params, begin.state if resume else None, begin.loop if resume else None)
        run = RecoverableRun(prepared, client, first, make_check, observer.waiting)
        loop = TrainingLoop(
            prepared, run, observer, workspace, grain, all_extensions, started, cancellation, saved, check_workspace
        )
        params = _train(prepared, run, loop, begin, workspace)
        return _outcome(prepared, loop, begin.step, params, workspace)


@contextlib.contextmanager
def _prepare_again(job: Job, *arguments: Any, **options: Any) -> Iterator[PreparedRun]:
    """Prepare a run, as :func:`prepare_run` does, and again where a Dask worker is lost meanwhile."""
    limit = job.cluster.max_restarts if job.cluster else None
    left = RESTARTS_FROM_SNAPSHOT if limit is None else limit
    with contextlib.ExitStack() as stack:
        while True:
            try:
                prepared = stack.enter_context(prepare_run(job, *arguments, **options))
                break
            except WorkerLost as loss:
                if not left:
                    raise
                _log.warning("%s; the run is prepared again", loss)
                left -= 1
        yield prepared


def _train(
    prepared: PreparedRun,
    run: RecoverableRun,
    loop: TrainingLoop,
    begin: Checkpoint,
    workspace: Path | None,
) -> Arrays:
    """Train on the cluster, and end the run there, whatever happens; return the params."""
    prepared.config.updater.set_rate_factors(read_rate_factors(begin.loop))
    try:
        run.start()
        params = loop.run(begin.step, begin.loop)
    except Diverged as error:
        run.close(str(error))
        raise Diverged(f"{error}; {describe_last_good(workspace)}") from error
    except RunError as error:
        run.close(str(error))
        if not isinstance(error, Cancelled) or prepared.cancellation.ends_in_order:
            _save(loop)
        kind = type(error) if isinstance(error, (Cancelled, SchedulerLost)) else RunError
        raise kind(f"{error}; {describe_way_on(workspace, loop.view.step)}") from error
    except BaseException as error:
        run.close("the driver has ended the run")
        if isinstance(error, KeyboardInterrupt):
            raise type(error)(describe_way_on(workspace, loop.view.step)) from None
        if isinstance(error, SystemExit):  # so Ctrl-C ends a program that has imported dask_jobqueue
            _log.warning("the run is ended: %s", describe_way_on(workspace, loop.view.step))
        raise
    run.close()
    return params


def _save(loop: TrainingLoop) -> None:
    """Write the newest snapshot as a checkpoint; a disk that refuses it must not hide why the run has ended."""
    try:
        loop.save_snapshot()
    except RunError as error:
        _log.warning("%s", error)


def _outcome(prepared: PreparedRun, loop: TrainingLoop, begin: int, params: Arrays, workspace: Path | None) -> Outcome:
    """Return what a run ends with. Raises Cancelled where it was cancelled before its last step."""
    job = prepared.job
    rows = prepared.topology.groups * prepared.config.readers[Phase.kTrain].batchsize
    step = loop.view.step
    is_early = loop.view.stopped and step < job.train_steps
    if is_early and loop.view.stopped == CANCELLED:
        raise Cancelled(f"{CANCELLED}; {describe_way_on(workspace, step)}")
    remarks = [_nothing_left(job)] if begin == step == job.train_steps else []
    stopped = f"training stopped after {step} of {job.train_steps} steps: {loop.view.stopped}" if is_early else ""
    unsaved = f"{loop.unsaved}; {describe_last_good(workspace)}" if loop.unsaved else ""
    remarks += loop.view.remarks
    return Outcome(params, step, prepared.net, rows, list(loop.timings), stopped, remarks, unsaved)


def _fresh(job: Job, prepared: PreparedRun, roots: Sequence[str], params: Mapping[str, np.ndarray]) -> Checkpoint:
    values = initial_values(prepared.net.params, job.seed)
    if job.checkpoint_path:
        shapes = {name: array.shape for name, array in values.items()}
        states = [name for name, param in prepared.net.params.items() if param.spec.by_rows]  # of another run's batches
        values.update(port(shapes, job.checkpoint_path, roots, without=states))
    check_start(values, params)
    for name in values.keys() & params.keys():
        if params[name].shape != values[name].shape:
            raise UserError(
                f"the param {name!r} to start from has the shape {params[name].shape}, that of the net "
                f"{values[name].shape}; leave it out, or change the layer"
            )
        values[name] = np.ascontiguousarray(params[name], np.float32)
        if first_not_finite({name: values[name]}):
            raise UserError(f"the param {name!r} to start from has NaN or infinity; leave it out, or give numbers")
    return Checkpoint(0, values, {}, {})


def _find_checkpoint(workspace: Path | None, resume: bool | Path) -> tuple[Path, Checkpoint]:
    """Return the path and the contents of the checkpoint to go on from; warn of damaged ones that are passed over."""
    if isinstance(resume, Path):
        return resume, read_checkpoint(resume)
    if workspace is None:
        raise UserError("resuming needs a workspace, the folder in which an earlier run has left checkpoints")
    newest = read_newest_checkpoint(workspace / "checkpoint")
    if newest is None:
        raise UserError(f"there is no checkpoint to resume from in {short_path(workspace)}; {_another_run(workspace)}")
    path, checkpoint, faults = newest
    for fault in faults:
        _log.warning("%s; the run goes on from the checkpoint before it, %s", fault, short_path(path))
    return path, checkpoint


def _resumed(prepared: PreparedRun, workspace: Path | None, resume: bool | Path) -> Checkpoint:
    path, checkpoint = _find_checkpoint(workspace, resume)
    check_loop_state(path, checkpoint.loop)
    if checkpoint.step > prepared.job.train_steps:
        raise UserError(
            f"{path} is beyond the job's {prepared.job.train_steps} train_steps; give {checkpoint.step} or more, with "
            f"{_length(prepared.job, checkpoint.step)}"
        )
    seed = checkpoint.meta.get("seed")
    if seed != prepared.job.seed:
        raise UserError(f"{path} is of a run with seed: {seed}; resume with that seed, or start anew")
    for name, param in prepared.net.params.items():
        if name not in checkpoint.params or checkpoint.params[name].shape != param.shape:
            raise UserError(
                f"{path} does not fit the job: it has no param {name!r} of shape {param.shape}; resume with the job "
                "that wrote it, or name it as checkpoint_path to start anew from its params"
            )
    if lost := first_not_finite(checkpoint.params):
        good = describe_last_good_in(path.parent)
        raise UserError(f"{path} has NaN or infinity in param {lost!r}, from which no run can go on; {good}")
    return checkpoint


def _another_run(workspace: Path) -> str:
    """Return what to do where a workspace has no checkpoint: resume the last earlier run that it keeps, or begin."""
    kept = {int(path.name[4:]): path for path in workspace.glob("run-*") if path.name[4:].isdecimal()}
    runs = [kept[number] for number in sorted(kept) if latest(kept[number] / "checkpoint")]
    if runs:
        return f"resume the earlier run that is kept there with {option('workspace', str(short_path(runs[-1])))}"
    return f"train without {option('resume')} first"


def _nothing_left(job: Job) -> str:
    return (
        f"nothing was left to do: the run has done its {job.train_steps} train_steps; go on with more, as in "
        f"{_length(job, 2 * job.train_steps)}"
    )


def _length(job: Job, steps: int) -> str:
    """Return how people ask for a run of at least so many steps, in epochs if the job counts them."""
    if job.epochs:
        return option("epochs", str(-(-steps * job.epochs // job.train_steps)))
    return job_field("train_steps", str(steps))
