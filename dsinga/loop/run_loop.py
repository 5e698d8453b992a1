"""Runs training to its end, returns the trained params, and explains errors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import Cancelled, ClusterNotReady, Diverged, RunError, SchedulerLost
from dsinga.engine.engine import Engine, Snapshot
from dsinga.extensions import Extension
from dsinga.job import Phase
from dsinga.job.writer import job_signature
from dsinga.loop.cancellation import CANCELLED, Cancellation
from dsinga.loop.checkpoints import Checkpoints, describe_last_good, read_rate_factors
from dsinga.loop.initial_state import RunOptions, describe_length
from dsinga.loop.timings_file import write_timings
from dsinga.loop.training_loop import TrainingLoop
from dsinga.loop.view import Observer
from dsinga.net import NeuralNet

_log = logging.getLogger(__name__)


@dataclass
class TrainedParams:
    """The outcome of a run: params, steps done, the net, and timings.

    ``batchsize`` counts a step's rows over all worker groups. ``timings`` are in seconds, of group 0. Other fields are
    :class:`dsinga.api.jobs_with_data.Result`'s.
    """

    params: ParamArrays
    step: int
    net: NeuralNet
    batchsize: int
    timings: Sequence[Mapping[str, float]]
    stopped: str = ""
    remarks: Sequence[str] = ()
    unsaved: str = ""
    is_cut: bool = False


def run_to_end(
    engine: Engine,
    begin: Snapshot,
    observer: Observer,
    extensions: Sequence[Extension],
    options: RunOptions,
    topology: str,
    cancellation: Cancellation,
    started: float,
) -> TrainedParams:
    """Train from a state to the end, and close the engine in any case.

    Raises Diverged if a loss is not finite, Cancelled if cancelled before the last step, RunError if the engine lost
    what it needs, and errors of extensions.
    """
    job, folder = engine.job, options.workspace
    checkpoints = None
    if folder:
        checkpoints = Checkpoints(job, topology, folder / "checkpoint", options.saved, options.check_workspace)
    loop = TrainingLoop(engine, observer, extensions, folder, checkpoints, cancellation, started)
    params = _run(engine, loop, begin, folder, cancellation)
    if folder:
        with contextlib.suppress(OSError, RunError):  # a full disk, or the workspace of another run: others tell of it
            if options.check_workspace is not None:
                options.check_workspace()
            write_timings(folder, job.name, job_signature(job), engine.places, dict(engine.cuts), list(loop.timings))
    return _outcome(engine, loop, begin.step, params, folder)


def _run(
    engine: Engine, loop: TrainingLoop, begin: Snapshot, folder: Path | None, cancellation: Cancellation
) -> ParamArrays:
    engine.use_rate_factors(read_rate_factors(begin.loop or {}))
    try:
        engine.open()
        params = loop.run(begin.step, begin.loop or {})
    except Diverged as error:
        engine.close(str(error))
        raise Diverged(f"{error}; {describe_last_good(folder)}") from error
    except RunError as error:
        engine.close(str(error))
        if not isinstance(error, Cancelled) or cancellation.ends_in_order:
            _save(loop)
        kind = type(error) if isinstance(error, (Cancelled, ClusterNotReady, SchedulerLost)) else RunError
        raise kind(f"{error}; {loop.resume_hint()}") from error
    except BaseException as error:
        engine.close("the driver has ended the run")
        if isinstance(error, KeyboardInterrupt):
            raise type(error)(loop.resume_hint()) from None
        if isinstance(error, SystemExit):  # so Ctrl-C ends a program that has imported dask_jobqueue
            _log.warning("the run is ended: %s", loop.resume_hint())
        raise
    engine.close()
    return params


def _save(loop: TrainingLoop) -> None:
    """Write the newest state of a failed run as a checkpoint; a disk error is only logged."""
    try:
        loop.save_snapshot()
    except RunError as error:
        _log.warning("%s", error)


def _outcome(engine: Engine, loop: TrainingLoop, begin: int, params: ParamArrays, folder: Path | None) -> TrainedParams:
    job, step = engine.job, loop.step
    is_early = loop.stopped and step < job.train_steps
    if is_early and loop.stopped == CANCELLED:
        raise Cancelled(f"{CANCELLED}; {loop.resume_hint()}")
    remarks = []
    if begin == step >= job.train_steps:
        more = describe_length(job, 2 * job.train_steps)
        remarks.append(
            f"nothing was left to do: the run has done its {job.train_steps} train_steps; go on with more, as in {more}"
        )
    stopped = f"training stopped after {step} of {job.train_steps} steps: {loop.stopped}" if is_early else ""
    unsaved = f"{loop.unsaved}; {describe_last_good(folder)}" if loop.unsaved else ""
    return TrainedParams(
        params, step, engine.nets[Phase.kTrain], engine.batchsize, list(loop.timings), stopped,
        [*remarks, *loop.view.remarks], unsaved,
        is_cut=bool(is_early and loop.view.resumable),
    )  # fmt: skip
