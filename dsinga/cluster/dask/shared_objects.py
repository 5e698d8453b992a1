"""Objects that are sent to Dask workers: in pickled form, and shared by several of them.

The scheduler loads the arguments of tasks that are sent to it. It would import the modules of the user's classes, and
open the stores of records, which may not be there, or take its time. So these arguments are packed.

``Client.scatter(broadcast=True)`` waits without end for a Dask worker that has just died: the scheduler tries to reach
it again and again, and meanwhile holds a lock for which the broadcasts of all clients wait. So an object that several
Dask workers keep in memory is sent to one of them, and copied from there to the others.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from distributed import Client, Future
from distributed.protocol.pickle import dumps, loads

from dsinga.cluster.dask.task_keys import TaskKey
from dsinga.cluster.dask.worker_calls import wait_for

# To how many Dask workers each one that has the object sends it, at the same time.
COPIES = 2
T = TypeVar("T")

_sharing = threading.Lock()
# The copies that callers in this process share, by the id of the packed object.
_shared: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


class Packed(Generic[T]):
    """An object in pickled form, until a Dask worker unpacks it."""

    def __init__(self, value: T):
        self._pickled = dumps(value)
        self._id = uuid.uuid4().hex

    def unpack(self) -> T:
        """Return a new copy of the object."""
        value: T = loads(self._pickled)
        return value

    def share(self) -> T:
        """Return a copy that the callers in this process share, for as long as one of them keeps it.

        They share it also where each Dask worker of the process has received this object for itself.
        """
        with _sharing:
            value: T | None = _shared.get(self._id)
            if value is None:
                value = _shared[self._id] = self.unpack()
            return value


def unpacked(value: T | Packed[T]) -> T:
    """Return the object that may be packed."""
    return value.unpack() if isinstance(value, Packed) else value


def share(client: Client, value: Any, addresses: Iterable[str], receiver: TaskKey = ("shared object",)) -> Future:
    """Put an object into the memory of each of these Dask workers; return its future.

    ``receiver`` is the key, or its beginning, of a task that gets the object: Dask groups the object with it. Raises
    RunError soon after one of the Dask workers is lost.
    """
    addresses = sorted(set(addresses))

    async def shielded() -> Future:
        """Let the sending end by itself where the caller gives up, so that the scheduler learns of all copies."""
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
    """Whether a Dask worker has replied that it has fetched an object; an error is in pickled form."""
    return isinstance(reply, dict) and reply["status"] == "OK"
