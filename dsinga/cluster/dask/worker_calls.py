"""Calls functions in the processes of Dask workers, and fails as soon as one of them is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from distributed import Client

from dsinga.base.errors import RunError
from dsinga.base.settings import read_setting
from dsinga.cluster.dask.dask_workers import available_workers
from dsinga.cluster.dask.supervision import CHECK_SECONDS, check_workers, wait_for_loss

# A Dask worker sends heartbeats every second or so; one that the scheduler has not heard from for longer is in trouble.
SILENT_SECONDS = 10.0


def run_on_workers(client: Client, addresses: Iterable[str], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in Dask workers' processes, at once and outside tasks; return results by address."""
    coroutine = call_on_workers(client, addresses, function, *arguments)
    return wait_for(client, coroutine, addresses, "the answers of Dask workers")


async def call_on_workers(
    client: Client, addresses: Iterable[str], function: Callable[..., Any], *arguments: Any
) -> dict[str, Any]:
    """Call a function in Dask workers' processes, from a coroutine of the client's event loop."""
    results: dict[str, Any] = await client.run(function, *arguments, workers=list(addresses), asynchronous=True)
    return results


def wait_for(client: Client, coroutine: Coroutine[Any, Any, Any], addresses: Iterable[str], what: str) -> Any:
    """Return the result of a coroutine that asks Dask workers, run on the client's event loop.

    Raises RunError soon after a Dask worker at ``addresses`` is lost, or after ``dsinga.timeout``.
    """
    addresses, seconds = list(addresses), read_setting("timeout")
    loop = client.loop.asyncio_loop  # type: ignore[union-attr]
    # Without the context variables of the caller: in a task they name its Dask worker, to which Dask would then scatter
    # objects, in place of the workers that it is given and even where the client is of another cluster.
    future = contextvars.Context().run(asyncio.run_coroutine_threadsafe, coroutine, loop)
    deadline = time.monotonic() + seconds
    try:
        while not concurrent.futures.wait([future], CHECK_SECONDS).done:
            check_workers(client, addresses)
            if time.monotonic() > deadline:
                raise RunError(f"waited {seconds:g} s for {what}{_describe_silent(client, addresses)}")
        return future.result()
    except (OSError, KeyError) as error:  # a connection was lost, or the scheduler does not know the address
        wait_for_loss(client, addresses)
        raise RunError(f"waited for {what}, but one did not answer: {error!r}") from error
    finally:
        future.cancel()


def _describe_silent(client: Client, addresses: Iterable[str]) -> str:
    """Return words for the Dask worker that has been silent for longest, for an error."""
    workers, now = available_workers(client), time.time()
    silent = {address: now - workers[address]["last_seen"] for address in addresses if address in workers}
    longest = max(silent, key=lambda address: silent[address], default=None)
    if longest is None or silent[longest] < SILENT_SECONDS:
        return ""
    return f"; the scheduler has not heard from {longest} for {silent[longest]:.0f} s"
