"""Waiting for tasks without ever hanging: a lost Dask worker is noticed while one waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Any, NoReturn

from distributed import Client, Future, wait

from dsinga.cluster.placement import workers_at_hand
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
    known = workers_at_hand(client)
    lost = [address for address in sorted(addresses) if address not in known]
    if lost:
        raise RunError(f"the Dask worker {', '.join(lost)} was lost")


def gather(client: Client, futures: Sequence[Future], addresses: Iterable[str]) -> list[Any]:
    """Return the results of ``futures`` in their order; raises what :func:`run_chains` raises."""
    return run_chains(client, [_once(futures)], addresses)[0]


def _once(futures: Sequence[Future]) -> TaskChain:
    return (yield futures)


def run_chains(client: Client, chains: Sequence[TaskChain], addresses: Iterable[str]) -> list[Any]:
    """Run chains of tasks side by side, each as fast as its own tasks come back; return what they return, in order.

    Raises RunError that names the worker as soon as one of the ``addresses`` is lost, RunError where Dask gives a task
    up, and what a task or a chain raised.
    """
    watch = _Supervisor(client, sorted(addresses))
    returned: dict[int, Any] = {}
    awaited: dict[int, Sequence[Future]] = {}

    def go_on(number: int, results: list[Any] | None) -> None:
        try:
            awaited[number] = chains[number].send(results)
        except StopIteration as end:
            returned[number] = end.value

    for number in range(len(chains)):
        go_on(number, None)
    while awaited:
        ready = [number for number, futures in awaited.items() if all(future.done() for future in futures)]
        if not ready:
            watch.wait([future for futures in awaited.values() for future in futures])
        for number in ready:
            go_on(number, watch.results(awaited.pop(number)))
    return [returned[number] for number in range(len(chains))]


class _Supervisor:
    """PendingPulls for tasks with an eye on the Dask workers that they need."""

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
