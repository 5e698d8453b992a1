"""Calls between processes of one host through shared memory, without a network.

A server listens at an abstract Unix socket, named after the service, which disappears with it. It refuses other users
(SO_PEERCRED), and clients that do not know the run's secret (:mod:`dsinga.cluster.transport.handshake`).
"""

from __future__ import annotations

import contextlib
import errno
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

from dsinga.cluster.transport.channel import Channel
from dsinga.cluster.transport.handshake import PROCESS_SECRET, Handshake, Secret, process_of, shake_hands
from dsinga.cluster.transport.interface import URGENT, Items, Service, serve
from dsinga.cluster.transport.message import describe_error, restore_error
from dsinga.cluster.transport.shared_buffer import SharedBuffer

# Seconds that a client waits for a server to accept it, and that a server waits for a client to prove itself.
ACCEPT_SECONDS = 10.0
ACCEPTED = "accepted"
# Clients that have not proved yet that they belong to the run: so many of one process, and of all, may be connected.
UNVERIFIED_PER_PROCESS, UNVERIFIED_CONNECTIONS = 8, 64
# Seconds after which a server accepts clients again if the process had no descriptor left.
NO_DESCRIPTOR_SECONDS = 0.1
# Seconds that one end, which does not read, may let the other one wait.
SEND_SECONDS = 60


class SharedMemoryTransport:
    """The caller's end of a :class:`Transport` to a service in another process of this host.

    Each call and each wait reads the replies that have arrived.
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
        """Share ``buffer`` with the service, to send its arrays without a copy."""
        self._try(self._channel.publish, buffer)

    def call(
        self, method: str, fields: Sequence[Any] = (), items: Items = (), without_copy: bool = False,
        into: Sequence[np.ndarray] = (), priority: int = URGENT,
    ) -> SharedMemoryReply:  # fmt: skip
        """Send a call; the reply raises errors of sending it."""
        self.read()  # else both ends might wait until the other reads its full socket
        self._calls += 1
        reply = self._waiting[self._calls] = SharedMemoryReply(self)
        self._try(self._channel.send, [self._calls, method, fields], items, without_copy)
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
                self._resolve(*message)
                wait = 0.0

    def _resolve(self, values: Any, items: Items) -> None:
        try:
            number, error = values
            failure = None if error is None else restore_error(error)
            reply = self._waiting.pop(number)
        except (TypeError, ValueError, KeyError):
            self._fail(ConnectionError("not a reply of dsinga"))
        else:
            reply.resolve(items, failure)

    def close(self) -> None:
        """Close the connection; waiting calls fail."""
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
    """The reply to a call of a :class:`SharedMemoryTransport`."""

    def __init__(self, transport: SharedMemoryTransport):
        self._transport: SharedMemoryTransport | None = transport
        self._items: Items = ()
        self._error: Exception | None = None

    def resolve(self, items: Items, error: Exception | None) -> None:
        """Set the result or the error of the call."""
        self._items, self._error, self._transport = items, error, None

    def done(self) -> bool:
        """Whether the reply, or an error instead, has arrived."""
        if self._transport is not None:
            self._transport.read()
        return self._transport is None

    def result(self, timeout: float | None = None) -> Items:
        """Return the arrays. Raises TimeoutError after ``timeout`` seconds, and the call's error."""
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
    """Serves this host's other processes a service under ``name``, in its own thread.

    Each client maps ``published``, if given, read-only, and receives arrays in it without a copy. Raises OSError if the
    name exists or the system lacks such sockets, AttributeError outside Linux.
    """

    def __init__(
        self, name: str, service: Service, published: SharedBuffer | None = None, secret: Secret = PROCESS_SECRET
    ):
        self._service, self._published, self._secret = service, published, secret
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._closed = False
        try:
            self._socket.bind(_address(name))
            self._socket.listen(socket.SOMAXCONN)
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self._poll = select.poll()
        self._unverified_connections: dict[
            int, tuple[Handshake, int, float]
        ] = {}  # by descriptor; with its process, and a deadline
        self._clients: dict[int, Channel] = {}
        self._accept_at = 0.0  # when to accept again; 0 while the socket is polled
        self._thread = threading.Thread(target=self._serve, name=f"dsinga-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end all connections. Any thread may call it."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        self._poll.register(self._socket, select.POLLIN)
        while not self._closed:
            for fd, _ in self._poll.poll(self._milliseconds()):
                if fd in self._clients:
                    if not self._read(self._clients[fd]):
                        self._drop(fd)
                elif fd in self._unverified_connections:
                    self._admit(fd)
                else:
                    self._accept()
            if self._unverified_connections or self._accept_at:
                self._tidy()
        for fd in [*self._unverified_connections, *self._clients]:
            self._drop(fd)
        self._socket.close()
        if self._published is not None:
            self._published.close()

    def _milliseconds(self) -> float | None:
        if not self._unverified_connections and not self._accept_at:
            return None
        times = [deadline for _, _, deadline in self._unverified_connections.values()]
        if self._accept_at:
            times.append(self._accept_at)
        return max(0.0, 1e3 * (min(times) - time.monotonic()))

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
            process = process_of(connection)
        except OSError as error:  # the server was closed, or the client is gone
            if error.errno in (errno.EMFILE, errno.ENFILE):  # the client stays in the queue of the system meanwhile
                self._poll.unregister(self._socket)
                self._accept_at = time.monotonic() + NO_DESCRIPTOR_SECONDS
            return
        crowd = [fd for fd, (_, other, _) in self._unverified_connections.items() if other == process]
        if (
            process is None
            or len(crowd) >= UNVERIFIED_PER_PROCESS
            or len(self._unverified_connections) >= UNVERIFIED_CONNECTIONS
        ):
            connection.close()
            return
        deadline = time.monotonic() + ACCEPT_SECONDS
        self._unverified_connections[connection.fileno()] = Handshake(connection, self._secret), process, deadline
        self._poll.register(connection, select.POLLIN)

    def _admit(self, fd: int) -> None:
        handshake, _, _ = self._unverified_connections[fd]
        proved = handshake.read()
        if proved is None:
            return
        if not proved:
            self._drop(fd)
            return
        del self._unverified_connections[fd]
        _block(handshake.connection)
        channel = self._clients[fd] = Channel(handshake.connection)
        try:
            if self._published is not None:
                channel.publish(self._published)
            channel.send(ACCEPTED)
        except OSError:
            self._drop(fd)

    def _drop(self, fd: int) -> None:
        self._poll.unregister(fd)
        if fd in self._unverified_connections:
            self._unverified_connections.pop(fd)[0].connection.close()
        else:
            self._clients.pop(fd).close()

    def _tidy(self) -> None:
        now = time.monotonic()
        for fd in [fd for fd, (_, _, deadline) in self._unverified_connections.items() if now >= deadline]:
            self._drop(fd)
        if self._accept_at and now >= self._accept_at:
            self._accept_at = 0.0
            self._poll.register(self._socket, select.POLLIN)

    def _read(self, channel: Channel) -> bool:
        try:
            message = channel.receive()
            if message is None:
                return True
            number, method, fields = message.values
        except (OSError, TypeError, ValueError):
            return False
        if not isinstance(number, int) or not isinstance(method, str) or not isinstance(fields, list):
            return False
        serve(self._service, method, fields, message.items, functools.partial(_answer, channel, number))
        return True


def connect_to_host(name: str, secret: Secret = PROCESS_SECRET) -> SharedMemoryTransport | None:
    """Connect to another process's service ``name`` on this host; return None if none knows ``secret``."""
    if not hasattr(os, "memfd_create"):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(connection)
    try:
        connection.settimeout(ACCEPT_SECONDS)
        connection.connect(_address(name))
        if process_of(connection) is not None and shake_hands(connection, secret):
            message = channel.receive() or channel.receive()  # a published buffer comes first
            if message is not None and message.values == ACCEPTED:
                _block(connection)
                return SharedMemoryTransport(channel)
    except OSError:
        pass
    channel.close()
    return None


def _answer(channel: Channel, number: int, items: Items, error: BaseException | None) -> None:
    """Send a reply, or end the connection of a client that does not accept it."""
    try:
        channel.send([number, None if error is None else describe_error(error)], items, without_copy=True)
    except OSError:
        channel.end()


def _block(connection: socket.socket) -> None:
    connection.setblocking(True)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))


def _address(name: str) -> str:
    return f"\0dsinga-{name}"
