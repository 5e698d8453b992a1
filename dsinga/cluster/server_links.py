"""Server groups that keep in step: a server tells the same server of neighbouring groups, straight in one process."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from distributed import get_worker

from dsinga.errors import RunError
from dsinga.ops import Array
from dsinga.server import Routes, Shard
from dsinga.transport.roads import join
from dsinga.worker.local_servers import ServerKey, local_shard

# Tell a server what has changed: the route, the ids of slices, their changes.
Tell = Callable[[int, Sequence[int], Sequence[Array]], Future]


def meet(key: ServerKey, actors: Mapping[ServerKey, Any], routes: Routes, frequency: int) -> None:
    """Task: from now on keep a server in step with the same server of other groups, which are ``actors``."""
    loop = get_worker().loop.asyncio_loop  # type: ignore[attr-defined]
    ways = {other.group: _way(other, actor, loop) for other, actor in actors.items()}
    _shard(key).synchronise(key.group, routes, frequency, lambda group, *changes: ways[group](*changes))


def _way(key: ServerKey, actor: Any, loop: asyncio.AbstractEventLoop) -> Tell:
    if local_shard(key) is not None:
        return functools.partial(_tell_directly, key)
    # Looked up here, in a task, it knows its Dask worker; where it is called later may be no thread of Dask's.
    return functools.partial(_tell_actor, actor.receive, loop)


def _tell_directly(key: ServerKey, route: int, ids: Sequence[int], changes: Sequence[Array]) -> Future:
    _shard(key).receive(route, dict(zip(ids, changes, strict=True)))
    taken: Future[None] = Future()
    taken.set_result(None)
    return taken


def _tell_actor(
    receive: Callable[..., Awaitable[None]],
    loop: asyncio.AbstractEventLoop,
    route: int,
    ids: Sequence[int],
    changes: Sequence[Array],
) -> Future:
    joined = join(dict(zip(ids, changes, strict=True)), ids)
    return asyncio.run_coroutine_threadsafe(_awaited(functools.partial(receive, route, ids, joined)), loop)


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()


def _shard(key: ServerKey) -> Shard:
    """Return a shard of this process, looked up anew for each message, so that none outlives its actor."""
    shard = local_shard(key)
    if shard is None:
        raise RunError(f"server {key.server} of group {key.group} is no longer where it was: the run has ended there")
    return shard
