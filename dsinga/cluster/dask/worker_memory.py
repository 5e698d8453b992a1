"""Shares objects in the memory of Dask workers, and returns freed memory to the system after a run.

Arguments of tasks are packed, because the scheduler would load them and may lack users' modules and stores.

``Client.scatter(broadcast=True)`` never returns if a Dask worker has just died, and the broadcasts of all clients wait
for its lock. So a shared object is sent to one Dask worker and copied from there.

glibc's allocator keeps what a run has freed. It spreads threads over up to eight arenas of memory a core, so a process
grows from run to run. Only the first arena gives back all free memory at its end. Hence all threads of a worker process
that dsinga starts share the first one. The user's own process keeps all arenas, which are faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import threading
import uuid
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from dask.utils import key_split
from distributed import Client, Future
from distributed.protocol.pickle import dumps, loads

from dsinga.cluster.dask.run_tasks import TaskKey
from dsinga.cluster.dask.worker_calls import wait_for

# To how many Dask workers each one that has the object sends it, at the same time.
COPIES = 2
T = TypeVar("T")

# Environment of worker processes. Dask's default returns freed memory to the system at once, so that each iteration has
# to fault its pages in again. These limits, in bytes, are those that glibc arrives at by itself. A variable that is set
# in the user's environment takes precedence.
MALLOC_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": 32 << 20, "MALLOC_TRIM_THRESHOLD_": 64 << 20, "MALLOC_ARENA_MAX": 1}
# Seconds from the end of a part of a run until memory is given back: by then Dask has released the other parts, on a
# busy machine after the second delay; with a lock for each, which is held while a thread waits.
DELAYS = {0.2: threading.Lock(), 2.0: threading.Lock()}

_sharing = threading.Lock()
# The copies that callers in this process share, by the id of the packed object.
_shared: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


class Packed(Generic[T]):
    """An object in pickled form, which a Dask worker unpacks when it needs it."""

    def __init__(self, value: T):
        self._pickled = dumps(value)
        self._id = uuid.uuid4().hex

    def unpack(self) -> T:
        """Return a new copy of the object."""
        value: T = loads(self._pickled)
        return value

    def share(self) -> T:
        """Return a copy that all callers in this process share as long as one of them keeps it."""
        with _sharing:
            value: T | None = _shared.get(self._id)
            if value is None:
                value = _shared[self._id] = self.unpack()
            return value


def unpacked(value: T | Packed[T]) -> T:
    """Return ``value``, unpacked if it is packed."""
    return value.unpack() if isinstance(value, Packed) else value


def share(client: Client, value: Any, addresses: Iterable[str], receiver: TaskKey = ("shared object",)) -> Future:
    """Send an object to the memory of each of these Dask workers; return its future.

    ``receiver`` is the key, or its beginning, of a task that gets the object.
    """
    addresses = sorted(set(addresses))

    async def shielded() -> Future:
        """Finish sending even if the caller gives up, so that the scheduler learns of all copies."""
        sending = asyncio.ensure_future(_send(client, (receiver[0], uuid.uuid4().hex), value, addresses))
        sending.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(sending)

    future: Future = wait_for(client, shielded(), addresses, "Dask workers to receive an object")
    return future


async def _send(client: Client, key: TaskKey, value: Any, addresses: Sequence[str]) -> Future:
    scheduler: Any = client.scheduler
    future: Future = (await client.scatter({key: value}, workers=addresses[:1], asynchronous=True))[key]
    holders, others = [*addresses[:1]], [*addresses[1:]]
    while others:
        receivers, others = others[: COPIES * len(holders)], others[COPIES * len(holders) :]
        message = {"op": "gather", "who_has": {future.key: holders}}
        replies = await scheduler.broadcast(msg=message, workers=receivers, on_error="return_pickle")
        received = [address for address in receivers if _is_received(replies[address])]
        await scheduler.update_data(who_has={future.key: received}, nbytes={}, client=client.id)
        if len(received) < len(receivers):
            raise OSError(f"{', '.join(sorted({*receivers} - {*received}))} did not receive it")
        holders += received
    return future


def _is_received(reply: Any) -> bool:
    return isinstance(reply, dict) and reply["status"] == "OK"


def give_back_after(part: object) -> None:
    """Return freed memory to the system soon after ``part``, a part of a run, is released."""
    weakref.finalize(part, give_back_soon).atexit = False


def give_back_soon() -> None:
    """Return freed memory to the system after each of ``DELAYS``, once for all calls until then."""
    for seconds, scheduled in DELAYS.items():
        if not scheduled.acquire(blocking=False):
            continue
        timer = threading.Timer(seconds, _give_back, [scheduled])
        timer.name, timer.daemon = "dsinga memory", True
        try:
            timer.start()
        except RuntimeError:  # the interpreter is shutting down
            scheduled.release()


def _give_back(scheduled: threading.Lock) -> None:
    scheduled.release()
    key_split.cache_clear()  # the names of the last 100,000 tasks, which Dask keeps by their keys
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        _libc().malloc_trim(0)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)
