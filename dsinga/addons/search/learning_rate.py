"""Suggests a learning rate from the losses of a short run with a growing rate."""

from __future__ import annotations

import functools
import html
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsinga.addons.pictures.panels import Line, Panel, panels_figure, shown, to_svg
from dsinga.api.argument_types import typed
from dsinga.api.engines import awaitable
from dsinga.api.execution import train
from dsinga.api.jobs_with_data import job_with_data
from dsinga.base.errors import Diverged, UserError
from dsinga.extensions import EverySteps, Extension, LoopView
from dsinga.extensions.extension import State
from dsinga.job import ChangeMethod, ClusterConf, Job, LRGenConf, Phase
from dsinga.reading.batch_reader import site_job
from dsinga.training import Metrics

if TYPE_CHECKING:
    from distributed import Client


# Weight of the losses before in the running mean of the losses: with 100 rates, about ten of them count.
SMOOTHING = 0.9
# The suggestion is this part of the rate with the lowest loss.
PART_OF_LOWEST = 0.1
# A loss of this many times the lowest one has diverged.
DIVERGED = 4.0
LOSS_COLOUR, SMOOTHED_COLOUR, SUGGESTION_COLOUR = "#999999", "#0072b2", "#d55e00"


@dataclass(frozen=True)
class RateSearch:
    """Losses of a run with a growing learning rate, and the rate that they suggest.

    The search is Smith's range test (Cyclical Learning Rates for Training Neural Networks, WACV 2017, section 3.3). The
    suggestion is the rule of Howard and Gugger (Deep Learning for Coders, 2020, chapter 5): a tenth of the rate with
    the lowest smoothed loss.

    Attributes:
        rates: the rising learning rate of each step.
        losses: the loss of each step, before its update.
    """

    rates: Sequence[float]
    losses: Sequence[float]
    end: str = ""

    @functools.cached_property
    def smoothed(self) -> list[float]:
        """The running mean of the losses, weighted exponentially and corrected for its start."""
        return smooth(self.losses)

    @functools.cached_property
    def lowest(self) -> int:
        """The index of the lowest smoothed loss."""
        return min(range(len(self.smoothed)), key=lambda i: self.smoothed[i])

    @property
    def suggestion(self) -> float | None:
        """The suggested learning rate; None if the loss was lowest in the first tenth."""
        return PART_OF_LOWEST * self.rates[self.lowest] if self.lowest > len(self.rates) // 10 else None

    def __repr__(self) -> str:
        return f"<RateSearch of {len(self.rates)} rates: {self.sentence()}>"

    def sentence(self) -> str:
        """Explain the suggestion in a sentence, or why there is none."""
        span = f"from {self.rates[0]:.3g} to {self.rates[-1]:.3g}"
        if self.suggestion is None:
            return f"no learning rate {span} lowered the loss; begin with a lower one, or look at data and net"
        reason = f"a tenth of {self.rates[self.lowest]:.3g}, where the loss was lowest"
        if self.lowest == len(self.rates) - 1:
            reason += "; it was still falling, try higher rates, too"
        return f"the suggested learning rate is {self.suggestion:.2g}, {reason}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.sentence())}</p>{shown(self.draw)}"

    def draw(self) -> str:
        """Draw the :meth:`figure` as an SVG element."""
        return to_svg(self.figure())

    def figure(self) -> Any:
        """Plot losses by learning rate, smoothed and raw, and the suggestion, as a Matplotlib figure.

        Losses so high that they would hide the others are left out.
        """
        start, lowest = self.smoothed[0], self.smoothed[self.lowest]
        most = max(start + (start - lowest), start + 0.1 * abs(start))
        lines = {
            "loss": Line(self._points(self.losses, most), LOSS_COLOUR, "loss"),
            "smoothed": Line(self._points(self.smoothed, most), SMOOTHED_COLOUR, "smoothed"),
        }
        if self.suggestion is not None:
            values = [y for line in lines.values() for _, y in line.points]
            ends = [(self.suggestion, min(values)), (self.suggestion, max(values))]
            lines["suggestion"] = Line(ends, SUGGESTION_COLOUR, f"suggestion {self.suggestion:.2g}")
        panel = Panel("loss", lines, "learning rate", logarithmic=True)
        return panels_figure([panel], "loss by learning rate")

    def _points(self, losses: Sequence[float], most: float) -> list[tuple[float, float]]:
        return [(rate, loss) for rate, loss in zip(self.rates, losses, strict=True) if loss <= most]


def smooth(losses: Sequence[float]) -> list[float]:
    """Return the running mean of losses, weighted exponentially and corrected for its start as in Adam."""
    mean, means = 0.0, []
    for count, loss in enumerate(losses, start=1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        means.append(mean / (1 - SMOOTHING**count))
    return means


def has_diverged(losses: Sequence[float]) -> bool:
    """Return whether the smoothed loss is far above its lowest value, or not finite."""
    smoothed = smooth(losses)
    if not smoothed:
        return False
    lowest = min(smoothed)
    return not math.isfinite(smoothed[-1]) or smoothed[-1] - lowest > (DIVERGED - 1) * abs(lowest)


@awaitable
@typed()
def find_learning_rate(
    job: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int | None = None,
    client: Client | None = None,
    data: Any = None,
    low: float = 1e-6,
    high: float = 10.0,
    steps: int = 100,
    data_root: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
    progress: bool = True,
) -> RateSearch:
    """Train some steps with a learning rate that grows from step to step, and suggest a rate.

    Pass a compiled model of ``nn`` with ``x`` and ``y``, or a job.

    The rates form a geometric sequence; the search ends early once the smoothed loss is four times its minimum. Nothing
    is written or kept: the job, its workspace and its params do not change. Schedule and extensions of the job have no
    effect, and only one of several worker groups trains. A Boltzmann machine is judged by its reconstruction error.

    Args:
        job: a model of ``nn``, a Job, or the path of a job file.
        x: the records of a model, as for its ``fit``.
        y: their labels.
        batch_size: rows of a batch of a model, by default 32.
        client: a Dask client; by default as for :func:`train`.
        data: arrays that the job's input layers read in place of stores, as for :func:`train`.
        low: the first learning rate.
        high: the last learning rate.
        steps: the most steps.
        data_root: the last folder in which relative paths are looked up.
        workers: overrides the job's number of workers of each worker group.
        resources: worker resources that each worker needs, as for :func:`train`.
        hosts: hosts or Dask workers to train on, as for :func:`train`.
        progress: show a progress line (in a notebook: a picture of the metrics).

    Raises UserError for what :func:`train` refuses, and for rates that do not rise from above 0.

    Examples:
        >>> import numpy as np
        >>> import dsinga
        >>> from dsinga import nn
        >>> x = np.random.default_rng(0).normal(size=(100, 4))
        >>> y = (x[:, 0] > 0).astype(int)
        >>> model = nn.Sequential([nn.Dense(8, activation="relu"), nn.Dense(2)])
        >>> model.compile("adam", "sparse_categorical_crossentropy")
        >>> found = dsinga.find_learning_rate(model, x, y, steps=20, progress=False)
        >>> len(found.rates)
        20
    """
    if not (0 < low < high < math.inf and steps >= 10):
        raise UserError(f"a search needs 0 < low < high and at least 10 steps, not {low} to {high} in {steps} steps")
    job = job_with_data(_job_of(job, x, y, batch_size), data, Phase.kTrain, data_root)
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


def _job_of(job: Any, x: Any, y: Any, batch_size: int | None) -> Any:
    """Create the job of a model with its records, or return the given job."""
    if hasattr(job, "make_job"):
        if x is None:
            raise UserError("find_learning_rate takes a model and its records: find_learning_rate(model, x, y)")
        job.require_loss()
        return job.job(x, y, batch_size=batch_size)
    if x is not None or y is not None or batch_size is not None:
        what = "a Dask client is named, client=client" if hasattr(x, "scheduler") else "data= has those of a job"
        raise UserError(f"find_learning_rate: x, y and batch_size are for a model of nn; {what}")
    return job


def sweep_job(job: Job, rates: list[float]) -> Job:
    """Reduce a job to training one step with each rate."""
    fields: dict[str, Any] = {"fixedstep_conf": {"step": range(len(rates)), "step_lr": rates}}
    schedule = LRGenConf(type=ChangeMethod.kFixedStep, **fields)
    # Further worker groups would be at other steps, and so at other rates, while the first one pauses after each step.
    names = (
        "nworker_groups",
        "nserver_groups",
        "sync_edge",
        "staleness",
        "sync_method",
        "user_sync_method",
        "mean_conf",
    )
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
    """An extension that keeps the loss of each step, and ends training when the smoothed loss diverges."""

    def __init__(self) -> None:
        self.trigger = EverySteps(1)
        self.losses: list[float] = []

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Keep the loss of a step."""
        metrics = loop.means("train", sums)
        loss = metrics.get("loss", metrics.get("reconstruction_error"))  # Boltzmann machines report the latter
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
        """Return the losses so far, for a checkpoint."""
        return {"losses": self.losses}

    def load_state(self, state: State) -> None:
        """Restore the losses of a resumed run."""
        self.losses = [*state.get("losses", [])]
