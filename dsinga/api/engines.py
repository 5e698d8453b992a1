"""Decides where a call computes: on the cluster of a client, or in this process."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, cast

from dsinga.api.runners import THIS_PROCESS, Runner
from dsinga.base.error_frames import shortened
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.passes.setting_files import may_be_set

P = ParamSpec("P")
T = TypeVar("T")


def find_runner(client: Any = None, *, waits: bool = False) -> Runner:
    """Decide where a call computes: return the cluster of a client, or this process, as a Runner.

    Args:
        client: a Dask client, a Runner or None. None means the cluster of the current task's Dask worker, of the
            current client, or of Dask's setting ``scheduler-address``, if there is any.
        waits: whether the call can only wait for its result; in its client's event loop it then raises UserError.
    """
    if client is None and not _may_have_cluster():
        return THIS_PROCESS
    runner = client if isinstance(client, Runner) else cast(Runner, lookup("engine", "cluster").find(client))
    if waits:
        runner.check_waits()
    return runner


def runner_of(runner: Runner, asks_for_cluster: bool) -> Runner:
    """Return where a job computes: the given runner, a cluster started here, or this process."""
    if runner.computes(asks_for_cluster):
        return runner
    return cast(Runner, lookup("engine", "cluster")()) if asks_for_cluster else THIS_PROCESS


def _may_have_cluster() -> bool:
    """Whether this process may have a Dask client, or Dask's settings may name a scheduler."""
    if may_be_set("scheduler-address"):
        import dask.config

        if dask.config.get("scheduler-address", None):
            return True
    try:
        return "distributed" in sys.modules and bool(lookup("engine", "cluster"))
    except UserError:  # the cluster's part of dsinga is not installed
        return False


def awaitable(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function return an awaitable in the event loop of an asynchronous client.

    It then runs in a thread. Its argument ``client`` also accepts a :class:`Runner`.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        runner = find_runner(bound.arguments.get("client"))
        bound.arguments["client"] = replace(runner, in_loop=False)
        run = functools.partial(function, *bound.args, **bound.kwargs)
        return cast(T, in_thread(run)) if runner.in_loop else run()

    return call


async def in_thread(run: Callable[[], T], cancelled: threading.Event | None = None) -> T:
    """Await a function that is called in a thread of its own: return its result.

    Cancelling sets ``cancelled`` and waits until ``run`` has ended, if ``run`` checks it.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    # The threads of the loop's own pool could all be busy with long calls.
    executor = ThreadPoolExecutor(1, thread_name_prefix="dsinga-call")
    try:
        context = contextvars.copy_context()
        result = asyncio.get_running_loop().run_in_executor(executor, context.run, run)
        if cancelled is None:
            return await result
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            cancelled.set()
            with contextlib.suppress(Exception):  # the call is cancelled: its end does not matter
                await result
            raise
    except UserError as error:
        raise shortened(error) from error.__cause__  # DSINGA_TRACEBACK=all shows the frames left out here
    finally:
        executor.shutdown(wait=False)
