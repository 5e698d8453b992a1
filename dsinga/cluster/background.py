"""Runs training in the background, as a future with progress, result and cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import html
import logging
import math
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from dask.utils import parse_timedelta
from distributed import Client

from dsinga.api.execution import Execution
from dsinga.api.jobs_with_data import Result
from dsinga.api.runners import TrainingOptions
from dsinga.base.arguments import with_types
from dsinga.base.error_frames import public
from dsinga.base.errors import Cancelled, RunError, UserError
from dsinga.cluster.clients import ClusterSource, find_cluster, outside_thread_pool
from dsinga.job import Job
from dsinga.monitor import History

_log = logging.getLogger(__name__)

# How the names of metrics of validations and tests begin.
TESTED = ("val_", "test_")


class Run:
    """A training run in the background: a future of its :class:`dsinga.Result`.

    It can be awaited, also without a Dask client. Cancelling a task that awaits the run does not cancel the run.
    """

    def __init__(self, execution: Execution):
        self._execution = execution
        self._future: Future[Result] = Future()
        self._failure: list[str] = []  # the error to log unless the caller asks how the run has ended
        weakref.finalize(self, _log_failure, self._failure)  # at the latest when the program ends
        self._future.set_running_or_notify_cancel()
        context = contextvars.copy_context()  # with the Dask worker of a task, and the current client
        # Not a daemon: the program waits for its runs before it ends, as it does for an executor's threads.
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="dsinga-run")
        self._thread.start()

    def _run(self) -> None:
        try:
            result = self._execution.execute()
        except BaseException as error:
            if not isinstance(error, Cancelled):
                self._failure.append(self._describe(error))
            self._future.set_exception(error)
        else:
            self._future.set_result(result)

    def result(self, timeout: float | str | timedelta | None = None) -> Result:
        """Wait until the run has ended, and return its result.

        ``timeout`` is in seconds, or a text for Dask ("5s", "2 minutes"). Raises TimeoutError when it has passed, the
        errors of :func:`dsinga.train`, and :class:`dsinga.Cancelled` after a cancellation.
        """
        self._wait(timeout)
        return self._future.result(0)

    def exception(self, timeout: float | str | timedelta | None = None) -> BaseException | None:
        """Wait until the run has ended, and return its error, None if it has a result (``timeout``: :meth:`result`)."""
        self._wait(timeout)
        return self._future.exception(0)

    def _wait(self, timeout: float | str | timedelta | None) -> None:
        """Wait until the run has ended."""
        seconds = _seconds(timeout)
        if self._future.done():
            self._failure.clear()
            return
        client = cast(ClusterSource, self._execution.runner).client
        if client is not None and client.asynchronous:  # true only in the thread of its event loop
            raise UserError(
                "the event loop of the run's Dask client must not wait for the run; await it: result = await run"
            )
        with outside_thread_pool():
            try:
                self._future.exception(seconds)
            except TimeoutError:
                raise TimeoutError(f"{self!r} has not ended after {seconds:g} s") from None
        self._failure.clear()

    def _describe(self, error: BaseException) -> str:
        execution = self._execution
        expected = isinstance(error, (UserError, RunError))
        details = str(error) if expected else "".join(traceback.format_exception(error)).strip()
        return f"the run of {execution.name or str(execution.job)!r} has failed: {details}"

    def done(self) -> bool:
        """Whether the run has ended: with a result, an error or a cancellation."""
        return self._future.done()

    def cancel(self) -> bool:
        """Cancel the run, with a checkpoint if it has a workspace; return False if it has ended already."""
        if self.done():
            return False
        self._execution.cancelled.set()
        return True

    def cancelled(self) -> bool:
        """Whether the run was cancelled."""
        return self.done() and isinstance(self._future.exception(), Cancelled)

    def add_done_callback(self, function: Callable[[Run], object]) -> None:
        """Call ``function(run)`` in the run's thread when the run has ended, or at once if it has."""

        def call(_: Future[Result]) -> None:
            self._failure.clear()
            function(self)

        self._future.add_done_callback(call)

    @property
    def state(self) -> str:
        """The run's state: "queued", "running", or at the end "finished", "failed" or "cancelled"."""
        if not self.done():
            return "running" if self._execution.has_begun else "queued"
        if self.cancelled():
            return "cancelled"
        return "failed" if self._future.exception() else "finished"

    @property
    def progress(self) -> dict[str, Any]:
        """The run's "state", "step" and "steps", and while it runs "samples_per_second" and the latest metrics.

        Metrics of tests and validations have Keras's names, such as "val_loss"; "waiting" is why a queued run waits.
        """
        execution = self._execution
        tested = {name: values[-1] for name, values in self.history.history.items() if name.startswith(TESTED)}
        row = {"state": self.state, "step": 0, "steps": execution.steps, **execution.latest, **tested}
        return row | ({"waiting": execution.waiting} if execution.waiting else {})

    @property
    def history(self) -> History:
        """The rows of metrics so far."""
        return self._execution.history

    def __await__(self) -> Generator[Any, None, Result]:
        ended = asyncio.get_running_loop().create_future()

        def end(_: Run) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                ended.get_loop().call_soon_threadsafe(_set, ended)

        self.add_done_callback(end)
        yield from ended.__await__()
        return self._future.result(0)

    def __repr__(self) -> str:
        progress = self.progress
        name = f" of {self._execution.name!r}" if self._execution.name else ""
        text = f"<Run{name}: {progress['state']}, step {progress['step']} of {progress['steps']}"
        values = [f"{name} {value:.4g}" for name, value in progress.items() if isinstance(value, float)]
        sentence = progress.get("waiting", "")
        if self.state == "failed":
            sentence = str(self._future.exception())
        return ", ".join([text, *values]) + (f"; {sentence}>" if sentence else ">")

    def _repr_html_(self) -> str:
        progress = self.progress
        bar = f'<progress value="{progress["step"]}" max="{max(1, progress["steps"])}"></progress>'
        curves = self.history._repr_html_() if len(self.history) else ""
        return f"<p>{bar} {html.escape(repr(self)[1:-1])}</p>{curves}"


def _seconds(timeout: Any) -> float | None:
    """Convert a timeout to seconds, None for no limit."""
    try:
        seconds = math.nan if isinstance(timeout, bool) else parse_timedelta(timeout)
        if seconds is None or float(seconds) >= 0:
            return seconds if seconds is None else float(seconds)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):
        pass
    raise UserError(f"timeout= takes seconds or a time such as '5s', not {timeout!r}")


def _log_failure(failure: Sequence[str]) -> None:
    for text in failure:
        _log.error(text)


def _set(ended: asyncio.Future[None]) -> None:
    if not ended.done():  # it is done if the awaiting task was cancelled
        ended.set_result(None)


@with_types
@public
def submit(
    job: Job | str | os.PathLike[str], client: Client | None = None, *, progress: bool = False, **options: Any
) -> Run:
    """Start a training run in the background; return a :class:`Run`, a future of its result.

    Runs of one cluster wait in its queue until there are free threads of Dask workers. Without a cluster, the runs of
    this process share one that is started in it. A program that ends waits for its runs. SIGTERM and the other signals
    of queues end the runs with checkpoints, then the program. Ctrl-C does not reach them: call :meth:`Run.cancel`.

    Args:
        job: a Job, or the path of a job file.
        client: a Dask client, possibly asynchronous; the default is as in :func:`dsinga.train`.
        progress: whether to show a progress line; the lines of several runs would mix.
        options: the other arguments of :func:`dsinga.train`.

    Raises TypeError for an unknown argument, and UserError for an unusable client. :meth:`Run.result` raises all other
    errors.
    """
    source = replace(find_cluster(client), is_shared=True)
    return Run(Execution(job, source, TrainingOptions.of("submit", {"progress": progress, **options})))
