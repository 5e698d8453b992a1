"""Searches for the best of many settings of a job."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

from dask.system import CPU_COUNT
from distributed import Client

from dsinga.addons.search.halving import check_halving, count_runs, make_rungs, recorded_steps
from dsinga.addons.search.metric_values import Rung, copied
from dsinga.addons.search.plan import SearchPlan
from dsinga.addons.search.ranges import SearchRange
from dsinga.addons.search.result import NUMBER, OUTCOME, SearchResult, keep_earlier_search, write_table
from dsinga.addons.search.runs import SearchRuns
from dsinga.addons.search.samplers import AT_ONCE, SampledSettings
from dsinga.addons.search.search_progress import show_search
from dsinga.addons.search.setting import Setting
from dsinga.addons.search.space import Space, make_settings, parse_values, ranges_of
from dsinga.api.argument_types import typed
from dsinga.api.engines import in_thread
from dsinga.api.execution import Execution
from dsinga.api.jobs_with_data import Result, patience_of, wanted_workers
from dsinga.api.runners import THIS_PROCESS, TrainingOptions
from dsinga.base.advice import option, short_path
from dsinga.base.arguments import bind, check_names
from dsinga.base.durable_files import explained_writing
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.base.termination import deferred_terminations
from dsinga.checkpoint import latest, read_params
from dsinga.cluster.clients import ClusterSource, find_cluster
from dsinga.data.locations import is_url
from dsinga.extensions import BestValue, check_metric, create_extensions
from dsinga.job import Job, Phase, load, training_phases
from dsinga.job.reader import check_fields, with_fields
from dsinga.monitor.workspace_lock import locked_workspace
from dsinga.reading.checked_job import CheckedJob

# Advice for arguments of other libraries' searches, and of former versions.
HALVING = "halving=3 stops poor settings early"
SAMPLES = "samples is how many settings are drawn"
INSTEAD = {"median_stopping": HALVING, "patience": HALVING, "n_iter": SAMPLES, "n_trials": SAMPLES}
JobSource = Job | str | os.PathLike[str] | Callable[..., Job]


@typed()
def search(
    job: JobSource,
    space: Space | Sequence[Space],
    client: Client | None = None,
    *,
    monitor: str | None = None,
    mode: str = "auto",
    samples: int | None = None,
    seed: int = 0,
    sampler: Any = None,
    at_once: int = AT_ONCE,
    halving: int | None = None,
    first_rung: int | None = None,
    asynchronous: bool = False,
    workspace: str | os.PathLike[str] | None = None,
    resume: bool = False,
    only: Sequence[int] | None = None,
    progress: bool = True,
    **options: Any,
) -> SearchResult:
    """Train a job with many settings; return a row for each, and the best one's params.

    ``result.best`` is the best row, ``pandas.DataFrame(result)`` the table, ``result.best_result.params`` the best
    params.

    Every run is a :func:`dsinga.train` with its own folder. Runs start in the order of the settings, as many at once as
    the cluster has free threads. All have the job's seed; name "seed" in the space to try several. A failed run is a
    row of the result; the others continue.

    Args:
        job: a Job, the path of a job file, or a function of the space's names that returns a Job.
        space: values by name: lists, a :class:`dsinga.SearchRange` of numbers, a distribution of scipy.stats, or a
            function of a numpy Generator. Names are paths of fields of the job, as in ``--set``, or arguments of the
            function. A list of dicts is several spaces; with single values it is a list of settings.
        client: a Dask client; by default as for :func:`dsinga.train`. Without a cluster, one is started in this
            process, with a worker of one thread on each core.
        monitor: the metric that settings are compared by, such as "val/accuracy". Defaults to the loss of validations,
            else of tests, else of training; for an agent to the mean return.
        mode: "min" or "max": whether lower or higher values are better; "auto" goes by the metric's name.
        samples: the number of settings drawn from the space; None for all combinations.
        seed: the random seed of the draws.
        sampler: an Optuna sampler, such as ``optuna.samplers.TPESampler(seed=0)``, which suggests ``samples`` settings,
            each from the earlier scores.
        at_once: the settings in training at a time with a sampler, without a score.
        halving: a factor for successive halving, such as 3. All settings train to a first rung, the best third of them
            to a second one with 3 times the steps, and so on; the others are "stopped".
        first_rung: the steps of the first rung; by default there are three rungs, at a sixth, half and all of the steps
            for a factor of 3.
        asynchronous: let a setting continue once it is among the best third so far. No thread is idle, but the choice
            depends on which runs end first.
        workspace: folder for ``search.csv`` and a folder for each setting; defaults to the job's workspace.
        resume: leave out settings that have ended or failed in the workspace; continue runs that were cut.
        only: the numbers of the settings to train, from 0, if several programs share a search. There is no
            ``search.csv`` then, and ``resume`` trains failed settings again.
        progress: show the ended runs, and the best setting.
        options: the other arguments of :func:`dsinga.train`. Extensions are copied for each run, functions are not.

    Ctrl-C and SIGTERM end a search in order: training runs write a checkpoint, and ``search.csv`` has the ended
    settings.

    Each run needs the threads of as many Dask workers as the job or ``workers`` says, by default one. A run that loses
    its Dask worker starts again; if that does not help, its row is "cut". A search has at most 100,000 settings, and
    locks its folder.

    To train a failed setting again, name it (``only=[3], resume=True``) or remove its folder.

    A setting that fails or has no numeric score ranks last; the lower number wins a tie. ``only`` does not work with
    ``halving`` or a ``sampler``.

    A ``sampler`` needs one dict of lists and ranges; lists are choices without order, by their place.

    Raises:
        UserError: before training: a faulty space, a value of a wrong type, a metric that the job lacks.
        RunError: all runs fail.

    Examples:
        >>> import numpy as np
        >>> import dsinga
        >>> x = np.random.default_rng(0).integers(0, 256, (200, 4), dtype=np.uint8)
        >>> y = (x[:, 0] > 127).astype(int)
        >>> job = dsinga.models.mlp(hidden=[8], inputs=4, classes=2, train_steps=50)
        >>> space = {"updater.learning_rate.base_lr": [0.1, 0.00001]}
        >>> result = dsinga.search(job, space, data={"train": (x, y), "test": (x, y)}, progress=False)
        >>> result.best["updater.learning_rate.base_lr"], result.best["state"]
        (0.1, 'finished')
    """
    known = dict.fromkeys([*inspect.signature(search).parameters, *(each.name for each in fields(TrainingOptions))])
    check_names("search", [name for name in known if name != "options"], options, INSTEAD)
    check_halving(halving, first_rung, asynchronous, only is not None)
    source, training_options = find_cluster(client), TrainingOptions.of("search", {**options, "progress": False})
    sampled = None if sampler is None else SampledSettings(sampler, space, samples, at_once)
    settings = make_settings(space, samples, seed) if sampled is None else sampled.first()
    if sampled is None and at_once != AT_ONCE:
        raise UserError("at_once is of a search with a sampler; give sampler, or leave at_once out")
    if sampled is not None and only is not None:
        raise UserError("a sampler needs the scores of all settings, so one program trains them; leave out only")
    make = functools.partial(_make_job, _checked(job, settings) if callable(job) else _with_fields_of(job, settings))
    jobs = _make_jobs(make, settings, _check_numbers(only, len(settings)))
    first, monitor = _first_valid(jobs, source, training_options, monitor)
    best = BestValue(monitor, mode)
    result = SearchResult(best.monitor, best.higher, _folder_of(workspace, first.job, resume))
    result.ranges = ranges_of(space)
    rungs: Sequence[Rung] = ()
    if halving is not None:
        recorded = recorded_steps(first, list(map(copied, training_options.extensions)), best.monitor)
        rungs = make_rungs(first.job.train_steps, halving, first_rung, recorded)
    plan = SearchPlan(
        settings, jobs, make, sampled, training_options, mode, rungs, halving or 1, asynchronous, resume,
        only is not None, result.workspace,
    )  # fmt: skip
    execute = functools.partial(_execute, plan, source, result, first.job, progress)
    return _run(execute, source.in_loop)


def _folder_of(workspace: str | os.PathLike[str] | None, first: Job, resume: bool) -> Path | None:
    folder = workspace or (first.cluster.workspace if first.cluster else None)
    if resume and folder is None:
        raise UserError("resuming needs a workspace, the folder in which an earlier search has left its runs")
    if folder is not None and is_url(str(folder)):
        raise UserError(f"a search writes to a local folder, not to {folder}; give {option('workspace', 'FOLDER')}")
    return Path(folder).absolute() if folder else None


def _run(execute: Callable[[threading.Event], SearchResult], in_loop: bool) -> SearchResult:
    """Execute a search until it ends or its event is set; return an awaitable in a running event loop."""
    cancelled = threading.Event()
    if in_loop:
        return cast(SearchResult, in_thread(functools.partial(execute, cancelled), cancelled))
    with deferred_terminations(cancelled):
        return execute(cancelled)


def _execute(
    plan: SearchPlan,
    source: ClusterSource,
    result: SearchResult,
    first: Job,
    progress: bool,
    cancelled: threading.Event,
) -> SearchResult:
    earlier = None
    runs = count_runs(
        plan.count if plan.sampled else len(plan.jobs), 1 if plan.asynchronous else len(plan.rungs), plan.halving
    )
    with contextlib.ExitStack() as stack:
        if result.workspace is not None and not plan.is_part:
            with explained_writing(result.workspace):
                stack.enter_context(locked_workspace(result.workspace))
                earlier = None if plan.resume else keep_earlier_search(result.workspace)
        if plan.rungs and plan.folder is None:  # runs go on from checkpoints
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dsinga-search-"))
            plan = replace(plan, folder=Path(folder))
        workers, patience = max(CPU_COUNT, wanted_workers(first)), patience_of(first)
        display = stack.enter_context(show_search(runs, first.name, quiet=not progress))
        if earlier is not None:
            display.remark(f"the earlier search in {short_path(earlier.parent)} is kept in {short_path(earlier)}")
        try:
            searching = SearchRuns(plan, result, display, cancelled)
            searching.execute(lambda: stack.enter_context(source.open(workers=workers, patience=patience)))
        finally:
            if result.workspace is not None and len(result) and not plan.is_part:
                write_table(result.workspace, result)
        if result.best is not None and result.best_result is None:
            result.best_result = _read_result(plan, result)
    if result.workspace is None and result.best_result is not None:
        result.best_result.workspace = None
    return result


def _make_jobs(
    make: Callable[[Setting], Job | Exception], settings: Sequence[Setting], numbers: Sequence[int]
) -> dict[int, Job | Exception]:
    for name in {name for setting in settings for name in setting}:
        if name in (NUMBER, *OUTCOME):
            raise UserError(f"{name!r} is a column of the result; give the argument another name")
    jobs = {number: make(settings[number]) for number in numbers}
    errors = [job for job in jobs.values() if isinstance(job, Exception)]
    if len(errors) == len(jobs):
        raise errors[0]
    return jobs


def _make_job(make: Callable[..., Job], setting: Setting) -> Job | Exception:
    try:
        job = make(**setting)
    except Exception as error:
        return error
    if not isinstance(job, Job):
        hint = "; of a model return model.job(x, y), with its data" if hasattr(job, "job") else ""
        raise UserError(f"the function must return a dsinga.Job, not {job!r}{hint}")
    return job


def _checked(function: Callable[..., Job], settings: Sequence[Setting]) -> Callable[..., Job]:
    signature = inspect.signature(function)
    for names in {tuple(setting) for setting in settings}:
        bind(getattr(function, "__name__", type(function).__name__), signature, (), dict.fromkeys(names))
    return function


def _with_fields_of(job: Job | str | os.PathLike[str], settings: Sequence[Setting]) -> Callable[..., Job]:
    if not isinstance(job, (Job, str, os.PathLike)):
        raise UserError(f"job must be a dsinga.Job, the path of a job file or a function, not a {type(job).__name__}")
    base = job if isinstance(job, Job) else load(job)
    for number, setting in enumerate(settings):
        try:
            check_fields(base, setting)
        except UserError as error:
            raise UserError(_text_of_values(setting) or f"setting {number}: {error}") from error
    return lambda **setting: with_fields(base, setting)


def _text_of_values(setting: Setting) -> str:
    """Describe the fault of a value that is a text of several values, as on the command line; "" if none is."""
    for name, text in setting.items():
        values = parse_values(text) if isinstance(text, str) else []
        if isinstance(values, SearchRange) or len(values) > 1:
            remedy = values if isinstance(values, SearchRange) else f"a list: {{{name!r}: {values}}}"
            return f"{name!r} is the text {text!r}; give {remedy}"
    return ""


def _first_valid(
    jobs: Mapping[int, Job | Exception], source: ClusterSource, options: TrainingOptions, monitor: str | None
) -> tuple[CheckedJob, str]:
    errors: list[Exception] = []
    for job in jobs.values():
        try:
            if not isinstance(job, Job):
                continue
            checked = Execution(job, source, options).prepare_job()
            ready, phases = checked.job, training_phases(checked.job)
            create_extensions(ready, list(map(copied, options.extensions)), checked.epochs if ready.epochs else None)
            is_agent = ready.experience is not None
            nets = {} if is_agent else {phase: checked.net(phase) for phase in phases}
            names = lookup("engine", ready.experience.engine)(ready).metric_names() if ready.experience else None
        except UserError as error:
            errors.append(error)
            continue
        phase = next((name for name, phase in (("val", Phase.kVal), ("test", Phase.kTest)) if phase in phases), "train")
        monitor = monitor or f"{phase}/{'episode_return' if is_agent else 'loss'}"
        check_metric(monitor, ready, nets, options.extensions, names)
        return checked, monitor
    raise errors[0]


def _check_numbers(only: Sequence[int] | None, count: int) -> Sequence[int]:
    for number in only or ():
        if not 0 <= number < count:
            raise UserError(f"there is no setting {number}; the search has {count}, numbered from 0")
    return range(count) if only is None else list(dict.fromkeys(only))


def _read_result(plan: SearchPlan, result: SearchResult) -> Result | None:
    assert result.best is not None
    number, steps = result.best[NUMBER], result.best["steps"]
    folder, job = plan.folder_of(number), plan.jobs[number]
    assert folder is not None
    best = folder / "best.safetensors"
    path = best if best.exists() else latest(folder / "checkpoint")
    if path is None or isinstance(job, Exception):
        return None
    if path not in (best, folder / "checkpoint" / f"step{steps}"):
        raise UserError(f"{path} is not of step {steps}, whose params are the best; remove {folder} to train it again")
    checked = Execution(job, THIS_PROCESS, plan.options).prepare_job()
    job = checked.job
    row, history, params = result.best, result.histories[number], read_params(path)
    if job.experience is not None:
        earlier_result = lookup("engine", job.experience.engine).earlier_result
        return cast(Result, earlier_result(job, params, history, row["steps"], folder, row["remark"]))
    return Result(job, params, history, checked.net(Phase.kTrain), row["steps"], folder, row["remark"])
