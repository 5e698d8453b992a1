"""Implements ``dsinga.train``: a run with its options, its progress for other threads, and its result."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from dsinga.api.engines import find_runner, in_thread, runner_of
from dsinga.api.jobs_with_data import Result
from dsinga.api.runners import TrainingOptions
from dsinga.base.arguments import checked
from dsinga.extensions import ExtensionLike
from dsinga.extensions.standard import changed_by_extensions
from dsinga.job import Job

if TYPE_CHECKING:  # Dask is imported only when needed
    from distributed import Client

    from dsinga.base.arrays import ParamArrays

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from dsinga.api.jobs_with_data import job_with_data, patience_of, roots, warn_of_overlaps, with_workers
from dsinga.api.runners import RunLimits, Runner, Train
from dsinga.api.workspaces import RemoteWorkspace
from dsinga.base.arrays import NamedParams
from dsinga.base.errors import Cancelled, RunError, UserError
from dsinga.base.registry import lookup
from dsinga.base.termination import deferred_terminations
from dsinga.checkpoint import latest, params_of
from dsinga.data import RecordNames
from dsinga.data.locations import is_url
from dsinga.job import Phase
from dsinga.loop.initial_state import RunOptions, place_in_data
from dsinga.loop.local_run import trains_locally
from dsinga.monitor import History, Row, RunMonitor
from dsinga.reading.checked_job import CheckedJob, check_job, resolve_epochs
from dsinga.reading.learnt_statistics import with_learnt_statistics


class JobTraining(Protocol):
    """Trains a job that has no records, such as an agent in its environment."""

    job: Job

    def training(
        self, runner: Runner, options: TrainingOptions, limits: RunLimits
    ) -> contextlib.AbstractContextManager[Train]:
        """Yield the function that trains the job, here or on the runner."""

    def result(self, result: Result) -> Result:
        """Turn the result of the run into a result for the caller's job."""


@dataclass(eq=False)
class Execution:
    """A training run that one thread executes, and others may watch and cancel.

    Attributes:
        max_threads: the most kernel threads of each worker, None for all that are free.
        begun: a function called when training begins, after the wait for Dask workers.
        steps: the steps of the whole run, 0 before the job is loaded.
        waiting: a sentence about a long wait of the run, else "".
        workspace: the folder of metrics and checkpoints: a path, or a URL as a str; None without one.
        make_training: returns what trains a job with ``reinforcement``; None for the agent in the job.
    """

    job: Job | str | os.PathLike[str]
    runner: Runner
    options: TrainingOptions
    max_threads: int | None = None
    begun: Callable[[], None] | None = None
    shows_wait: bool = True
    cancelled: threading.Event = field(default_factory=threading.Event)
    has_begun: bool = False
    name: str = ""
    steps: int = 0
    waiting: str = ""
    latest: Row = field(default_factory=dict)
    history: History = field(default_factory=History)
    workspace: Path | str | None = None
    make_training: Callable[[Job], JobTraining] | None = None

    def execute(self) -> Result:
        """Train, and return the result; errors are the same as of :func:`dsinga.train`."""
        with deferred_terminations(self.cancelled):
            return self._execute()

    def _execute(self) -> Result:
        checked = self.prepare_job()
        if not self.options.retry:
            return self._train(checked)
        if self.workspace is None:
            raise UserError("retry=True goes on from checkpoints; name a workspace for them")

        def train(runner: Runner) -> Result:
            if self.has_begun and _resumed_from("auto", *self._folders()):  # the run that had begun was lost
                self.options = replace(self.options, resume=True)
            self.runner = runner
            return self._train(checked)

        return runner_of(self.runner, True).train_again(train, patience_of(checked.job), self._check_cancelled)

    def _folders(self) -> tuple[Path | None, RemoteWorkspace | None]:
        """Return the local folder for the workspace's files, and the remote workspace, if any."""
        if isinstance(self.workspace, str):
            remote = RemoteWorkspace(self.workspace)
            return remote.local, remote
        return self.workspace, None

    def _check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled("the run was cancelled while it waited for a scheduler")

    def _train(self, checked: CheckedJob) -> Result:
        options, limits = self.options, RunLimits(self.max_threads, self._check_cancelled)
        folder, remote = self._folders()
        params, resume = options.params, _resumed_from(options.resume, folder, remote)
        with contextlib.ExitStack() as stack:
            checked, resume = place_in_data(checked, folder, resume)
            params = None if params is None else params_of(params)
            checked = with_learnt_statistics(checked, params, folder, resume)
            agents: JobTraining | None = None
            if checked.job.experience is not None:
                agents = (self.make_training or lookup("engine", checked.job.experience.engine))(checked.job)
            job = checked.job if agents is None else agents.job
            self.steps = job.train_steps  # the steps of an agent's worker groups are updates
            if agents is not None:
                training = agents.training(self.runner, options, limits)
            else:
                runner = runner_of(self.runner, options.asks_for_cluster or not trains_locally(job))
                training = runner.training(checked, options, limits)
            train = stack.enter_context(training)
            if remote:
                stack.enter_context(remote)
            monitor = RunMonitor(job.name, job.train_steps, folder, bool(resume), options.progress)
            observer = _Observer(self, stack.enter_context(monitor), remote)
            with observer.naming_lost_workspace():
                run = RunOptions(
                    workspace=folder, roots=checked.roots, resume=resume,
                    extensions=options.extensions,
                    params=params, updater_state=options.updater_state,
                    cancelled=self.cancelled, saved=remote.save if remote else None,
                    check_workspace=observer.check_workspace,
                )  # fmt: skip
                outcome = train(observer, run)
            for sentence in (outcome.stopped, *outcome.remarks, monitor.workspace_fault):
                if sentence:
                    monitor.remark(sentence)
        result = Result(
            job, outcome.params, monitor.history, outcome.net, outcome.step, self.workspace, outcome.stopped,
            (*outcome.remarks, *([monitor.workspace_fault] if monitor.workspace_fault else [])),
            outcome.unsaved or (remote.unsaved if remote else "") or observer.unsaved, outcome.is_cut,
        )  # fmt: skip
        return result if agents is None else agents.result(result)

    def _named_start(self) -> NamedParams | None:
        """Return the order of columns that the initial params were trained with; None if unknown."""
        if self.options.data is None or self.options.params is None:
            return None
        self.options = replace(self.options, params=params_of(self.options.params))  # read a checkpoint only once
        names = RecordNames.of_params(self.options.params)
        orders = {name: ((), of_layer.order) for name, of_layer in names.items() if of_layer.order}
        return NamedParams({}, orders) if orders else None

    def prepare_job(self) -> CheckedJob:
        """Load and check the job, with the options' data, workers and epochs."""
        job = job_with_data(self.job, None, Phase.kTrain, self.options.data_root)
        if job.params:  # from now on an option, because the job is sent to all workers
            both = [params_of(each) for each in (job.params, self.options.params) if each is not None]
            names = {name: names for each in both for name, names in getattr(each, "names", {}).items()}
            params = NamedParams({name: array for each in both for name, array in each.items()}, names)
            self.options = replace(self.options, params=params)
            job = job.with_params({})
        named_start, options = self._named_start(), self.options
        if job.experience is not None:
            lookup("engine", job.experience.engine).check(job, options)
        job = job_with_data(job, options.data, Phase.kTrain, options.data_root, named_start)
        if options.workers is not None:
            job = with_workers(job, options.workers)
        if options.epochs is not None:
            job = job.replace(epochs=options.epochs, train_steps=0)
        if job.resume:  # from now on the option asks for it
            job = job.replace(resume=False)
            self.options = replace(options, resume=options.resume or True)
        where = roots(job, options.data_root)
        checked = CheckedJob(job, where) if job.experience else resolve_epochs(check_job(job, where))
        if not job.experience:
            checked = changed_by_extensions(checked, options.extensions)
        job = checked.job
        warn_of_overlaps(job, Phase.kVal, Phase.kTest)
        named = options.workspace or (job.cluster.workspace if job.cluster else None)
        self.name, self.steps = job.name, job.train_steps
        if named:
            self.workspace = str(named) if is_url(str(named)) else Path(named).absolute()
        return checked


def without_effect_fault(name: str, instead: str) -> UserError:
    """Return the error that an option has no effect on a job with ``reinforcement``."""
    return UserError(f"{name} has no effect on a job with reinforcement {{ }}: {instead}; leave {name} out")


def _resumed_from(
    resume: bool | str | os.PathLike[str], workspace: Path | None, remote: RemoteWorkspace | None
) -> bool | Path:
    """Return which checkpoint to resume from: a path, True for the newest one, False for none.

    Checkpoints in a workspace at a URL are fetched.
    """
    if not isinstance(resume, (bool, str, os.PathLike)):
        raise UserError(f'resume must be True, False, "auto" or the path of a checkpoint, not {resume!r}')
    if resume == "auto":
        if workspace is None:
            raise UserError('resume="auto" needs a workspace, the folder in which a run leaves its checkpoints')
        resume = remote.find_checkpoint() if remote else latest(workspace / "checkpoint") is not None
    if resume and remote:
        remote.fetch()
    if isinstance(resume, bool):
        return resume
    path = Path(resume).expanduser()
    if not path.is_dir():
        raise UserError(
            f"there is no checkpoint {str(resume)!r} to resume from; give the folder of one, such as "
            "run/checkpoint/step40"
        )
    return latest(path / "checkpoint") or path  # the newest one of a workspace


class _Observer:
    """Passes a run's progress on to its display, and keeps it for other threads."""

    def __init__(self, execution: Execution, monitor: RunMonitor, remote: RemoteWorkspace | None):
        self._execution, self._monitor, self._remote = execution, monitor, remote

    def waiting(self, sentence: str) -> None:
        self._execution.waiting = sentence
        if self._execution.shows_wait:
            self._monitor.waiting(sentence)

    def begin(self, step: int) -> None:
        self._monitor.begin(step)
        if self._remote is not None:
            self._remote.begin()
        execution = self._execution
        execution.waiting, execution.history, execution.has_begun = "", self._monitor.history, True
        execution.latest = {"step": step}
        if execution.begun is not None:
            execution.begun()

    def record(self, row: Row) -> None:
        self._monitor.record(row)
        self._end_if_lost()

    def check_workspace(self) -> None:
        """Check that the workspace can get checkpoints, and create it again if it was deleted."""
        try:
            self._monitor.check_workspace()
        finally:
            self._end_if_lost()

    def _end_if_lost(self) -> None:
        """Cancel the run if its workspace was moved or deleted."""
        if self._monitor.workspace_fault:
            self._execution.cancelled.set()

    @property
    def unsaved(self) -> str:
        """Says why the last checkpoint is lost: its workspace was moved or deleted."""
        return "" if self._monitor.has_workspace else self._monitor.workspace_fault

    @contextlib.contextmanager
    def naming_lost_workspace(self) -> Iterator[None]:
        """Raise RunError if a run ended because its workspace was moved or deleted."""
        try:
            yield
            with contextlib.suppress(RunError):
                self._monitor.check_workspace()
        except Cancelled as error:
            fault = self._monitor.workspace_fault
            if not fault:
                raise
            hint = str(error).partition("; ")[2] if self._monitor.has_workspace else "no checkpoint was written"
            raise RunError(f"{fault}; {hint}") from error

    def progress(self, row: Row) -> None:
        self._execution.latest, self._execution.waiting = row, ""
        self._monitor.progress(row)


@functools.partial(checked, instead={"callbacks": "give extensions=[...]"})
def train(
    job: Job | str | os.PathLike[str],
    client: Client | None = None,
    *,
    data: Any = None,
    epochs: int | None = None,
    workspace: str | os.PathLike[str] | None = None,
    data_root: str | os.PathLike[str] | None = None,
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
    """Train a job and return the result, here or on a Dask cluster.

    The result has ``params`` (arrays by name), ``history`` (a row of metrics for each validation), ``step``, the
    ``workspace``, and for a job with ``reinforcement { }`` the agent. A model of ``nn`` is trained by its own ``fit``.

    With a workspace, Ctrl-C and the signals of queues leave a checkpoint first, unless the program handles them.

    Args:
        job: a Job, or the path of a job file.
        client: a Dask client. By default the client of the worker inside a Dask task, else the current one
            (``Client.current()``), else one for Dask's setting ``scheduler-address``. Without any, the job trains in
            this process. In the event loop of an asynchronous client the function returns an awaitable.
        data: records instead of stores, as in :func:`dsinga.data.open_records`, such as a pair (x, y) of arrays, or a
            dict of these by phase, "train", "val" or "test". For several input layers: a dict by layer name.
        epochs: how many times all records are read, instead of the job's ``train_steps``.
        workspace: folder for ``metrics.jsonl`` and ``checkpoint/``; by default the job's, if it names one.
        data_root: where relative paths are looked up after the working directory and the job file's folder.
        workers: overrides the number of workers of each worker group of the job.
        resume: continue from the newest undamaged checkpoint in the workspace, or from the path of one. With "auto" a
            run starts from scratch if there is none.
        progress: show a progress line (in a notebook: a picture of the metrics).
        grain: "round", or "graph" to make each iteration a Dask task graph, with layers on the dashboard: slower, with
            the same results.
        extensions: objects of ``dsinga.extensions``, and functions called as ``function(step, metrics)`` for each row
            of metrics; they run after the job's own extensions.
        params: arrays by name, or the path of a checkpoint, to start from; unknown names are left out.
        updater_state: the updater's state to start from, arrays by param and slot, as in a checkpoint.
            ``earlier_steps`` of the job's updater says how many steps came before.
        resources: the amounts of Dask's worker resources that each worker of the run needs, as in {"GPU": 1}.
        hosts: the hosts or Dask workers on which the run may train, by name or address; by default all.
        retry: if the scheduler is lost, wait for another one, as long as ``cluster { patience }`` of the job; then
            continue from the newest checkpoint.

    Raises:
        UserError: before training, for a fault in the job, the data, the extensions, or the size of the cluster.
        RunError: a worker or a server is lost during training.

    Examples:
        >>> import numpy as np
        >>> import dsinga
        >>> x = np.random.default_rng(0).integers(0, 256, (200, 4), dtype=np.uint8)
        >>> y = (x[:, 0] > 127).astype(int)
        >>> job = dsinga.models.mlp(hidden=[8], inputs=4, classes=2, train_steps=50)
        >>> result = dsinga.train(job, data={"train": (x, y), "test": (x, y)}, progress=False)
        >>> result.step
        50
    """
    options = TrainingOptions(
        data=data, epochs=epochs, workspace=workspace, data_root=data_root, workers=workers, resume=resume,
        progress=progress, grain=grain, extensions=extensions, params=params, updater_state=updater_state,
        resources=resources, hosts=hosts, retry=retry,
    )  # fmt: skip
    return execute(Execution(job, find_runner(client), options))


def execute(execution: Execution) -> Result:
    """Execute a run in this thread, or return an awaitable in an asynchronous client's event loop."""
    if execution.runner.in_loop:
        return cast(Result, in_thread(execution.execute, execution.cancelled))
    return execution.execute()
