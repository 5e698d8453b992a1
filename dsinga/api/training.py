"""Trains a job: ``dsinga.train`` and its variants."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from dsinga.api.engines import TrainingOptions, find_runner, in_thread
from dsinga.api.execution import Execution
from dsinga.api.result import Result
from dsinga.extensions import ExtensionLike
from dsinga.job import Job

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client

    from dsinga.base.param_arrays import ParamArrays


def train(
    job: Job | str | os.PathLike[str],
    client: Client | None = None,
    *,
    data: Any = None,
    epochs: int | None = None,
    workspace: str | os.PathLike[str] | None = None,
    data_root: str | None = None,
    workers: int | None = None,
    resume: bool | str | os.PathLike[str] = False,
    progress: bool = True,
    grain: str = "round",
    extensions: Sequence[ExtensionLike] = (),
    params: ParamArrays | str | os.PathLike[str] | None = None,
    updater_state: Mapping[str, Mapping[str, Any]] | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
    retry: bool = False,
) -> Result:
    """Train a job and return the result; that of a job with ``reinforcement { }`` also has the agent.

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
        resume: continue from the newest undamaged checkpoint in the workspace, with a warning that names later ones
            which are damaged; or the path of a checkpoint to continue from. "auto" continues if the workspace has a
            checkpoint and begins else, for scripts that a batch queue may start several times.
        progress: show a progress line (in a notebook: a picture of the metrics).
        grain: "round", or "graph" to make each iteration a Dask task graph, which the dashboard shows layer by layer:
            slower, with the same results.
        extensions: what the training loop does besides training, after the extensions that the job names: objects of
            ``dsinga.extensions``, and functions that are called as ``function(step, metrics)`` for each row of metrics.
        params: arrays by name, or the path of a checkpoint, to start from in place of initial values; params that the
            net does not have are left out.
        updater_state: the updater's state to start from, arrays by param and slot, as a checkpoint has it; params that
            it lacks begin anew. ``earlier_steps`` of the job's updater says after how many steps that was.
        resources: the amounts of Dask's worker resources that each worker of the run needs, as in {"GPU": 1}.
        hosts: the hosts or Dask workers on which the run may train, by name or address; by default all.
        retry: where the scheduler is lost, wait for one at the same address or in the same scheduler file, for as long
            as the job's ``cluster { patience }`` says, and for as many Dask workers; then go on from the newest
            checkpoint in the workspace.

    With a workspace, SIGTERM and the other signals of queues and limits (:data:`dsinga.base.termination.TERMINATIONS`)
    end a program that has no handlers for them after a checkpoint of the last complete round, also where this is called
    in another thread than the main one. So does Ctrl-C in the main thread.

    Raises:
        UserError: before training, for a fault in the job, the data, the extensions, or the size of the cluster.
        RunError: where a worker or a server is lost during training.
    """
    options = TrainingOptions(
        data=data, epochs=epochs, workspace=workspace, data_root=data_root, workers=workers, resume=resume,
        progress=progress, grain=grain, extensions=extensions, params=params, updater_state=updater_state,
        resources=resources, hosts=hosts, retry=retry,
    )  # fmt: skip
    return execute(Execution(job, find_runner(client), options))


def execute(execution: Execution) -> Result:
    """Execute a run in this thread; in the event loop of an asynchronous client return an awaitable of the result."""
    if execution.runner.in_loop:
        return cast(Result, in_thread(execution.execute, execution.cancelled))
    return execution.execute()
