"""Searching a learning rate: a short run whose rate grows from step to step."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsinga.api.clients import awaitable
from dsinga.api.jobs_with_data import job_with_data
from dsinga.api.training import train
from dsinga.base.argument_types import typed
from dsinga.base.errors import Diverged, UserError
from dsinga.extensions import EverySteps, Extension, LoopView
from dsinga.extensions.extension import State
from dsinga.job import ChangeMethod, ClusterConf, Job, LRGenConf, Phase
from dsinga.monitor import RateSearch, has_diverged
from dsinga.reading.batch_reader import site_job
from dsinga.training import Metrics

if TYPE_CHECKING:
    from distributed import Client


@awaitable
@typed()
def find_learning_rate(
    job: Job | str | os.PathLike[str],
    client: Client | None = None,
    *,
    data: Any = None,
    low: float = 1e-6,
    high: float = 10.0,
    steps: int = 100,
    data_root: str | None = None,
    workers: int | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
    progress: bool = True,
) -> RateSearch:
    """Train some steps with a learning rate that grows from step to step, and suggest a rate for the job.

    The rates form a geometric sequence; the search ends early when the loss diverges. Nothing is written, tested or
    kept: the job, its workspace and its params stay as they are. Schedule and extensions of the job have no effect
    here, and only one of several worker groups trains; everything else is as in training. :class:`RateSearch` says how
    the rate is chosen; in a notebook it is a picture.

    Args:
        job: a Job, or the path of a job file.
        client: a Dask client; by default as for :func:`train`.
        data: arrays that the job's input layers read in place of stores, as for :func:`train`.
        low: the first learning rate.
        high: the last learning rate.
        steps: how many steps there are at most.
        data_root: where relative paths are looked up after the working directory and the job file's folder.
        workers: overrides the number of workers of each worker group of the job.
        resources: the amounts of Dask's worker resources that each worker needs, as for :func:`train`.
        hosts: the hosts or Dask workers on which it may train, as for :func:`train`.
        progress: show a progress line (in a notebook: a picture of the metrics).

    Raises UserError for what :func:`train` refuses, and for rates that do not rise from above 0.
    """
    if not (0 < low < high < math.inf and steps >= 10):
        raise UserError(f"a search needs 0 < low < high and at least 10 steps, not {low} to {high} in {steps} steps")
    job = job_with_data(job, data, Phase.kTrain, data_root)
    rates = [low * (high / low) ** (step / (steps - 1)) for step in range(steps)]
    sweep, end = RateSweep(), ""
    try:
        result = train(
            sweep_job(job, rates), client, data_root=data_root, workers=workers, progress=progress, extensions=[sweep],
            resources=resources, hosts=hosts,
        )  # fmt: skip
        end = result.stopped
    except Diverged as error:
        if not sweep.losses:
            raise
        end = str(error)
    done = len(sweep.losses)
    return RateSearch(rates[:done], sweep.losses, end or f"all {done} rates were tried")


def sweep_job(job: Job, rates: list[float]) -> Job:
    """Return the job that trains a step with each rate, and does nothing else."""
    fields: dict[str, Any] = {"fixedstep_conf": {"step": range(len(rates)), "step_lr": rates}}
    schedule = LRGenConf(type=ChangeMethod.kFixedStep, **fields)
    # Further worker groups would be at other steps, and so at other rates, while the first one pauses after each step.
    names = ("nworker_groups", "nserver_groups", "sync_edge", "staleness", "sync_method", "mean_conf")
    one_group = {name: getattr(ClusterConf(), name) for name in names}
    cluster = job.cluster and job.cluster.replace(workspace=None, **one_group)
    never = dict.fromkeys(("epochs", "test_freq", "validate_freq", "checkpoint_freq", "disp_after"), 0)
    updater, moving = job.updater.replace(learning_rate=schedule), job.updater.momentum_conf
    if moving is not None and moving.one_cycle:  # there is no cycle to move with
        updater = updater.replace(momentum_conf=None, momentum=moving.base_momentum)
    steps = len(rates)
    return site_job(job, 0).replace(
        train_steps=steps,
        disp_freq=max(1, steps // 10),
        updater=updater,
        cluster=cluster,
        extension=[],
        resume=False,
        **never,
    )


class RateSweep(Extension):
    """Keeps the loss of each step in ``losses``, and ends training when the smoothed loss diverges.

    It pauses after each step, so that a run that ends by a loss that is not finite has shown all losses before it.
    """

    def __init__(self) -> None:
        self.trigger = EverySteps(1)
        self.losses: list[float] = []

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Keep the loss."""
        metrics = loop.means("train", sums)
        loss = metrics.get("loss", metrics.get("reconstruction_error"))  # the latter is that of Boltzmann machines
        if loss is None:
            raise UserError("a search for a learning rate needs a net that reports a loss; add a loss layer")
        self.losses.append(loss)

    def start(self, loop: LoopView) -> None:
        """End a resumed run at once if its loss has diverged."""
        self.run(loop)

    def run(self, loop: LoopView) -> None:
        """End training when the loss diverges."""
        if has_diverged(self.losses):
            loop.stop("the loss diverges")

    def state_dict(self) -> State:
        """Return the losses."""
        return {"losses": self.losses}

    def load_state(self, state: State) -> None:
        """Go on from these losses."""
        self.losses = [*state.get("losses", [])]
