"""Waits for Dask tasks, and raises an error as soon as a Dask worker of the run is lost."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple, NoReturn

from distributed import Client, Future
from distributed.comm import CommClosedError

from dsinga.base.error_frames import clear_origin
from dsinga.base.errors import Diverged, UserError, WorkerLost
from dsinga.cluster.dask.dask_workers import Workers, ask_scheduler, available_workers
from dsinga.cluster.dask.heartbeats import heartbeats

# Seconds between two checks, during a wait, of whether all Dask workers of the run are still there.
CHECK_SECONDS = 0.5
# A lost worker makes tasks fail, and the scheduler may remove it up to so many seconds later.
LOSS_GRACE_SECONDS = 1.0
# Seconds to wait for the result or the error of a task that has ended.
RESULT_TIMEOUT_SECONDS = 30.0

# A generator that yields tasks and is sent their results, in order, when all of them have ended without an error. It
# can choose the next tasks by these results.
TaskChain = Generator[Sequence[Future], Any, Any]
# Called at least twice a second during a wait for tasks, with the seconds since one of them ended, or the wait began.
# An error that it raises ends the wait.
Check = Callable[[float], None]


class TaskLost(NamedTuple):
    """The result of a task that a lost Dask worker has ended, with a message; Dask would log an error."""

    message: str


def ask_for_workers(client: Client) -> tuple[Workers, Mapping[str, float]]:
    """Return the Dask workers that the scheduler knows, and the seconds of silence of lost ones, by address."""
    workers = available_workers(client)
    heartbeats(client).update(client, workers)
    return workers, heartbeats(client).silent()


def check_workers(client: Client, addresses: Iterable[str]) -> None:
    """Raise WorkerLost, naming them, if Dask workers have left the scheduler or were silent too long."""
    # Only their threads, and the heartbeats as often as these change: all information on a thousand Dask workers takes
    # the scheduler a tenth of a second.
    present = ask_scheduler(client, "ncores")
    if heartbeats(client).is_due():
        ask_for_workers(client)
    silent, addresses = heartbeats(client).silent(), sorted(addresses)
    lost = [address for address in addresses if address not in present]
    if lost:
        names = f"Dask worker {lost[0]} was" if len(lost) == 1 else f"Dask workers {', '.join(lost)} were"
        raise WorkerLost(f"the {names} lost")
    for address in addresses:
        if address in silent:
            raise WorkerLost(
                f"the Dask scheduler has not heard from the Dask worker {address} for {silent[address]:.0f} s"
            )


def wait_for_loss(client: Client, addresses: Iterable[str]) -> None:
    """Raise WorkerLost if one of these Dask workers is lost, now or within a second."""
    deadline = time.monotonic() + LOSS_GRACE_SECONDS
    while time.monotonic() < deadline:
        check_workers(client, addresses)
        threading.Event().wait(LOSS_GRACE_SECONDS / 10)


def no_check(quiet: float) -> None:
    """Do nothing, in place of a check during a wait."""


def gather(client: Client, futures: Sequence[Future], addresses: Iterable[str], check: Check = no_check) -> list[Any]:
    """Wait for ``futures`` with the checks of :class:`TaskChains`; return their results in order."""
    return TaskChains(client, addresses, check).wait(futures)


class TaskChains:
    """Runs chains of tasks concurrently: each continues as soon as its own tasks have ended.

    A wait raises their errors, and WorkerLost soon after a Dask worker at ``addresses`` is lost.
    """

    def __init__(self, client: Client, addresses: Iterable[str], check: Check = no_check):
        self._supervisor = _Supervisor(client, sorted(addresses), check)
        self._awaited: dict[TaskChain, Sequence[Future]] = {}

    def add(self, chain: TaskChain) -> None:
        """Start a chain, which continues only during :meth:`wait` and :meth:`finish`."""
        self._resume(chain, None)

    def wait(self, futures: Sequence[Future]) -> list[Any]:
        """Wait for ``futures`` while chains go on; return their results in order."""
        self._supervisor.begin()
        while True:
            advanced = self._advance()
            if all(future.done() for future in futures):
                return self._supervisor.results(futures)
            if not advanced:
                self._supervisor.wait([futures, *self._awaited.values()])

    def finish(self) -> None:
        """Run all chains to their ends."""
        self._supervisor.begin()
        while self._awaited:
            if not self._advance():
                self._supervisor.wait([*self._awaited.values()])

    def _advance(self) -> bool:
        ready = [chain for chain, futures in self._awaited.items() if all(future.done() for future in futures)]
        for chain in ready:
            results = self._supervisor.results(self._awaited[chain])
            del self._awaited[chain]
            self._resume(chain, results)
        return bool(ready)

    def _resume(self, chain: TaskChain, results: list[Any] | None) -> None:
        with contextlib.suppress(StopIteration):
            self._awaited[chain] = chain.send(results)


async def _wait_for_group(groups: Sequence[Sequence[Future]]) -> None:
    """Wait until all tasks of a group have ended or any task has failed, at most CHECK_SECONDS."""
    progress = asyncio.Event()

    async def watch(future: Future, pending: set[Future]) -> None:
        await future._state.wait()  # type: ignore[union-attr]
        pending.discard(future)
        if not pending or future.status != "finished":
            progress.set()

    pending_groups = [{future for future in futures if not future.done()} for futures in groups]
    watches = [asyncio.ensure_future(watch(future, pending)) for pending in pending_groups for future in pending]
    try:
        if all(pending_groups):
            await asyncio.wait_for(progress.wait(), CHECK_SECONDS)
    except TimeoutError:
        pass
    finally:
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


class _Supervisor:
    """Waits for tasks while checking the Dask workers that they need."""

    def __init__(self, client: Client, addresses: Sequence[str], check: Check):
        self._client = client
        self._addresses = addresses
        self._check = check
        self._checked_at = self._quiet_since = time.monotonic()

    def begin(self) -> None:
        self._quiet_since = time.monotonic()

    def wait(self, groups: Sequence[Sequence[Future]]) -> None:
        """Wait until all tasks of a group have ended, or for CHECK_SECONDS."""
        futures = [future for group in groups for future in group]
        self._check_ended(futures)
        self._check(time.monotonic() - self._quiet_since)
        pending = [future for future in futures if not future.done()]
        self._client.sync(_wait_for_group, groups)
        if any(future.done() for future in pending):
            self._quiet_since = time.monotonic()
        if time.monotonic() - self._checked_at >= CHECK_SECONDS:  # also where tasks end so often that no wait times out
            check_workers(self._client, self._addresses)
            self._checked_at = time.monotonic()

    def results(self, futures: Sequence[Future]) -> list[Any]:
        """Return the results of a group's ended tasks."""
        self._check_ended(futures)
        loop = self._client.loop.asyncio_loop  # type: ignore[union-attr]
        results = asyncio.run_coroutine_threadsafe(self._client.gather(list(futures), asynchronous=True), loop)
        deadline = time.monotonic() + RESULT_TIMEOUT_SECONDS
        while True:  # the Dask worker with the results may be lost by now: then Dask waits until another computes them
            try:
                return self._checked(results.result(timeout=CHECK_SECONDS))
            except (CancelledError, CommClosedError) as error:
                self._raise_given_up(error)
            except TimeoutError as error:
                check_workers(self._client, self._addresses)
                if time.monotonic() > deadline:
                    results.cancel()
                    self._raise_given_up(error)

    def _checked(self, results: list[Any]) -> list[Any]:
        """Return the results; raise WorkerLost if a lost Dask worker has ended a task."""
        for result in results:
            if isinstance(result, TaskLost):
                wait_for_loss(self._client, self._addresses)
                raise WorkerLost(result.message)
        return results

    def _check_ended(self, futures: Sequence[Future]) -> None:
        for future in futures:
            if future.done() and future.status != "finished":
                self._raise_error_of(future)

    def _raise_error_of(self, future: Future) -> NoReturn:
        """Raise a failed task's error, or the loss of a worker if it is the cause."""
        try:
            error = future.exception(timeout=RESULT_TIMEOUT_SECONDS)
            clear_origin(error)
            if isinstance(error, (UserError, Diverged)):  # the loss of a worker causes neither
                raise error
            wait_for_loss(self._client, self._addresses)
            raise error or CancelledError(future.key)
        except (CancelledError, TimeoutError) as error:
            self._raise_given_up(error)

    def _raise_given_up(self, error: BaseException) -> NoReturn:
        check_workers(self._client, self._addresses)
        reason = next(iter(str(error).splitlines()), "")
        raise WorkerLost(
            f"Dask has given up a task, probably because workers with its data are lost: {reason}"
        ) from error
