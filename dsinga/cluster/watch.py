"""Waiting for tasks without ever hanging: a lost Dask worker is noticed while one waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Any

from distributed import Client, Future, wait

from dsinga.cluster.placement import workers_at_hand
from dsinga.errors import RunError, UserError

# How long to wait for tasks before looking whether all workers are still there, in seconds.
LOOK = 0.5
# How much later than a task that failed for it the loss of a worker may show, in seconds.
GRACE = 1.0


def lost_workers(client: Client, addresses: Iterable[str]) -> list[str]:
    """Return those of the ``addresses`` that the scheduler no longer knows."""
    known = workers_at_hand(client)
    return [address for address in addresses if address not in known]


def gather(client: Client, futures: Sequence[Future], addresses: Iterable[str]) -> list[Any]:
    """Return the results of ``futures`` in their order.

    Raises RunError that names the worker as soon as one of the ``addresses`` is lost, RunError where Dask gives a task
    up, and what a task raised.
    """
    addresses = sorted(addresses)
    try:
        _wait(client, futures, addresses)
        return [future.result(timeout=30) for future in futures]
    except (CancelledError, TimeoutError) as error:
        _check(client, addresses)
        raise RunError(f"Dask has given up a task, as when the workers with its data were lost: {error}") from error


def _wait(client: Client, futures: Sequence[Future], addresses: Sequence[str]) -> None:
    """Wait until all tasks have ended well."""
    remaining = set(futures)
    while remaining:
        try:
            with client.as_current():
                done, remaining = wait(remaining, timeout=LOOK, return_when="FIRST_COMPLETED")
        except TimeoutError:
            done = set()
        if not done:
            _check(client, addresses)
        for future in done:
            if future.status != "finished":
                _raise(client, addresses, future)


def _check(client: Client, addresses: Iterable[str]) -> None:
    lost = lost_workers(client, addresses)
    if lost:
        raise RunError(f"the Dask worker {', '.join(lost)} was lost")


def _raise(client: Client, addresses: Iterable[str], future: Future) -> None:
    """Raise what the task raised; but where a worker was lost, that comes first, for it is the cause."""
    error = future.exception(timeout=30)
    if isinstance(error, UserError):
        raise error
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline:
        _check(client, addresses)
        threading.Event().wait(GRACE / 10)
    raise error or CancelledError(future.key)
