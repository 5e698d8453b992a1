"""Calls between hosts by methods of Dask Actors: one message for a call and one for its reply, with one array each."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.errors import RunError
from dsinga.transport.interface import Items, Pending, Service
from dsinga.transport.message import aligned, aligned_size, copy_into, flatten, pack, restore, sizes, unpack

# Bytes of arrays up to which a call is handled on the event loop of the Dask worker; larger ones would delay its
# heartbeats, and are handled in a thread.
INLINE_BYTES = 1 << 18
TAIL = struct.Struct("<Q")  # the length of the description at the end of an answer


class ActorTransport:
    """The caller's end of a :class:`Transport`: calls a service behind an :class:`ActorEndpoint`.

    Must be created in a Dask task, where the Actor finds its Dask worker; may be used by any thread.
    """

    crosses_process = True

    def __init__(self, actor: Any):
        self._call = actor.call

    def call(self, method: str, fields: Sequence[Any] = (), items: Items = (), lend: bool = False) -> ActorReply:
        """Send a call; the reply raises errors of sending it."""
        layouts, payload = join(items)
        return ActorReply(self._call(pack([method, fields, layouts]), payload))

    def close(self) -> None:
        """Do nothing: Dask manages the connections."""


class ActorReply:
    """The :class:`dsinga.transport.interface.Reply` to a call of an Actor; ``future`` is Dask's ActorFuture."""

    def __init__(self, future: Any):
        self._future = future

    def done(self) -> bool:
        """Whether the reply, or an error in its place, has arrived."""
        return bool(self._future.done())

    def result(self, timeout: float | None = None) -> Items:
        """Return the arrays. Raises TimeoutError after ``timeout`` seconds, and the error of the call."""
        # A wait of 0 seconds for Dask's future times out even where it is done.
        answer = self._future.result(None if self._future.done() else timeout)
        (length,) = TAIL.unpack(answer[-TAIL.size :])
        layouts = unpack(answer[-TAIL.size - length : -TAIL.size].tobytes())
        return split(layouts, answer)


class ActorEndpoint:
    """The service's end: a base class of Dask Actors that serve ``service`` to other hosts.

    Waits for results are coroutines, which occupy no thread of the Dask worker. They end after ``timeout`` seconds.
    """

    def __init__(self, service: Service, timeout: float):
        self._service, self._timeout = service, timeout

    async def call(self, header: bytes, payload: np.ndarray) -> np.ndarray:
        """Handle a call: its method, fields and layouts in ``header``, the bytes of its arrays in ``payload``."""
        method, fields, layouts = unpack(header)
        try:
            items = split(layouts, payload)
            if payload.nbytes > INLINE_BYTES:
                answer = await asyncio.to_thread(self._service.handle, method, fields, items)
            else:
                answer = self._service.handle(method, fields, items)
            if answer is not None and not isinstance(answer, Sequence):
                await self._finish(answer)
                answer = answer.result(0)
        except RunError:
            raise
        except (OSError, RuntimeError) as error:  # callers would treat these as the loss of this Actor
            raise RunError(f"{method} failed: {error!r}") from error
        layouts, payload = join(answer or ())
        description = pack(layouts)
        tail = np.frombuffer(description + TAIL.pack(len(description)), np.uint8)
        return np.concatenate([payload, tail])

    async def _finish(self, pending: Pending) -> None:
        """Wait until a result is complete. Raises RunError after ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def wake(_: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has been closed
                loop.call_soon_threadsafe(done.set)

        pending.add_done_callback(wake)
        try:
            await asyncio.wait_for(done.wait(), self._timeout)
        except TimeoutError:
            raise RunError(f"waited {self._timeout:g} s at {self.describe_pending()}") from None

    def describe_pending(self) -> str:
        """Return the name of the service, and what its calls wait for, for errors."""
        return "a service"


def join(items: Items) -> tuple[list[Any], np.ndarray]:
    """Return the descriptions of arrays, and their bytes as one array, uint8; a single array is not copied.

    Dask serialises each array of a message separately, which takes longer than copying small arrays into one.
    """
    layouts, arrays = flatten(items)
    if not arrays:
        return layouts, np.empty(0, np.uint8)
    if len(arrays) == 1:
        return layouts, arrays[0].view(np.uint8)
    payload = np.empty(aligned_size(arrays), np.uint8)
    copy_into(payload, arrays)
    return layouts, payload


def split(layouts: Sequence[Any], payload: np.ndarray) -> Items:
    """Return the arrays that :func:`join` joined, as views of ``payload``."""
    starts, end = [], 0
    for size in sizes(layouts):
        starts.append((end, size))
        end += aligned(size)
    return restore(layouts, (payload[start : start + size] for start, size in starts))
