"""Waiting for tasks without ever hanging: a lost Dask worker is noticed while one waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Any, NoReturn

from distributed import Client, Future, wait

from dsinga.cluster.placement import available_workers
from dsinga.errors import Diverged, RunError, UserError

# How long to wait for tasks before looking whether all workers are still there, in seconds.
CHECK_SECONDS = 0.5
# How much later than a task that failed for it the loss of a worker may show, in seconds.
LOSS_GRACE_SECONDS = 1.0
# How long to wait for what a task that has ended has left, in seconds.
RESULT_TIMEOUT_SECONDS = 30.0

# A chain of tasks that decides on its next ones as they come back: it yields tasks and is sent their results, in their
# order, when all of them have ended well.
TaskChain = Generator[Sequence[Future], Any, Any]


def check_workers(client: Client, addresses: Iterable[str]) -> None:
    """Raise RunError that names those of the ``addresses`` which the scheduler no longer knows."""
    known = available_workers(client)
    lost = [address for address in sorted(addresses) if address not in known]
    if lost:
        raise RunError(f"the Dask worker {', '.join(lost)} was lost")


def gather(client: Client, futures: Sequence[Future], addresses: Iterable[str]) -> list[Any]:
    """Return the results of ``futures`` in their order; raises what :class:`TaskChains` raises."""
    return TaskChains(client, addresses).wait(futures)


class TaskChains:
    """Chains of tasks that go on side by side while one waits, each as fast as its own tasks come back.

    Whatever waits raises RunError that names the worker as soon as one of the ``addresses`` is lost, RunError where
    Dask gives a task up, and what a task or a chain raised.
    """

    def __init__(self, client: Client, addresses: Iterable[str]):
        self._supervisor = _Supervisor(client, sorted(addresses))
        self._awaited: dict[TaskChain, Sequence[Future]] = {}

    def add(self, chain: TaskChain) -> None:
        """Begin a chain; it goes on whenever something is waited for."""
        self._go_on(chain, None)

    def wait(self, futures: Sequence[Future]) -> list[Any]:
        """Return the results of ``futures`` in their order."""
        while True:
            went_on = self._advance()
            if all(future.done() for future in futures):
                return self._supervisor.results(futures)
            if not went_on:
                self._supervisor.wait([*futures, *self._pending()])

    def finish(self) -> None:
        """Let all chains go on to their ends."""
        while self._awaited:
            if not self._advance():
                self._supervisor.wait(self._pending())

    def _advance(self) -> bool:
        """Let those chains go on whose tasks have ended; return whether there were any."""
        ready = [chain for chain, futures in self._awaited.items() if all(future.done() for future in futures)]
        for chain in ready:
            self._go_on(chain, self._supervisor.results(self._awaited.pop(chain)))
        return bool(ready)

    def _go_on(self, chain: TaskChain, results: list[Any] | None) -> None:
        with contextlib.suppress(StopIteration):
            self._awaited[chain] = chain.send(results)

    def _pending(self) -> list[Future]:
        return [future for futures in self._awaited.values() for future in futures]


class _Supervisor:
    """Waits for tasks with an eye on the Dask workers that they need."""

    def __init__(self, client: Client, addresses: Sequence[str]):
        self._client = client
        self._addresses = addresses
        self._looked = time.monotonic()

    def wait(self, futures: Sequence[Future]) -> None:
        """Wait until one more of the tasks has ended, or for a moment. Raises what a task has raised."""
        self._check_ended(futures)
        try:
            with self._client.as_current():
                wait(
                    [future for future in futures if not future.done()],
                    timeout=CHECK_SECONDS,
                    return_when="FIRST_COMPLETED",
                )
        except TimeoutError:
            pass
        except CancelledError as error:
            self._given_up(error)
        if time.monotonic() - self._looked >= CHECK_SECONDS:  # also while the tasks of some go on coming back
            check_workers(self._client, self._addresses)
            self._looked = time.monotonic()

    def results(self, futures: Sequence[Future]) -> list[Any]:
        """Return the results of tasks that have ended. Raises what a task has raised."""
        self._check_ended(futures)
        loop = self._client.loop.asyncio_loop  # type: ignore[union-attr]
        gathered = self._client.gather(list(futures), asynchronous=True)
        answer = asyncio.run_coroutine_threadsafe(gathered, loop)
        deadline = time.monotonic() + RESULT_TIMEOUT_SECONDS
        while True:  # who has the results may be lost by now, and Dask waits for somebody to compute them again
            try:
                return answer.result(timeout=CHECK_SECONDS)
            except CancelledError as error:
                self._given_up(error)
            except TimeoutError as error:
                check_workers(self._client, self._addresses)
                if time.monotonic() > deadline:
                    answer.cancel()
                    self._given_up(error)

    def _check_ended(self, futures: Sequence[Future]) -> None:
        for future in futures:
            if future.done() and future.status != "finished":
                self._failed(future)

    def _failed(self, future: Future) -> NoReturn:
        """Raise what the task raised; but where a worker was lost, that comes first, for it is the cause."""
        try:
            error = future.exception(timeout=RESULT_TIMEOUT_SECONDS)
            if isinstance(error, (UserError, Diverged)):  # whoever else was lost is not the cause
                raise error
            deadline = time.monotonic() + LOSS_GRACE_SECONDS
            while time.monotonic() < deadline:
                check_workers(self._client, self._addresses)
                threading.Event().wait(LOSS_GRACE_SECONDS / 10)
            raise error or CancelledError(future.key)
        except (CancelledError, TimeoutError) as error:
            self._given_up(error)

    def _given_up(self, error: BaseException) -> NoReturn:
        check_workers(self._client, self._addresses)
        raise RunError(f"Dask has given up a task, as when the workers with its data were lost: {error}") from error
