"""Starts the runs of a search as threads become free, and makes rows of the result as they end."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from distributed import Client

from dsinga.addons.search.median_stopping import MedianRule, MedianStopping, MetricValues
from dsinga.addons.search.result import SearchResult, describe_setting, read_outcome, setting_folder, write_outcome
from dsinga.addons.search.search_progress import SearchProgress
from dsinga.addons.search.space import Setting
from dsinga.api.engines import TrainingOptions
from dsinga.api.execution import Execution
from dsinga.api.jobs_with_data import Result, wanted_workers, with_workers
from dsinga.base.advice import how_to_resume
from dsinga.base.errors import Cancelled, RunError, UserError
from dsinga.base.redaction import redact
from dsinga.cluster.background import Run
from dsinga.cluster.clients import ClusterSource, select_workers
from dsinga.cluster.dask.dask_workers import available_workers
from dsinga.cluster.placing.room import await_room
from dsinga.cluster.queue.usable_workers import usable_workers
from dsinga.extensions import Extension, ExtensionLike, KeepBest
from dsinga.job import ExtensionType, Job
from dsinga.loop.cancellation import CANCELLED, Cancellation, deferred_interrupts
from dsinga.monitor import History, Row

# Seconds between two counts of the threads of the cluster, and between two checks whether the search is cancelled.
COUNT_SECONDS, CANCEL_CHECK_SECONDS = 1.0, 0.1
# At most so many runs wait in the queue of the cluster, ready to take a thread as soon as one is free.
READY_RUNS = 4


@dataclass
class SearchRun:
    """One run of a search: its number and setting, the extension that keeps its metric, and when training began."""

    number: int
    setting: Setting
    values: MetricValues
    run: Run | None = None
    begun: float = field(default_factory=time.perf_counter)
    is_training: bool = False

    def begin(self) -> None:
        """Note the time at which training begins, after the wait for Dask workers."""
        self.begun, self.is_training = time.perf_counter(), True

    @property
    def name(self) -> str:
        """The number and the setting, for messages."""
        return f"setting {self.number} ({describe_setting(self.setting)})"


@dataclass(frozen=True)
class SearchPlan:
    """The settings and jobs that a search trains, and how it runs them.

    Attributes:
        settings: all settings.
        jobs: the job of each setting that is to be trained, by its number, or what was wrong with it.
        options: the arguments of each run, with the workspace of the search.
        mode: "min", "max" or "auto": which values of the metric are better.
        median_stopping: whether runs are ended by the median rule.
        resume: whether runs that have ended in the workspace are left out.
    """

    settings: Sequence[Setting]
    jobs: Mapping[int, Job | Exception]
    options: TrainingOptions
    mode: str
    median_stopping: bool
    resume: bool


class SearchRuns:
    """Trains the settings of a plan, and adds a row for each to ``result``, until ``cancelled`` is set."""

    def __init__(
        self,
        plan: SearchPlan,
        client: Client,
        result: SearchResult,
        progress: SearchProgress,
        cancelled: threading.Event,
    ):
        self._plan, self._client, self._result, self._progress = plan, client, result, progress
        self._cancelled = cancelled
        self._rule = MedianRule() if plan.median_stopping else None
        self._waiting = deque(plan.jobs)
        self._active: dict[int, SearchRun] = {}
        self._ended: SimpleQueue[SearchRun] = SimpleQueue()
        self._threads, self._counted_at = 0, -COUNT_SECONDS
        self._failures: list[Exception] = []
        self._shown_wait = ""

    def execute(self) -> None:
        """Train all settings. Raises Cancelled where the search was cancelled, and where all runs fail their error.

        A signal that ends the search takes effect when its runs have ended in order.
        """
        cancellation = Cancellation(self._cancelled)
        with deferred_interrupts(cancellation):
            cancellation.ends_in_order = True
            try:
                if self._plan.resume:
                    self._take_earlier_outcomes()
                self._await_room()
                while self._waiting or self._active:
                    if self._cancelled.is_set():
                        raise Cancelled(f"{CANCELLED}; {self._resume_hint()}")
                    self._start_runs()
                    self._show()
                    self._wait()
            except BaseException as error:
                self._cancel()
                if isinstance(error, KeyboardInterrupt):
                    raise type(error)(self._resume_hint()) from None
                raise
        if len(self._failures) == len(self._result):
            first, count = self._failures[0], len(self._failures)
            failed = f"all {count} settings failed, the first one with" if count > 1 else "the only setting failed"
            raise RunError(f"{failed}: {_text(first)}") from first

    def _await_room(self) -> None:
        """Wait until the cluster has room for the smallest run, rather than let one run after another fail."""
        options, jobs = self._plan.options, [self._plan.jobs[number] for number in self._waiting]
        smallest = min((job for job in jobs if isinstance(job, Job)), key=wanted_workers, default=None)
        if smallest is None:
            return
        job = with_workers(smallest, options.workers or wanted_workers(smallest))
        selection = select_workers(options.resources, options.hosts)
        room = await_room(job, self._client, selection, Cancellation(self._cancelled), self._progress.remark)
        with contextlib.suppress(UserError), room:  # each run says what its own fault is
            pass

    def _start_runs(self) -> None:
        """Start as many runs as there is room for, and a few to be ready when a thread becomes free."""
        while self._waiting:
            number, setting = self._waiting[0], self._plan.settings[self._waiting[0]]
            job = self._plan.jobs[number]
            if isinstance(job, Exception):
                self._waiting.popleft()
                self._fail(SearchRun(number, setting, self._watch()), job, 0)
                continue
            workers = self._plan.options.workers or wanted_workers(job)
            slots = max(1, self._count_threads() // workers)
            if len(self._active) >= slots + min(slots, READY_RUNS):
                return
            self._waiting.popleft()
            # Runs that are there together share the cores evenly: kernels of one would slow those of the others down.
            together = min(slots, len(self._plan.jobs))
            self._start(number, job, workers, max(1, self._threads // (together * workers)))

    def _count_threads(self) -> int:
        """Return the threads of the Dask workers that runs may use; clusters grow and shrink."""
        if time.monotonic() - self._counted_at >= COUNT_SECONDS:
            selection = select_workers(self._plan.options.resources, self._plan.options.hosts)
            usable = usable_workers(self._client, selection, available_workers(self._client))
            self._threads, self._counted_at = sum(info["nthreads"] for info in usable.values()), time.monotonic()
        return self._threads

    def _start(self, number: int, job: Job, workers: int, max_threads: int) -> None:
        entry = self._active[number] = SearchRun(number, self._plan.settings[number], self._watch())
        folder = self._folder(number)
        if folder is None and job.cluster is not None:
            job = job.replace(cluster=job.cluster.replace(workspace=None))
        job = job.replace(resume=False)  # a setting has a folder of its own, which ``resume`` of the search is for
        options = replace(
            self._plan.options,
            # Alone, a job that does not say how many workers it has would take them all.
            workers=self._plan.options.workers if job.cluster else workers,
            workspace=folder,
            resume="auto" if self._plan.resume else False,
            extensions=[*map(_copied, self._plan.options.extensions), entry.values],
        )
        entry.run = Run(
            Execution(job, ClusterSource(self._client), options, max_threads, entry.begin, shows_wait=False)
        )
        entry.run.add_done_callback(lambda _: self._ended.put(entry))

    def _watch(self) -> MetricValues:
        """Return the extension of one run that keeps its metric."""
        monitor, mode = self._result.monitor, self._plan.mode
        return MetricValues(monitor, mode) if self._rule is None else MedianStopping(self._rule, monitor, mode)

    def _folder(self, number: int) -> Path | None:
        workspace = self._result.workspace
        return None if workspace is None else setting_folder(workspace, number, len(self._plan.settings))

    def _wait(self) -> None:
        """Wait a moment for the end of a run, and add its row."""
        if not self._active:
            return
        try:
            entry = self._ended.get(timeout=CANCEL_CHECK_SECONDS)
        except Empty:
            return
        del self._active[entry.number]
        assert entry.run is not None
        error = entry.run.exception()
        if error is None:
            self._finish(entry, entry.run.result())
        elif isinstance(error, Exception):
            self._fail(entry, error, entry.run.progress["step"])
        else:
            raise error

    def _finish(self, entry: SearchRun, result: Result) -> None:
        values, reason = entry.values, isinstance(entry.values, MedianStopping) and entry.values.reason
        keeps_best = _keeps_best(result.job, self._plan.options)
        score = values.best.value if keeps_best else values.values[-1][1] if values.values else None
        state = "stopped" if reason else "cut" if result.is_cut else "finished"
        if self._add(entry, state, score, result.step, result.stopped, result.history):
            self._result.best_result = result

    def _fail(self, entry: SearchRun, error: Exception, steps: int) -> None:
        self._failures.append(error)
        history = entry.run.history if entry.run else History()
        self._add(entry, "failed", None, steps, _text(error), history)

    def _add(
        self, entry: SearchRun, state: str, score: float | None, steps: int, remark: str, history: History
    ) -> bool:
        """Add a row, keep it in its folder, and show it; return whether it is the best one now."""
        seconds = round(time.perf_counter() - entry.begun, 3) if entry.is_training else 0.0
        outcome = {"state": state, "score": score, "steps": steps, "seconds": seconds, "remark": redact(remark)}
        row: Row = {"number": entry.number, **entry.setting, **outcome}
        is_best = self._result.add(row, entry.setting, history)
        folder = self._folder(entry.number)
        if folder is not None:
            write_outcome(folder, entry.setting, row)
        self._show()
        number = "" if score is None else f", {self._result.monitor} {score:.4g}"
        self._progress.remark(f"{entry.name}: {state}{number}{f': {remark}' if remark else ''}")
        return is_best

    def _show(self) -> None:
        training = sum(entry.is_training for entry in self._active.values())
        best = self._result.best
        text = f"best {best['number']}: {best['score']:.4g}" if best else ""
        self._progress.update(len(self._result), training, text)
        waiting = [entry.run.progress.get("waiting") for entry in self._active.values() if entry.run is not None]
        if not training and waiting and waiting[0] and waiting[0] != self._shown_wait:  # other programs' runs go first
            self._shown_wait = waiting[0]
            self._progress.remark(self._shown_wait)

    def _take_earlier_outcomes(self) -> None:
        """Add the rows of runs that have ended in the workspace; the median rule compares others with them, too."""
        for number in list(self._waiting):
            folder, setting = self._folder(number), self._plan.settings[number]
            outcome = None if folder is None else read_outcome(folder, setting)
            if outcome is None:
                continue
            row, history = outcome
            self._result.add(row, setting, history)
            self._waiting.remove(number)
            if self._rule is not None and row["state"] == "finished":
                phase, _, name = self._result.monitor.partition("/")
                self._rule.add(
                    [(metrics["step"], metrics[name]) for metrics in history.phase(phase) if name in metrics]
                )

    def _cancel(self) -> None:
        """Cancel the runs, and wait until they have ended."""
        runs = [entry.run for entry in self._active.values() if entry.run is not None]
        for run in runs:
            run.cancel()
        for run in runs:
            run.exception()

    def _resume_hint(self) -> str:
        done = f"{len(self._result)} of {len(self._plan.settings)} settings have ended"
        if self._result.workspace is None:
            return f"{done}; a search with a workspace can go on"
        return f"{done}; go on with {how_to_resume()}"


def _copied(extension: ExtensionLike) -> ExtensionLike:
    """Return an extension for one run: those of dsinga remember things, functions are the user's to share."""
    return copy.deepcopy(extension) if isinstance(extension, Extension) else extension


def _keeps_best(job: Job, options: TrainingOptions) -> bool:
    """Whether a run returns its best params instead of the last ones."""
    named = any(conf.type is ExtensionType.kKeepBest for conf in job.extension)
    return named or any(isinstance(extension, KeepBest) for extension in options.extensions)


def _text(error: Any) -> str:
    """Return an error as one sentence; that of a user's code with its type."""
    return str(error) if isinstance(error, (UserError, RunError)) else f"{type(error).__name__}: {error}"
