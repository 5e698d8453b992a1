"""The driver of a training run: where it begins, how it ends, whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distributed import Client

from dsinga.checkpoint import Checkpoint, latest, port, read_checkpoint
from dsinga.cluster import timetable
from dsinga.cluster.cluster_run import ClusterRun
from dsinga.cluster.grain import ROUNDS, Grain
from dsinga.cluster.prepare import PreparedRun, prepare_run
from dsinga.cluster.training_loop import Observer, TrainingLoop
from dsinga.errors import Diverged, RunError, UserError
from dsinga.job import Job, Phase
from dsinga.net import NeuralNet
from dsinga.training import initial_values
from dsinga.worker.param_slices import Arrays


@dataclass
class Outcome:
    """What a run ends with: the params, the steps done, and the timings in seconds of the last iterations.

    ``batchsize`` are the rows that all worker groups together take in a step, ``timings`` are those of group 0.
    """

    params: Arrays
    step: int
    net: NeuralNet
    batchsize: int
    timings: list[dict[str, float]]


def train(
    job: Job,
    client: Client,
    observer: Observer,
    *,
    workspace: Path | None = None,
    roots: Sequence[str] = (),
    resume: bool = False,
    grain: Grain = ROUNDS,
) -> Outcome:
    """Train ``job`` on the cluster of ``client`` from its first step, or from the last checkpoint if ``resume``.

    Several worker groups are asynchronous: all of them go on from a checkpoint, which group 0 has written, at its step,
    and the params are not the same bits as those of a run that was never cut.

    Raises UserError before training for bad input, RunError where a worker or server is lost on the way, Diverged where
    a loss is no longer finite.
    """
    grain.check(job)
    prepared = prepare_run(job, client, roots)
    begin = _resumed(prepared, workspace) if resume else _fresh(job, prepared, roots)
    observer.begin(begin.step)
    run = ClusterRun(client, prepared.config, prepared.placement)
    training_loop = TrainingLoop(prepared, run, observer, workspace, grain)
    warm = timetable.all_begin(job, prepared.topology, begin.step)
    try:
        run.start(begin.params, begin.state if resume else None, begin.step, warm)
        params = training_loop.run(begin.step)
    except Diverged as error:
        run.close(str(error))
        raise Diverged(f"{error}; {_last_good(workspace)}") from error
    except RunError as error:
        run.close(str(error))
        raise RunError(f"{error}; {_way_on(workspace, training_loop.step)}") from error
    except BaseException:
        run.close("the driver has ended the run")
        raise
    run.close()
    rows = prepared.topology.groups * prepared.config.readers[Phase.kTrain].batchsize
    return Outcome(params, job.train_steps, prepared.net, rows, list(training_loop.timings))


def _fresh(job: Job, prepared: PreparedRun, roots: Sequence[str]) -> Checkpoint:
    values = initial_values(prepared.net.params, job.seed)
    if job.checkpoint_path:
        shapes = {name: array.shape for name, array in values.items()}
        states = [name for name, param in prepared.net.params.items() if param.spec.by_rows]  # of another run's batches
        values.update(port(shapes, job.checkpoint_path, roots, without=states))
    return Checkpoint(0, values, {}, {})


def _resumed(prepared: PreparedRun, workspace: Path | None) -> Checkpoint:
    if workspace is None:
        raise UserError("resuming needs a workspace, the folder in which an earlier run has left checkpoints")
    path = latest(workspace / "checkpoint")
    if path is None:
        raise UserError(f"there is no checkpoint to resume from in {workspace}; train without --resume first")
    checkpoint = read_checkpoint(path)
    if checkpoint.step > prepared.job.train_steps:
        wanted = prepared.job.train_steps
        raise UserError(f"{path} is beyond the job's {wanted} train_steps; give train_steps: {checkpoint.step} or more")
    if checkpoint.meta["seed"] != prepared.job.seed:
        raise UserError(
            f"{path} is of a run with seed: {checkpoint.meta['seed']}; resume with that seed, or start anew"
        )
    for name, param in prepared.net.params.items():
        if name not in checkpoint.params or checkpoint.params[name].shape != param.shape:
            raise UserError(
                f"{path} does not fit the job: it has no param {name!r} of shape {param.shape}; resume with the job "
                "that wrote it, or name it as checkpoint_path to start anew from its params"
            )
    return checkpoint


def _last_good(workspace: Path | None) -> str:
    path = latest(workspace / "checkpoint") if workspace else None
    return f"the last good checkpoint is {path}" if path else "no checkpoint was written"


def _way_on(workspace: Path | None, step: int) -> str:
    path = latest(workspace / "checkpoint") if workspace else None
    if path is None:
        return f"{step} steps were done and no checkpoint was written (set checkpoint_freq to have some)"
    return f"{step} steps were done; go on from {path} with --resume"
