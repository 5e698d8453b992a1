"""Calls between hosts through a stream: requests one way, replies in any order the other way, many at once."""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from dsinga.base.errors import RunError
from dsinga.cluster.serial_executor import SerialExecutor
from dsinga.cluster.transport.interface import URGENT, Items, Service, serve
from dsinga.cluster.transport.message import describe_error, restore_error
from dsinga.cluster.transport.stream import Stream

# The most bytes of arrays in a call of a slow service that the receiving thread handles itself.
INLINE_BYTES = 1 << 18


class RemoteTransport:
    """A transport to a service on another host. Any thread may use it."""

    crosses_process = crosses_host = True

    def __init__(self, connection: socket.socket):
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[Future[Items], Sequence[np.ndarray]]] = {}
        self._stream = Stream(connection, self)
        self._stream.start()

    def call(
        self, method: str, fields: Sequence[Any] = (), items: Items = (), without_copy: bool = False,
        into: Sequence[np.ndarray] = (), priority: int = URGENT,
    ) -> Future[Items]:  # fmt: skip
        """Send a call; the reply raises errors of sending it."""
        reply: Future[Items] = Future()
        reply.set_running_or_notify_cancel()
        number = next(self._numbers)
        with self._lock:
            self._waiting[number] = reply, into
        try:
            self._stream.send([number, priority, method, fields], items, priority)
        except OSError as error:
            with self._lock:
                self._waiting.pop(number, None)
            reply.set_exception(error)
        return reply

    def memory(self, values: Any, nbytes: Sequence[int]) -> Sequence[memoryview] | None:
        """Return the caller's memory for the arrays of a reply, if they fit."""
        with self._lock:
            into = self._waiting[values[0]][1]
        if [array.nbytes for array in into] != nbytes:
            return None
        return [array.view(np.uint8).data for array in into]

    def received(self, values: Any, items: Items) -> None:
        """Resolve the reply of a call."""
        number, error = values
        failure = None if error is None else restore_error(error)  # which may raise, while the reply still waits
        with self._lock:
            reply, _ = self._waiting.pop(number)
        if failure is None:
            reply.set_result(items)
        else:
            reply.set_exception(failure)

    def lost(self, reason: str) -> None:
        """Fail all calls without a reply, because the connection is lost."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for reply, _ in waiting.values():
            reply.set_exception(ConnectionError(reason))

    def close(self) -> None:
        """End the connection; waiting calls fail."""
        self._stream.close()


class RemoteCaller:
    """The service's end of a :class:`RemoteTransport`, which handles its calls.

    Args:
        slow: handles large calls, one after the other; None if the service handles all of them quickly.
    """

    def __init__(
        self, connection: socket.socket, service: Service, slow: SerialExecutor | None,
        ended: Callable[[RemoteCaller], None],
    ):  # fmt: skip
        self._service, self._slow, self._ended = service, slow, ended
        self._stream = Stream(connection, self)
        self._stream.start()

    def memory(self, values: Any, nbytes: Sequence[int]) -> None:
        """Return None, so that the stream allocates the arrays of a call itself."""

    def received(self, values: Any, items: Items) -> None:
        """Handle a call."""
        number, priority, method, fields = values
        if not isinstance(number, int) or not isinstance(priority, int):
            raise ValueError("no call")
        if not isinstance(method, str) or not isinstance(fields, list):
            raise ValueError("no call")
        if self._slow is not None and sum(item.nbytes for item in items) > INLINE_BYTES:
            with contextlib.suppress(RunError):  # the service is closed; this connection follows soon
                self._slow.submit(self._handle, values, items)
        else:
            self._handle(values, items)

    def _handle(self, values: Any, items: Items) -> None:
        number, priority, method, fields = values
        serve(self._service, method, fields, items, functools.partial(self._reply, number, priority))

    def _reply(self, number: int, priority: int, items: Items, error: BaseException | None) -> None:
        with contextlib.suppress(OSError):  # the caller is gone
            self._stream.send([number, None if error is None else describe_error(error)], items, priority)

    def lost(self, reason: str) -> None:
        """Forget the caller."""
        self._ended(self)

    def close(self) -> None:
        """End the connection."""
        self._stream.close()
