"""Finds the state from which a run starts: initial values, another net's params, or a checkpoint."""

from __future__ import annotations

import bisect
import logging
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsinga.base.advice import job_field, option, short_path
from dsinga.base.arrays import ParamArrays, first_not_finite
from dsinga.base.errors import UserError
from dsinga.base.registry import listed
from dsinga.checkpoint import Checkpoint, latest, port_to_net, read_checkpoint, read_newest_checkpoint
from dsinga.checkpoint.metadata import DamagedFile, read_metadata
from dsinga.engine.engine import Snapshot
from dsinga.extensions import Extension, ExtensionLike, check_extensions, create_extensions
from dsinga.job import Job, Phase, SyncMethod
from dsinga.job.checks import check_schedules
from dsinga.job.epochs import Epochs
from dsinga.loop.checkpoints import (
    check_loop_state,
    check_records,
    check_training,
    describe_last_good_in,
    offset_to_resume,
)
from dsinga.net import NeuralNet, Param
from dsinga.reading.checked_job import CheckedJob, rows_per_step
from dsinga.training import check_start, create_updater, initial_values, schedule

_log = logging.getLogger(__name__)

LOW_RATE = 1e-3  # of the highest one: a rate that is no higher changes hardly anything
LOW_SHARE = 0.05  # of the steps of a run: schedules that end with a run are this low in its very last steps, too
SCHEDULE_SAMPLES = 500  # steps at which the schedule is asked
SITE_SLOT = re.compile(r"outer\.|group\d+\.")  # begins the slots of outer params, and those of server groups but 0


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run starts and where it writes: checkpoint, params, extensions and workspace.

    Attributes:
        workspace: the folder for files of extensions and ``checkpoint/``, or None.
        roots: folders where relative paths are looked up after the working directory.
        resume: the checkpoint's path; True for the newest undamaged one in the workspace.
        params: replacements of initial values, by name; unknown params are ignored.
        updater_state: an earlier updater's state, by param and slot; missing slots start new.
        cancelled: set by another thread to end training.
        saved: called after each written checkpoint.
        check_workspace: called before each checkpoint; raises RunError to forbid it.
    """

    workspace: Path | None = None
    roots: Sequence[str] = ()
    resume: bool | Path = False
    extensions: Sequence[ExtensionLike] = ()
    params: Mapping[str, np.ndarray] | None = None
    updater_state: Mapping[str, Mapping[str, np.ndarray]] | None = None
    cancelled: threading.Event | None = None
    saved: Callable[[], None] | None = None
    check_workspace: Callable[[], None] | None = None


def begin_run(
    job: Job, nets: Mapping[Phase, NeuralNet], epochs: Epochs | None, options: RunOptions
) -> tuple[list[Extension], Snapshot]:
    """Return the extensions of a run, and its state from initial values or a checkpoint.

    Raises UserError for an extension that can never run, and for a checkpoint or params that do not fit.
    """
    all_extensions = create_extensions(job, options.extensions, epochs)
    check_extensions(all_extensions, job, nets, options.workspace)
    net_params = nets[Phase.kTrain].params
    if not options.resume:
        params = begin_anew(job, net_params, options.params or {}, options.roots)
        state = complete_state(job, net_params, params, options.updater_state) if options.updater_state else None
        warn_of_unused_steps(job, nets[Phase.kTrain], 0)
        return all_extensions, Snapshot(0, params, state)
    checkpoint = read_beginning(job, net_params, options.workspace, options.resume)
    warn_of_unused_steps(job, nets[Phase.kTrain], checkpoint.step)
    state = checkpoint.state
    if job.cluster is None or job.cluster.sync_method is not SyncMethod.kMean:
        state = updater_state(state)
    else:
        _warn_of_sites(state, job.cluster.nserver_groups)
    return all_extensions, Snapshot(checkpoint.step, checkpoint.params, state, checkpoint.loop)


def begin_anew(
    job: Job, net_params: Mapping[str, Param], params: Mapping[str, np.ndarray], roots: Sequence[str] = ()
) -> ParamArrays:
    """Return the params of a run without a checkpoint: initial values, or ``params`` of the same names.

    A job's ``checkpoint_path`` may replace initial values, too.
    """
    shapes = {name: np.broadcast_to(np.float32(0), param.shape) for name, param in net_params.items()}
    drawn = {name: param for name, param in net_params.items() if name not in params}
    values = {**shapes, **initial_values(drawn, job.seed), **port_to_net(net_params, job.checkpoint_path, roots)}
    put_params(values, params)
    return values


def complete_state(
    job: Job, net_params: Mapping[str, Param], params: ParamArrays, state: Mapping[str, Mapping[str, np.ndarray]]
) -> dict[str, ParamArrays]:
    """Complete an optimizer's state, with initial arrays for params that it lacks."""
    whole, state, complete = create_updater(job.updater), updater_state(state), {}
    for name, param in net_params.items():
        if not param.trainable:
            continue
        updater = whole.of(name, param.shape)
        slots = updater.initial_state(params[name].reshape(-1))
        if name in state:  # the state of sites begins anew
            updater.check_state(name, state[name])
            for slot, array in state[name].items():
                if array.size != param.size:
                    raise UserError(
                        f"the updater's state of param {name!r} to start from has {array.size} numbers, the param "
                        f"{param.size}; leave it out"
                    )
                slots[slot] = np.array(array, np.float32)
        complete[name] = {slot: array.reshape(param.shape) for slot, array in slots.items()}
    return complete


def updater_state(state: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, ParamArrays]:
    """Return the optimizer state in a checkpoint, without states of other sites."""
    return {
        name: {slot: array for slot, array in slots.items() if not SITE_SLOT.match(slot)}
        for name, slots in state.items()
    }


def _warn_of_sites(state: Mapping[str, ParamArrays], sites: int) -> None:
    slots = {slot for of_param in state.values() for slot in of_param}
    numbers = [int(slot[5 : slot.index(".")]) for slot in slots if re.match(r"group\d+\.", slot)]
    if slots and (known := max(numbers, default=0) + 1) != sites:
        _log.warning(
            "the checkpoint is of a run of %d sites, the job has %d: new ones begin with the averaged params and the "
            "optimizer of the first one",
            known,
            sites,
        )


def put_params(values: ParamArrays, params: Mapping[str, np.ndarray]) -> None:
    """Replace params by given ones of the same names; others are ignored.

    Raises UserError if no name is known, or params do not fit.
    """
    check_start(values, params)
    for name in values.keys() & params.keys():
        if params[name].shape != values[name].shape:
            raise UserError(
                f"the param {name!r} to start from has the shape {params[name].shape}, that of the net "
                f"{values[name].shape}; leave it out, or change the layer"
            )
        values[name] = np.array(params[name], np.float32, order="C")  # a copy, which training may change
        if first_not_finite({name: values[name]}):
            raise UserError(f"the param {name!r} to start from has NaN or infinity; leave it out, or give numbers")


def find_checkpoint(workspace: Path | None, resume: bool | Path) -> tuple[Path, Checkpoint]:
    """Read the checkpoint to resume from: return its path and contents; warn of damaged ones.

    ``resume`` is a path, or True for the workspace's newest undamaged checkpoint.
    """
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


def read_beginning(
    job: Job, net_params: Mapping[str, Param], workspace: Path | None, resume: bool | Path
) -> Checkpoint:
    """Read the checkpoint to resume from, and check that it fits the job."""
    path, checkpoint = find_checkpoint(workspace, resume)
    if checkpoint.step > job.train_steps:
        raise UserError(
            f"{path} is beyond the job's {job.train_steps} train_steps; give {checkpoint.step} or more, with "
            f"{describe_length(job, checkpoint.step)}"
        )
    check_beginning(path, checkpoint, job, net_params)
    return checkpoint


def check_beginning(path: Path, checkpoint: Checkpoint, job: Job, net_params: Mapping[str, Param]) -> None:
    """Raise UserError if a checkpoint does not fit a job, its records or its net."""
    check_loop_state(path, checkpoint.loop)
    check_records(path, checkpoint.meta.get("records", {}), job)
    seed = checkpoint.meta.get("seed")
    if seed != job.seed:
        raise UserError(f"{path} is of a run with seed: {seed}; resume with that seed, or start anew")
    for name, param in net_params.items():
        if name not in checkpoint.params or checkpoint.params[name].shape != param.shape:
            raise UserError(
                f"{path} does not fit the job: it has no param {name!r} of shape {param.shape}; resume with the job "
                "that wrote it, or name it as checkpoint_path to start anew from its params"
            )
    if unknown := [name for name in checkpoint.params if name not in net_params]:
        raise UserError(
            f"{path} does not fit the job: the net has no params {listed(unknown)}; resume with the job that wrote it, "
            "or name it as checkpoint_path to start anew from its params"
        )
    check_training(path, checkpoint.meta, job)
    if lost := first_not_finite(checkpoint.params):
        good = describe_last_good_in(path.parent)
        raise UserError(f"{path} has NaN or infinity in param {lost!r}, from which no run can go on; {good}")


def _another_run(workspace: Path) -> str:
    kept = {int(path.name[4:]): path for path in workspace.glob("run-*") if path.name[4:].isdecimal()}
    runs = [kept[number] for number in sorted(kept) if latest(kept[number] / "checkpoint")]
    if runs:
        return f"resume the earlier run that is kept there with {option('workspace', str(short_path(runs[-1])))}"
    return f"train without {option('resume')} first"


def describe_length(job: Job, steps: int) -> str:
    """Say how to ask for at least ``steps`` steps, in epochs if the job counts them."""
    if job.epochs:
        return option("epochs", str(-(-steps * job.epochs // job.train_steps)))
    return job_field("train_steps", str(steps))


def warn_of_unused_steps(job: Job, net: NeuralNet, begin: int) -> None:
    """Warn if training cannot teach much: frozen params, a learning rate near 0, or batches of one row."""
    if net.params and not any(param.trainable and not param.static for param in net.params.values()):
        _log.warning("training changes nothing: all params of the net are frozen; unfreeze some (trainable, static)")
    if not job.updater.goes_on:
        _warn_of_schedule(job, begin)
    for node in net.nodes:
        layer = node.layer
        if not getattr(layer, "use_global_stats", True):
            parts = job.blocks or (job.cluster.nworkers_per_group if job.cluster else 1)
            workers = 1 if getattr(layer, "synchronized", False) else parts
            if layer.shape[0] // workers * math.prod(layer.shape[2:]) == 1:
                _log.warning(
                    "layer %r normalises each channel over the one number that %s of one row has, so that its "
                    "feature is the same for all records in training: give batches of more rows",
                    layer.name,
                    "a batch" if workers == 1 else "a worker's part of a batch",
                )


def _warn_of_schedule(job: Job, begin: int) -> None:
    earlier, last = job.updater.earlier_steps, job.train_steps
    if last - begin < 1 / LOW_SHARE:
        return
    rate = schedule(job.updater.learning_rate)
    first = low_from(lambda step: rate(step + earlier), -earlier, begin, last)
    if last - first > LOW_SHARE * (last - begin):
        where = f"from step {first} on" if first > begin else "in all steps"
        after = f", of which {earlier} steps are those of earlier training" if earlier else ""
        _log.warning(
            "the learning rate is near 0 (%.2g) %s, of %d: its schedule is shorter than the run%s; give the schedule "
            "as many steps as are trained in all, or begin it anew, as compile does",
            rate(last - 1 + earlier),
            where,
            last,
            after,
        )


def low_from(rate: Callable[[int], float], origin: int, begin: int, last: int) -> int:
    """Return the first step from which a learning rate stays near 0; ``last`` if there is none."""
    end = rate(last - 1)
    highest = max(rate(step) for step in range(origin, last, max(1, (last - origin) // SCHEDULE_SAMPLES)))
    if end > LOW_RATE * highest or highest <= 0:
        return last
    steps = range(begin, last, max(1, (last - begin) // SCHEDULE_SAMPLES))
    place = next((place for place in range(len(steps) - 1, -1, -1) if rate(steps[place]) != end), -1)
    if place < 0:
        return begin
    low, high = steps[place], steps[place + 1] if place + 1 < len(steps) else last
    return low + bisect.bisect_left(range(low, high), True, key=lambda step: rate(step) == end)


def place_in_data(checked: CheckedJob, workspace: Path | None, resume: bool | Path) -> tuple[CheckedJob, bool | Path]:
    """Let a resumed run with another batch size continue at the same record: return job and checkpoint.

    ``train_steps`` follow the job's ``epochs``. Raises UserError if the job has fewer epochs than the checkpoint.
    """
    job = checked.job
    rows = 0 if job.experience else rows_per_step(job)
    newest = resume if isinstance(resume, Path) else latest(workspace / "checkpoint") if resume and workspace else None
    if newest is None or not rows or _is_at(newest, rows):
        return checked, resume
    path, checkpoint = find_checkpoint(workspace, resume)
    check_loop_state(path, checkpoint.loop)
    offset = offset_to_resume(checkpoint.step, checkpoint.loop, rows)
    job = job.with_record_offset(offset)
    if job.epochs:
        epochs = checked.with_job(job).epochs
        steps = epochs.end(job.epochs)
        if steps < checkpoint.step:
            least, done = epochs.done(checkpoint.step - 1) + 1, epochs.at(checkpoint.step)
            raise UserError(
                f"{path} is beyond the job's {job.epochs} epochs: the run has done {done:g}; give "
                f"{option('epochs', str(least))} or more"
            )
        job = job.replace(train_steps=steps)
        check_schedules(job)
    _log.info(
        "%s: the run goes on with %d records a step, after %d records", short_path(path), rows,
        offset + checkpoint.step * rows,
    )  # fmt: skip
    return checked.with_job(job), path


def _is_at(path: Path, rows: int) -> bool:
    """Whether steps of ``rows`` rows would reach exactly the record at which a checkpoint was written."""
    try:
        metadata = read_metadata(path)
    except DamagedFile:
        return False
    check_loop_state(path, metadata.loop)
    return offset_to_resume(metadata.step, metadata.loop, rows) == 0
