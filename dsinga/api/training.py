"""Training a job, and the result."""

from __future__ import annotations

import contextlib
import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dsinga import cluster
from dsinga.api.clients import awaitable, find_cluster
from dsinga.api.jobs import job_with_data, roots, wanted_workers, with_workers
from dsinga.checkpoint import latest, read_params
from dsinga.errors import UserError
from dsinga.extensions import ExtensionLike
from dsinga.job import Job, Phase
from dsinga.monitor import NOT_METRICS, History, RunMonitor
from dsinga.net import NeuralNet
from dsinga.worker.epochs import resolve_epochs

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client

    from dsinga.cluster import Arrays


@dataclass
class Result:
    """The result of a training run.

    Attributes:
        job: the job.
        params: float32 arrays by name.
        history: the metrics of the run.
        net: the training net.
        step: the number of steps done.
        workspace: the folder of metrics and checkpoints, None without one.
        stopped: a sentence that says why training ended before ``train_steps``, "" if it did not.
        remarks: sentences of extensions about the result, such as which step's params these are.
    """

    job: Job
    params: Arrays
    history: History
    net: NeuralNet
    step: int
    workspace: Path | None
    stopped: str = ""
    remarks: Sequence[str] = ()

    def __repr__(self) -> str:
        last = {row["phase"]: row for row in self.history}
        ends = [f"{phase} {_figures(row)}" for phase, row in last.items()] or ["no metrics"]
        sentences = [sentence for sentence in (self.stopped, *self.remarks) if sentence]
        return f"<Result of {self.job.name!r} after {self.step} steps: {'; '.join([*ends, *sentences])}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self)[1:-1])}</p>{self.history._repr_html_()}"


def _figures(row: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v:.4g}" for k, v in row.items() if k not in NOT_METRICS)


@awaitable
def train(
    job: Job | str | os.PathLike[str],
    client: Client | None = None,
    *,
    data: Any = None,
    epochs: int | None = None,
    workspace: str | os.PathLike[str] | None = None,
    data_root: str | None = None,
    workers: int | None = None,
    resume: bool | Literal["auto"] = False,
    progress: bool = True,
    grain: str = "round",
    extensions: Sequence[ExtensionLike] = (),
    params: Arrays | str | os.PathLike[str] | None = None,
) -> Result:
    """Train a job and return the result.

    Args:
        job: a Job, or the path of a job file.
        client: a Dask client. By default, within a Dask task that of its worker, else the current one
            (``Client.current()``), else one of the scheduler that Dask's setting ``scheduler-address`` or the
            environment variable DASK_SCHEDULER_ADDRESS names. Where there is none of these, a cluster is started in
            this process for the run, with as many workers as the job names, else one, which share all cores. Called in
            the event loop of an asynchronous client, the function returns an awaitable of the result.
        data: arrays that the job's input layers read in place of stores: a pair (x, y), or a dict of such by phase, as
            in ``{"train": (x, y), "test": (x_test, y_test)}``. :func:`dsinga.data.open_records` says what may be given:
            numpy, dask and xarray arrays, data frames, paths. Where a phase has several input layers, a dict of sources
            by the layer's name takes the place of one source.
        epochs: how many times training goes through the records, in place of the job's ``train_steps``; see
            :class:`dsinga.job.Job`.
        workspace: folder for ``metrics.jsonl`` and ``checkpoint/``; by default the job's, if it names one.
        data_root: where relative paths are looked up after the working directory and the job file's folder.
        workers: overrides the number of workers of each worker group of the job.
        resume: continue from the last checkpoint in the workspace; "auto" does so if there is one and begins else, for
            scripts that a batch queue may start several times.
        progress: show a progress line (in a notebook: a picture of the metrics).
        grain: "round", or "graph" to make each iteration a Dask task graph, which the dashboard shows layer by layer:
            slower, with the same results.
        extensions: what the training loop does besides training, after the extensions that the job names: objects of
            ``dsinga.extensions``, and functions that are called as ``function(step, metrics)`` for each row of metrics.
        params: arrays by name, or the path of a checkpoint, to start from in place of initial values; params that the
            net does not have are left out.

    Raises:
        UserError: before training, for a fault in the job, the data, the extensions, or the size of the cluster.
        RunError: where a worker or a server is lost during training.
    """
    source = find_cluster(client)
    job = job_with_data(job, data, Phase.kTrain, data_root)
    if workers is not None:
        job = with_workers(job, workers)
    if epochs is not None:
        job = job.replace(epochs=epochs, train_steps=0)
    job = resolve_epochs(job, roots(job, data_root))
    named = workspace or (job.cluster.workspace if job.cluster else None)
    folder = Path(named) if named else None
    resume = _can_resume(folder) if resume == "auto" else resume
    with contextlib.ExitStack() as stack:
        dashboard = grain == "graph"  # its tasks are for looking at
        client = stack.enter_context(source.open(workers=wanted_workers(job), dashboard=dashboard))
        observer = stack.enter_context(RunMonitor(job.name, job.train_steps, folder, resume, progress))
        outcome = cluster.train(
            job,
            client,
            observer,
            workspace=folder,
            roots=roots(job, data_root),
            resume=resume,
            grain=cluster.find_grain(grain),
            extensions=extensions,
            params=read_params(params) if isinstance(params, (str, os.PathLike)) else params,
        )
        for sentence in (outcome.stopped, *outcome.remarks):
            if sentence:
                observer.remark(sentence)
    return Result(
        job,
        outcome.params,
        observer.history,
        outcome.net,
        outcome.step,
        folder,
        outcome.stopped,
        tuple(outcome.remarks),
    )


def _can_resume(workspace: Path | None) -> bool:
    """Return whether a workspace has a checkpoint. Raises UserError without a workspace."""
    if workspace is None:
        raise UserError('resume="auto" needs a workspace, the folder in which a run leaves its checkpoints')
    return latest(workspace / "checkpoint") is not None
