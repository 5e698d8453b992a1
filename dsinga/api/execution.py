"""A training run in the thread that calls it: its options, its state while it runs, and its result."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsinga import cluster
from dsinga.api.clients import ClusterSource
from dsinga.api.jobs_with_data import job_with_data, patience_of, roots, say_overlaps, wanted_workers, with_workers
from dsinga.api.result import Result
from dsinga.api.workspaces import RemoteWorkspace
from dsinga.base.errors import Cancelled, RunError, SchedulerLost, UserError
from dsinga.base.registry import nearest
from dsinga.base.termination import deferred_terminations
from dsinga.checkpoint import latest, params_of
from dsinga.data.filesystem import is_url
from dsinga.engine.local_job import trains_locally
from dsinga.extensions import ExtensionLike
from dsinga.job import Job, Phase
from dsinga.loop.initial_state import RunOptions, place_in_data
from dsinga.loop.local_run import train_locally
from dsinga.loop.run_loop import Outcome
from dsinga.monitor import History, Row, RunMonitor
from dsinga.reading.checked_job import CheckedJob, check_job, resolve_epochs

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client

    from dsinga.api.agent_training import AgentTraining
    from dsinga.base.param_arrays import ParamArrays
    from dsinga.cluster import WorkerSelection
    from dsinga.rl.training import AgentTask

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The arguments of :func:`dsinga.train` besides the job and the client."""

    data: Any = None
    epochs: int | None = None
    workspace: str | os.PathLike[str] | None = None
    data_root: str | None = None
    workers: int | None = None
    resume: bool | str | os.PathLike[str] = False
    progress: bool = True
    grain: str = "round"
    extensions: Sequence[ExtensionLike] = ()
    params: ParamArrays | str | os.PathLike[str] | None = None
    updater_state: Mapping[str, Mapping[str, Any]] | None = None
    resources: Mapping[str, float] | None = None
    hosts: Sequence[str] = ()
    retry: bool = False

    @classmethod
    def of(cls, function: str, options: Mapping[str, Any]) -> TrainingOptions:
        """Return the options that a function of the API was given. Raises TypeError for one that there is not."""
        names = [each.name for each in fields(cls)]
        for name in options:
            if name not in names:
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{nearest(name, names)}")
        return cls(**options)

    @property
    def asks_for_cluster(self) -> bool:
        """Whether an option has a meaning on a cluster only."""
        return self.grain != "round" or self.retry or bool(self.resources or self.hosts)

    def selection(self) -> WorkerSelection:
        """Return where the run may train. Raises UserError for resources that are not amounts by name."""
        return select_workers(self.resources, self.hosts)


def select_workers(resources: Mapping[str, float] | None, hosts: Sequence[str]) -> WorkerSelection:
    """Return where a call may compute. Raises UserError for resources that are not amounts by name."""
    resources, hosts = resources or {}, [hosts] if isinstance(hosts, (str, int)) else list(hosts)
    if not isinstance(resources, Mapping):
        raise UserError(f"resources= takes amounts by name, as in {{'GPU': 1}}, not {resources!r}")
    return cluster.WorkerSelection(dict(resources), [str(name) for name in hosts])  # Dask's own names are numbers


@dataclass(eq=False)
class Execution:
    """A training run: executed by one thread, looked at and cancelled by others.

    Attributes:
        job: the job, or the path of its file, as it was given.
        source: the cluster.
        options: the arguments of :func:`dsinga.train`.
        max_threads: the most kernel threads of each worker, None for all that are free.
        begun: a function that is called when training begins, after the wait for Dask workers.
        shows_wait: whether the wait for Dask workers is shown, besides being kept in ``waiting``.
        cancelled: set to cancel the run.
        has_begun: whether training has begun.
        name: the name of the job, "" before it is loaded.
        steps: the number of steps of the whole run, 0 before the job is loaded.
        waiting: a sentence that says what the run waits for, "" while it does not wait, or not for long.
        latest: the latest step, speed and metrics.
        history: the rows of metrics so far.
        workspace: the folder of metrics and checkpoints: a path, or a URL as a str; None without one.
        dask_workers: how many Dask workers the cluster had when training began, with ``options.retry``.
        make_task: returns the agent and the environment of a job with ``reinforcement``; None for those of the job.
    """

    job: Job | str | os.PathLike[str]
    source: ClusterSource
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
    dask_workers: int = 0
    make_task: Callable[[Job], AgentTask] | None = None

    def execute(self) -> Result:
        """Train, and return the result. Raises what :func:`dsinga.train` raises."""
        with deferred_terminations(self.cancelled):
            return self._execute()

    def _execute(self) -> Result:
        if not self.options.retry:
            return self._train(self.prepare_job())
        again = self.source.without_client()
        checked = self.prepare_job()
        if self.workspace is None:
            raise UserError("retry=True goes on from checkpoints; name a workspace for them")
        while True:
            try:
                return self._train(checked)
            except SchedulerLost as error:
                if again is None:
                    raise SchedulerLost(f"{error}; it was of this program, so that none is waited for") from error
                self._await_scheduler(again, patience_of(checked.job), str(error))

    def _await_scheduler(self, source: ClusterSource, seconds: float, loss: str) -> None:
        """Wait until the scheduler has been started again, and let training go on from the newest checkpoint."""
        from dsinga.cluster.connecting.scheduler_probe import await_scheduler

        place = source.scheduler_file or source.address
        _log.warning("%s; waiting for a scheduler at %s, for %g s at most", loss, place, seconds)
        await_scheduler(source.address, source.scheduler_file, source.security, seconds, self._check_cancelled)
        if self.has_begun and _resumed_from("auto", *self._folders()):
            self.options = replace(self.options, resume=True)
        self.source = source

    def _folders(self) -> tuple[Path | None, RemoteWorkspace | None]:
        """Return the local folder of the workspace, and the remote one that it mirrors, if any."""
        if isinstance(self.workspace, str):
            remote = RemoteWorkspace(self.workspace)
            return remote.local, remote
        return self.workspace, None

    def _check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled("the run was cancelled while it waited for a scheduler")

    def _train(self, checked: CheckedJob) -> Result:
        options = self.options
        folder, remote = self._folders()
        params, resume = options.params, _resumed_from(options.resume, folder, remote)
        with contextlib.ExitStack() as stack:
            checked, resume = place_in_data(checked, folder, resume)
            agents = self._agent_training(checked.job)
            job = checked.job if agents is None else agents.job
            self.steps = job.train_steps  # those of worker groups of an agent are updates
            train = self._trainer(checked, agents, stack)
            if remote:
                stack.enter_context(remote)
            monitor = RunMonitor(job.name, job.train_steps, folder, bool(resume), options.progress)
            observer = _Observer(self, stack.enter_context(monitor), remote)
            with observer.naming_lost_workspace():
                run = RunOptions(
                    workspace=folder, roots=checked.roots, resume=resume,
                    extensions=options.extensions,
                    params=None if params is None else params_of(params), updater_state=options.updater_state,
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

    def _trainer(
        self, checked: CheckedJob, agents: AgentTraining | None, stack: contextlib.ExitStack
    ) -> Callable[[_Observer, RunOptions], Outcome]:
        """Return the function that trains: in this thread where no cluster is there or needed, else on one."""
        job, options = checked.job, self.options
        asks = options.asks_for_cluster
        if agents is None and trains_locally(job) and self.source.computes_here(asks_for_cluster=asks):
            return functools.partial(train_locally, checked, max_threads=self.max_threads)
        if agents is not None and not agents.needs_cluster:
            return functools.partial(agents.train, None)
        placing: dict[str, Any] = {
            "grain": cluster.find_grain(options.grain), "selection": options.selection(),
            "max_threads": self.max_threads,
        }  # fmt: skip
        dashboard = options.grain == "graph"  # its tasks are for looking at
        waiting = {"patience": patience_of(job), "check": self._check_cancelled}
        if agents is not None:
            opened = agents.open(self.source, waiting)
        else:
            opened = self.source.open(workers=wanted_workers(job), dashboard=dashboard, **waiting)
        client: Any = stack.enter_context(opened)
        if options.retry:
            self._await_workers(client, patience_of(job))
        if agents is not None:
            return functools.partial(agents.train, client, **placing)
        return functools.partial(cluster.train, checked, client, **placing)

    def _agent_training(self, job: Job) -> AgentTraining | None:
        """Return the training of an agent, None for a job without ``reinforcement``."""
        if job.experience is None:
            return None
        from dsinga.api.agent_training import AgentTraining  # imports much that other jobs do not need

        return AgentTraining(job, self.make_task) if self.make_task else AgentTraining(job)

    def _await_workers(self, client: Client, seconds: float) -> None:
        """Wait until a scheduler that was started again has as many Dask workers as the lost one."""
        from dsinga.cluster.connecting.expected_workers import await_as_many_workers

        await_as_many_workers(client, self.dask_workers, seconds, self._check_cancelled)
        self.dask_workers = len(cluster.available_workers(client))

    def prepare_job(self) -> CheckedJob:
        """Return the job with data, workers and epochs as the options say, checked. Raises UserError for a fault."""
        options = self.options
        job = job_with_data(self.job, None, Phase.kTrain, options.data_root)
        if job.experience is not None:
            from dsinga.api.agent_training import check_agent_job

            check_agent_job(job, options)
        job = job_with_data(job, options.data, Phase.kTrain, options.data_root)
        if options.workers is not None:
            job = with_workers(job, options.workers)
        if options.epochs is not None:
            job = job.replace(epochs=options.epochs, train_steps=0)
        if job.resume:  # the option is the way to ask for it, from here on
            job = job.replace(resume=False)
            self.options = replace(options, resume=options.resume or True)
        where = roots(job, options.data_root)
        checked = CheckedJob(job, where) if job.experience else resolve_epochs(check_job(job, where))
        job = checked.job
        say_overlaps(job, Phase.kVal, Phase.kTest)
        named = options.workspace or (job.cluster.workspace if job.cluster else None)
        self.name, self.steps = job.name, job.train_steps
        if named:
            self.workspace = str(named) if is_url(str(named)) else Path(named).absolute()
        return checked


def _resumed_from(
    resume: bool | str | os.PathLike[str], workspace: Path | None, remote: RemoteWorkspace | None
) -> bool | Path:
    """Return the checkpoint from which a run continues: its path, True for the newest one, False to begin anew.

    "auto" continues from the newest one if there is any. What the workspace at a URL has is fetched.
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
    return path


class _Observer:
    """Tells a run's monitor, and keeps for other threads, how the run goes."""

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
        """See whether a checkpoint may be written to the workspace; see :meth:`RunMonitor.check_workspace`."""
        try:
            self._monitor.check_workspace()
        finally:
            self._end_if_lost()

    def _end_if_lost(self) -> None:
        """Let the run end in order, with a checkpoint, where its workspace was moved or deleted."""
        if self._monitor.workspace_fault:
            self._execution.cancelled.set()

    @property
    def unsaved(self) -> str:
        """Why the last checkpoint is not in the workspace: it was moved or deleted, and could not be made again."""
        return "" if self._monitor.has_workspace else self._monitor.workspace_fault

    @contextlib.contextmanager
    def naming_lost_workspace(self) -> Iterator[None]:
        """Raise RunError for a run that has ended because its workspace was moved or deleted.

        That may also happen after the last step: the result says it then.
        """
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
