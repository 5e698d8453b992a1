"""Calls between processes of one host through shared memory, without a network.

A server listens at an abstract Unix socket, named after the service. It cannot be reached from another host or network
namespace, and connections of other users are refused (SO_PEERCRED). If a client can connect, both processes can share
memory. The address disappears with the socket, so that nothing has to be cleaned up.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.errors import RunError
from dsinga.transport.channel import Channel
from dsinga.transport.interface import URGENT, Items, Pending, Service
from dsinga.transport.message import describe_error, restore_error
from dsinga.transport.shared_buffer import SharedBuffer

# Seconds that a client waits for a server to accept it.
ACCEPT_SECONDS = 10.0
ACCEPTED = "accepted"


class SharedMemoryTransport:
    """The caller's end of a :class:`Transport` to a service in another process of this host.

    Used by one thread at a time; each call and each wait reads the replies that have arrived in the socket.
    """

    crosses_process, crosses_host = True, False

    def __init__(self, channel: Channel):
        self._channel = channel
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._waiting: dict[int, SharedMemoryReply] = {}
        self._calls = 0
        self._lost: OSError | None = None

    def publish(self, buffer: SharedBuffer) -> None:
        """Share ``buffer`` with the service, so that arrays in it can be lent. If this fails, the next call fails."""
        self._try(self._channel.publish, buffer)

    def call(
        self, method: str, fields: Sequence[Any] = (), items: Items = (), lend: bool = False,
        into: Sequence[np.ndarray] = (), priority: int = URGENT,
    ) -> SharedMemoryReply:  # fmt: skip
        """Send a call; the reply raises errors of sending it."""
        self.read()  # else both ends might wait until the other reads its full socket
        self._calls += 1
        reply = self._waiting[self._calls] = SharedMemoryReply(self)
        self._try(self._channel.send, [self._calls, method, fields], items, lend)
        return reply

    def read(self, timeout: float | None = 0.0) -> None:
        """Read the replies that have arrived; wait up to ``timeout`` seconds (None: no limit) for the first."""
        wait = timeout
        while self._lost is None and self._poll.poll(None if wait is None else 1e3 * wait):
            try:
                message = self._channel.receive()
            except OSError as lost:
                self._fail(lost)
                return
            if message is not None:
                number, error = message.values
                self._waiting.pop(number).resolve(message.items, None if error is None else restore_error(error))
                wait = 0.0

    def close(self) -> None:
        """Close the connection; calls that wait fail."""
        self._fail(ConnectionAbortedError("the connection was closed"))
        self._channel.close()

    def _try(self, send: Any, *arguments: Any) -> None:
        try:
            if self._lost is None:
                send(*arguments)
        except OSError as lost:
            self._lost = lost
        if self._lost is not None:
            self._fail(self._lost)

    def _fail(self, lost: OSError) -> None:
        self._lost = self._lost or lost
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            reply.resolve((), lost)


class SharedMemoryReply:
    """The :class:`dsinga.transport.interface.Reply` to a call of a :class:`SharedMemoryTransport`."""

    def __init__(self, transport: SharedMemoryTransport):
        self._transport: SharedMemoryTransport | None = transport
        self._items: Items = ()
        self._error: Exception | None = None

    def resolve(self, items: Items, error: Exception | None) -> None:
        """Set the result or the error of the call."""
        self._items, self._error, self._transport = items, error, None

    def done(self) -> bool:
        """Whether the reply, or an error in its place, has arrived."""
        if self._transport is not None:
            self._transport.read()
        return self._transport is None

    def result(self, timeout: float | None = None) -> Items:
        """Return the arrays. Raises TimeoutError after ``timeout`` seconds, and the error of the call."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._transport is not None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left < 0:
                raise TimeoutError
            self._transport.read(left)
        if self._error is not None:
            raise self._error
        return self._items


class SharedMemoryServer:
    """The service's end: serves other processes of this host under ``name``, in its own thread, until it is closed.

    If ``published`` is given, each client maps it read-only, and receives arrays in it without a copy. Raises OSError
    where the name is taken or the system lacks such sockets, AttributeError outside Linux.
    """

    def __init__(self, name: str, service: Service, published: SharedBuffer | None = None):
        self._service, self._published = service, published
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._closed = False
        try:
            self._socket.bind(_address(name))
            self._socket.listen(socket.SOMAXCONN)
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._serve, name=f"dsinga-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end all connections. Any thread may call it, and more than once."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        clients: dict[int, Channel] = {}
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not self._closed:
            for fd, _ in poll.poll():
                if fd == self._socket.fileno():
                    channel = self._accept()
                    if channel is not None:
                        clients[channel.fileno()] = channel
                        poll.register(channel, select.POLLIN)
                elif not self._read(clients[fd]):
                    poll.unregister(fd)
                    clients.pop(fd).close()
        for channel in clients.values():
            channel.close()
        self._socket.close()
        if self._published is not None:
            self._published.close()

    def _accept(self) -> Channel | None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # the server was closed, or the client is gone
            return None
        channel = Channel(connection)
        try:
            if _same_user(connection):
                if self._published is not None:
                    channel.publish(self._published)
                channel.send(ACCEPTED)
                return channel
        except OSError:
            pass
        channel.close()
        return None

    def _read(self, channel: Channel) -> bool:
        """Handle a client's next message; return False if the client is gone."""
        try:
            message = channel.receive()
            if message is None:
                return True
            number, method, fields = message.values
        except (OSError, TypeError, ValueError):  # the client is gone, or what it sent is no call
            return False
        try:
            answer = self._service.handle(method, fields, message.items)
        except RunError as error:
            _answer(channel, number, error=error)
        except Exception as error:
            _answer(channel, number, error=RunError(f"{method} failed: {error!r}"))
        else:
            if answer is None or isinstance(answer, Sequence):
                _answer(channel, number, answer or ())
            else:
                answer.add_done_callback(functools.partial(_answer_when_done, channel, number))
        return True


def connect_to_host(name: str) -> SharedMemoryTransport | None:
    """Connect to the service that another process of this host serves under ``name``; return None if there is none."""
    if not hasattr(os, "memfd_create"):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(connection)
    try:
        connection.settimeout(ACCEPT_SECONDS)
        connection.connect(_address(name))
        if _same_user(connection):
            message = channel.receive() or channel.receive()  # a published buffer comes first
            if message is not None and message.values == ACCEPTED:
                connection.settimeout(None)
                return SharedMemoryTransport(channel)
    except OSError:
        pass
    channel.close()
    return None


def _answer_when_done(channel: Channel, number: int, answer: Pending) -> None:
    try:
        items = answer.result(0) or ()
    except BaseException as error:  # a future may have been cancelled
        _answer(channel, number, error=error)
    else:
        _answer(channel, number, items)


def _answer(channel: Channel, number: int, items: Items = (), error: BaseException | None = None) -> None:
    """Send a reply, unless the client is gone."""
    with contextlib.suppress(OSError):
        channel.send([number, None if error is None else describe_error(error)], items, lend=True)


def _address(name: str) -> str:
    return f"\0dsinga-{name}"


def _same_user(connection: socket.socket) -> bool:
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user == os.geteuid()
