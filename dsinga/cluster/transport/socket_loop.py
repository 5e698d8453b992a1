"""One thread, apart from Dask's event loop, for all sockets of this process that lead to other hosts."""

from __future__ import annotations

import collections
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Protocol

_lock = threading.Lock()
_current: SocketLoop | None = None


class SocketConnection(Protocol):
    """Interface of a connection that the loop reads and writes; ``socket`` does not block and may use TLS."""

    socket: socket.socket

    def read(self) -> bool:
        """Read the bytes that have arrived; return whether to call again without waiting for more."""

    def write(self) -> bool:
        """Write as many bytes as the socket accepts; return whether there is more to write."""

    def lost(self, reason: str) -> None:
        """Stop, because reading or writing has failed; the loop closes the socket."""

    def closed(self) -> None:
        """Release all resources: the socket is closed, and the loop calls no other method any more."""


class SocketLoop:
    """Reads and writes connections when their sockets are ready. Any thread may call its methods."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: collections.deque[Callable[[], None]] = collections.deque()
        self._sleeps, self._wakes = socket.socketpair()
        self._sleeps.setblocking(False)
        self._wakes.setblocking(False)
        self._selector.register(self._sleeps, selectors.EVENT_READ)
        self.connections = 0  # including those that are being added; under the module's lock
        self._again: set[SocketConnection] = set()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="dsinga sockets", daemon=True)
        self._thread.start()

    def write(self, connection: SocketConnection) -> None:
        """Call ``connection.write`` until it has nothing more to write."""
        self._call(lambda: self._modify(connection, selectors.EVENT_READ | selectors.EVENT_WRITE))

    def remove(self, connection: SocketConnection) -> None:
        """Stop calling a connection and close its socket, soon; a second call does nothing."""
        self._call(lambda: self._close(connection))

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        if self._ended:  # with the last connection: nobody does the call, which refers to this object
            self._calls.clear()
        if threading.current_thread() is not self._thread:
            try:
                self._wakes.send(b".")
            except OSError:  # full: the thread is about to wake up; or closed, with its last connection
                pass

    def _run(self) -> None:
        while self._do_calls():
            for key, events in self._selector.select(0 if self._again else None):
                if key.data is None:
                    self._sleeps.recv(1 << 12)
                    continue
                if events & selectors.EVENT_WRITE:
                    self._write(key.data)
                if events & selectors.EVENT_READ and key.data.socket.fileno() >= 0:
                    self._again.add(key.data)
            for connection in list(self._again):
                self._read(connection)

    def _do_calls(self) -> bool:
        """Do the calls of other threads; return False, with everything closed, if no connection is left."""
        while self._calls:
            self._calls.popleft()()
        with _lock:
            if self.connections:
                return True
            global _current
            if _current is self:
                _current = None
        self._ended = True
        self._calls.clear()
        self._selector.close()
        self._sleeps.close()
        self._wakes.close()
        return False

    def _write(self, connection: SocketConnection) -> None:
        try:
            if not connection.write():
                self._modify(connection, selectors.EVENT_READ)
        except Exception as error:  # of whatever kind: the other connections go on
            self._lose(connection, error)

    def _read(self, connection: SocketConnection) -> None:
        try:
            if not connection.read():
                self._again.discard(connection)
        except Exception as error:
            self._lose(connection, error)

    def _lose(self, connection: SocketConnection, error: Exception) -> None:
        connection.lost(str(error))  # not the error: its frames refer to the connection
        self._close(connection)

    def _modify(self, connection: SocketConnection, events: int) -> None:
        if connection.socket.fileno() >= 0:
            self._selector.modify(connection.socket, events, connection)

    def _close(self, connection: SocketConnection) -> None:
        self._again.discard(connection)
        if connection.socket.fileno() >= 0:
            self._selector.unregister(connection.socket)
            connection.socket.close()
            connection.closed()
            with _lock:
                self.connections -= 1

    def register(self, connection: SocketConnection) -> None:
        """Begin to read a connection."""
        self._call(lambda: self._register(connection))

    def _register(self, connection: SocketConnection) -> None:
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)


def add_connection(connection: SocketConnection) -> SocketLoop:
    """Add a connection to this process's socket loop, and return the loop."""
    global _current
    with _lock:
        loop = _current = _current or SocketLoop()
        loop.connections += 1
    loop.register(connection)
    return loop


def open_connections() -> int:
    """Return the number of connections of this process's loop."""
    with _lock:
        return _current.connections if _current is not None else 0
