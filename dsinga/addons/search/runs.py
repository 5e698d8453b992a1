"""Starts a search's runs as threads become free, and makes rows of ended runs."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import NoReturn, cast

from distributed import Client

from dsinga.addons.search.halving import Halving
from dsinga.addons.search.losses import describe_error, is_of_cluster, may_start_again
from dsinga.addons.search.metric_values import MetricValues, copied
from dsinga.addons.search.plan import SearchPlan, SearchRun
from dsinga.addons.search.result import ENDED, NUMBER, SearchResult, read_outcome, write_outcome
from dsinga.addons.search.search_progress import SearchProgress
from dsinga.addons.search.setting import cell, untold
from dsinga.api.execution import Execution
from dsinga.api.jobs_with_data import Result, wanted_workers, with_workers
from dsinga.base.advice import how_to_resume, option
from dsinga.base.errors import Cancelled, ClusterNotReady, RunError, SchedulerLost, UserError, WorkspaceHeld
from dsinga.base.redaction import redact
from dsinga.cluster.background import Run
from dsinga.cluster.clients import ClusterSource, select_workers
from dsinga.cluster.dask.dask_workers import available_workers
from dsinga.cluster.placing.room import await_room
from dsinga.cluster.queue.usable_workers import usable_workers
from dsinga.job import Job
from dsinga.loop.cancellation import CANCELLED, Cancellation, deferred_interrupts
from dsinga.monitor import History, Row
from dsinga.monitor.workspace_lock import HOLDER

# Seconds between two counts of the threads of the cluster, and between two checks whether the search is cancelled.
COUNT_SECONDS, CANCEL_CHECK_SECONDS = 1.0, 0.1
# At most so many runs wait in the queue of the cluster, ready to take a thread as soon as one is free.
READY_RUNS = 4
# How often a run is started if its Dask workers are lost, or another program writes to its folder.
MOST_STARTS = 3


class SearchRuns:
    """Trains a plan's settings, and adds a row for each to ``result``, until ``cancelled``."""

    def __init__(self, plan: SearchPlan, result: SearchResult, progress: SearchProgress, cancelled: threading.Event):
        self._plan, self._result, self._progress = plan, result, progress
        self._cancelled = cancelled
        self._halving = Halving(max(1, len(plan.rungs)), plan.halving, result.higher, plan.asynchronous)
        self._waiting = deque((number, 0) for number in plan.jobs)  # with the rung that is next
        self._rows: dict[int, list[Row]] = {}  # of each setting one for each rung that it has ended
        self._done, self._rung, self._was_cut = 0, 0, False  # the last rung that a run has begun
        self._active: dict[int, SearchRun] = {}
        self._ended: SimpleQueue[SearchRun] = SimpleQueue()
        self._threads, self._counted_at = 0, -COUNT_SECONDS
        self._failures: list[Exception] = []
        self._losses: list[Exception] = []  # of runs that have not ended, because of the cluster or another program
        self._starts: Counter[tuple[int, int]] = Counter()  # by number and rung
        self._begun: set[int] = set()  # settings that go on from checkpoints of this search
        self._held: set[int] = set()  # settings with folders that another program wrote to
        self._shown_wait = ""

    def execute(self, open_client: Callable[[], Client]) -> None:
        """Train all settings on the cluster that ``open_client`` opens, unless none is left.

        Raises Cancelled if the search was cancelled, and RunError if all runs fail.
        """
        self._read_earlier_outcomes(list(self._plan.jobs))
        while self._waiting and self._take_known_row():
            if not self._waiting:
                self._go_on()
        if self._waiting:
            self._client = open_client()
            self._train()
        if self._losses and self._result.best is None:
            self._end_for_now(self._losses[0])
        if all(row["state"] == "failed" for row in self._result):
            first, count = self._failures[0], len(self._failures)
            failed = f"all {count} settings failed, the first one with" if count > 1 else "the only setting failed"
            again = f"; without {option('resume')} they are trained again" if self._plan.resume else ""
            raise RunError(f"{failed}: {describe_error(first)}{again}") from first

    def _take_known_row(self) -> bool:
        """Add the row of the next run if it is known without training; return whether it is."""
        number, rung = self._waiting[0]
        job, row = self._plan.jobs[number], self._known_row(number, rung)
        if row is not None:
            if row["state"] == "failed":
                self._failures.append(RunError(row["remark"]))
            if self._count(row, rung, self._result.histories[number]):
                self._result.best_result = None  # read in the end
        elif isinstance(job, Exception):
            self._fail(self._create(number, rung), job, 0)
        else:
            return False
        self._waiting.popleft()
        return True

    def _train(self) -> None:
        """Train the remaining settings.

        A signal that ends the search takes effect when its runs have ended in order.
        """
        cancellation = Cancellation(self._cancelled)
        with deferred_interrupts(cancellation):
            cancellation.ends_in_order = True
            try:
                self._await_room()
                while self._waiting or self._active:
                    if self._cancelled.is_set():
                        raise Cancelled(f"{CANCELLED}; {self._resume_hint()}")
                    self._start_runs()
                    self._show()
                    self._wait()
                    self._go_on()
            except BaseException as error:
                self._cancel()
                if isinstance(error, KeyboardInterrupt):
                    raise type(error)(self._resume_hint()) from None
                if isinstance(error, (SchedulerLost, ClusterNotReady)):
                    self._end_for_now(error)
                raise

    def _end_for_now(self, error: Exception) -> NoReturn:
        """Raise an error of the cluster, or of a folder in use, with advice how to continue."""
        kind = type(error) if isinstance(error, (RunError, UserError)) else RunError
        what = re.split(r"; \d+ steps were done", str(error))[0]  # without how the run goes on by itself
        raise kind(f"{what}; {self._resume_hint()}") from error

    def _await_room(self) -> None:
        """Wait until the cluster has room for the smallest run, so that runs do not all fail."""
        options, jobs = self._plan.options, [self._plan.jobs[number] for number, _ in self._waiting]
        smallest = min((job for job in jobs if isinstance(job, Job)), key=wanted_workers, default=None)
        if smallest is None:
            return
        job = with_workers(smallest, options.workers or wanted_workers(smallest))
        selection = select_workers(options.resources, options.hosts)
        room = await_room(job, self._client, selection, Cancellation(self._cancelled), self._progress.remark)
        with contextlib.suppress(UserError), room:  # each run reports its own fault
            pass

    def _start_runs(self) -> None:
        while self._waiting:
            if self._take_known_row():
                continue
            number, rung = self._waiting[0]
            if number in self._held:  # the other program may have trained it
                self._held.remove(number)
                self._read_outcomes([number])
                continue
            job = cast(Job, self._plan.jobs[number])
            workers = self._plan.options.workers or wanted_workers(job)
            slots = max(1, self._count_threads() // workers)
            if len(self._active) >= slots + min(slots, READY_RUNS):
                return
            # Concurrent runs share the cores evenly: otherwise kernels of one would slow the others down.
            together = min(slots, len(self._waiting) + len(self._active))
            self._waiting.popleft()
            self._start(number, rung, job, workers, max(1, self._threads // (together * workers)))

    def _go_on(self) -> None:
        """Queue good settings for their next rung, before settings that have not begun."""
        self._ask_sampler()
        if not self._was_cut:  # else those that were cut are still to be compared, in another program
            self._waiting.extendleft(reversed(self._halving.going_on(bool(self._waiting or self._active))))

    def _ask_sampler(self) -> None:
        """Queue the settings that a sampler suggests; it knows the scores of the first rung."""
        plan, scores = self._plan, self._halving.scores[0]
        while plan.sampled is not None and (setting := plan.sampled.ask(scores, self._result.higher)) is not None:
            number = len(plan.settings)
            plan.settings.append(setting)
            plan.jobs[number] = plan.make(setting)
            self._waiting.append((number, 0))
            self._read_earlier_outcomes([number])

    def _count_threads(self) -> int:
        """Count the threads of the Dask workers that runs may use; clusters grow and shrink."""
        if time.monotonic() - self._counted_at >= COUNT_SECONDS:
            selection = select_workers(self._plan.options.resources, self._plan.options.hosts)
            usable = usable_workers(self._client, selection, available_workers(self._client))
            self._threads, self._counted_at = sum(info["nthreads"] for info in usable.values()), time.monotonic()
        return self._threads

    def _start(self, number: int, rung: int, job: Job, workers: int, max_threads: int) -> None:
        self._rung = rung
        self._starts[number, rung] += 1
        entry = self._active[number] = self._create(number, rung)
        folder = self._plan.folder_of(number)
        if folder is not None and not rung:
            write = functools.partial(write_outcome, folder, entry.setting, None, self._result.monitor)
            entry.note_begin = functools.partial(write, self._plan.rungs)
        if folder is None and job.cluster is not None:
            job = job.replace(cluster=job.cluster.replace(workspace=None))
        job = job.replace(resume=False)  # a setting has a folder of its own, which ``resume`` of the search is for
        options = replace(
            self._plan.options,
            # Alone, a job that does not say how many workers it has would take them all.
            workers=self._plan.options.workers if job.cluster else workers,
            workspace=folder,
            resume="auto" if self._plan.resume or rung or number in self._begun else False,
            extensions=[*map(copied, self._plan.options.extensions), entry.values],
        )
        entry.run = Run(
            Execution(job, ClusterSource(self._client), options, max_threads, entry.begin, shows_wait=False)
        )
        entry.run.add_done_callback(lambda _: self._ended.put(entry))

    def _create(self, number: int, rung: int) -> SearchRun:
        rungs = self._plan.rungs
        values = MetricValues(self._result.monitor, self._plan.mode, rungs[rung] if rungs else None)
        return SearchRun(number, rung, self._plan.settings[number], values)

    def _wait(self) -> None:
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
        elif is_of_cluster(error):
            self._lose(entry, error)
        elif isinstance(error, Exception):
            self._fail(entry, error, entry.run.progress["step"])
        else:
            raise error

    def _finish(self, entry: SearchRun, result: Result) -> None:
        values = entry.values
        state = "stopped" if values.has_paused else "cut" if result.is_cut else "finished"
        remark = "; ".join(filter(None, ["" if values.has_paused else result.stopped, values.fault]))
        if self._add(entry, state, values.score, result.step, remark, result.history):
            # The params of a run that may go on are in its checkpoint.
            self._result.best_result = None if values.has_paused else result

    def _fail(self, entry: SearchRun, error: Exception, steps: int) -> None:
        self._failures.append(error)
        self._add(entry, "failed", None, steps, describe_error(error), entry.run.history if entry.run else History())

    def _lose(self, entry: SearchRun, error: Exception) -> None:
        """Put a run that its cluster or another program has ended at the end of the queue, to start again.

        If that does not help, its row is "cut", so that a resumed search continues it.
        """
        assert entry.run is not None
        if isinstance(error, (SchedulerLost, ClusterNotReady)):
            raise error
        if entry.is_training and self._plan.folder is not None:
            self._begun.add(entry.number)
        if isinstance(error, WorkspaceHeld):
            self._held.add(entry.number)
        if self._starts[entry.number, entry.rung] < MOST_STARTS and may_start_again(error):
            self._waiting.append((entry.number, entry.rung))
            self._progress.remark(f"{entry.name} starts again: {describe_error(error)}")
            return
        self._losses.append(error)
        self._add(
            entry, "cut", None, entry.run.progress["step"], describe_error(error), entry.run.history, is_kept=False
        )

    def _add(
        self, entry: SearchRun, state: str, score: float | None, steps: int, remark: str, history: History,
        is_kept: bool = True,
    ) -> bool:  # fmt: skip
        number, rungs = entry.number, self._plan.rungs
        earlier = self._rows.get(number, [])[: entry.rung]
        seconds = time.perf_counter() - entry.begun if entry.is_training else 0.0
        seconds = round(seconds + (earlier[-1]["seconds"] if earlier else 0.0), 3)
        place = {"rung": entry.rung + 1} if rungs else {}
        outcome = {"state": state, "score": score, "steps": steps, "seconds": seconds, "remark": redact(remark)}
        row: Row = {"number": number, **entry.setting, **place, **outcome}
        if state in ENDED:
            self._rows[number] = [*earlier, row]
        is_best = self._count(row, entry.rung, history)
        folder = self._plan.folder_of(number)
        if folder is not None and is_kept:
            write_outcome(folder, entry.setting, row, self._result.monitor, rungs, earlier)
        self._show()
        where = f"rung {entry.rung + 1} of {len(rungs)}" if state == "stopped" else state
        value = "" if score is None else f", {self._result.monitor} {score:.4g}"
        self._progress.remark(f"{entry.name}: {where}{value}{f': {remark}' if remark else ''}")
        return is_best

    def _count(self, row: Row, rung: int, history: History) -> bool:
        number = row["number"]
        self._done += 1
        if row["state"] == "cut":
            self._was_cut = True
        else:
            self._halving.add(number, rung, row["score"])
        return self._result.add(row, self._plan.settings[number], history)

    def _show(self) -> None:
        training = sum(entry.is_training for entry in self._active.values())
        best = self._result.best
        text = f"best {best['number']}: {best['score']:.4g}" if best else ""
        done, rungs = self._done, self._plan.rungs
        if self._plan.asynchronous:
            done = len(self._halving.scores[0])
        elif rungs:
            text = f"rung {self._rung + 1} of {len(rungs)}{f'; {text}' if text else ''}"
        self._progress.update(done, training, text)
        waiting = [entry.run.progress.get("waiting") for entry in self._active.values() if entry.run is not None]
        if not training and waiting and waiting[0] and waiting[0] != self._shown_wait:  # other programs' runs go first
            self._shown_wait = waiting[0]
            self._progress.remark(self._shown_wait)

    def _read_earlier_outcomes(self, numbers: Sequence[int]) -> None:
        """Read the rows of runs that have ended rungs in the workspace, instead of training."""
        if not self._plan.resume:
            return
        self._read_outcomes(numbers)
        if self._plan.asynchronous:  # settings that have continued continue again, in any order of comparison
            begun = [(number, rung) for number in numbers for rung in range(1, self._begun_rungs(number))]
            self._halving.note_going_on(begun)
            self._waiting = deque(sorted([*self._waiting, *begun], key=lambda step: step[0] not in self._rows))

    def _read_outcomes(self, numbers: Sequence[int]) -> None:
        states = ENDED if self._plan.is_part else (*ENDED, "failed")
        for number in numbers:
            folder, setting = self._plan.folder_of(number), self._plan.settings[number]
            if name := untold(setting):
                raise UserError(
                    f"setting {number} cannot be resumed: {cell(setting[name])}, which was drawn for {name!r}, has no "
                    "text to be found by; draw numbers or texts, or give a list"
                )
            outcome = folder and read_outcome(folder, setting, self._result.monitor, self._plan.rungs, states)
            if outcome:
                rows, self._result.histories[number] = outcome
                self._rows[number] = [{**row, **setting, NUMBER: number} for row in rows]  # a tuple is a list in a file

    def _begun_rungs(self, number: int) -> int:
        """Return how many rungs a setting has begun: rows, plus one if its run was interrupted."""
        rows, folder = self._rows.get(number, []), self._plan.folder_of(number)
        if not rows or rows[-1]["state"] != "stopped" or folder is None:
            return len(rows)
        history = self._result.histories[number]
        goes_beyond = len(history) and history[-1, "step"] > rows[-1]["steps"]
        return len(rows) + bool(goes_beyond or (folder / HOLDER).exists())

    def _known_row(self, number: int, rung: int) -> Row | None:
        rows = self._rows.get(number, [])
        if rows and rung >= len(rows) and rows[-1]["state"] == "finished":  # as after EarlyStopping
            return rows[-1]
        return rows[rung] if rung < len(rows) else None

    def _cancel(self) -> None:
        runs = [entry.run for entry in self._active.values() if entry.run is not None]
        for run in runs:
            run.cancel()
        for run in runs:
            run.exception()

    def _resume_hint(self) -> str:
        ended = sum(row["state"] != "cut" for row in self._result)
        done = f"{ended} of {self._plan.count} settings have ended{' a rung' if self._plan.rungs else ''}"
        if self._result.workspace is None:
            return f"{done}; a search with a workspace can go on"
        return f"{done}; go on with {how_to_resume()}"
