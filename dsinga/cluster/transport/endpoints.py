"""Offers services of this process by name, and connects to services of any process."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from dsinga.base.errors import RunError
from dsinga.cluster.serial_executor import SerialExecutor
from dsinga.cluster.transport.handshake import PROCESS_SECRET, Secret
from dsinga.cluster.transport.interface import DirectTransport, Service, Transport
from dsinga.cluster.transport.remote import RemoteCaller, RemoteTransport
from dsinga.cluster.transport.shared_buffer import SharedBuffer
from dsinga.cluster.transport.shared_memory import SharedMemoryServer, connect_to_host

# Opens a connection to a service on another host: a socket; :func:`accept` gets its other end.
OpenConnection = Callable[[], socket.socket]

_endpoints: dict[str, Endpoint] = {}


class Endpoint:
    """A service that this process offers under a name, until it is closed.

    Args:
        published: shared memory; clients on this host receive arrays in it without a copy.
        to_host: whether other processes of this host may connect, if the system has shared memory.
        slow: whether large calls of other hosts are handled in a separate thread.
        secret: what other processes of this host must know.
    """

    def __init__(
        self, name: str, service: Service, published: SharedBuffer | None = None, to_host: bool = True,
        slow: bool = False, secret: Secret = PROCESS_SECRET,
    ):  # fmt: skip
        self.name, self.service = name, service
        self._server: SharedMemoryServer | None = None
        self._slow = SerialExecutor(f"dsinga calls {name}") if slow else None
        self._callers: set[RemoteCaller] = set()
        if to_host:
            with contextlib.suppress(OSError, AttributeError):
                self._server = SharedMemoryServer(name, service, published, secret)
        if self._server is None and published is not None:
            published.close()
        _endpoints[name] = self

    def accept(self, connection: socket.socket) -> None:
        """Serve a caller on another host, through a socket."""
        self._callers.add(RemoteCaller(connection, self.service, self._slow, self._callers.discard))

    def close(self, message: str) -> None:
        """Stop serving; waiting calls fail with RunError(``message``)."""
        if _endpoints.get(self.name) is self:
            del _endpoints[self.name]
        self.service.close(message)
        if self._server is not None:
            self._server.close()
        if self._slow is not None:
            self._slow.close(message)
        for caller in list(self._callers):
            caller.close()


def find_service(name: str) -> Service | None:
    """Return this process's service ``name``, None if it has none."""
    endpoint = _endpoints.get(name)
    return None if endpoint is None else endpoint.service


def accept(name: str, connection: socket.socket) -> bool:
    """Connect a caller on another host to the service ``name``; return False if there is none."""
    endpoint = _endpoints.get(name)
    if endpoint is None:
        return False
    endpoint.accept(connection)
    return True


def connect(name: str, open_connection: OpenConnection | None = None, secret: Secret = PROCESS_SECRET) -> Transport:
    """Connect to a service by the fastest transport: direct, through shared memory, else through a network.

    Raises RunError if a service on another host cannot be reached; it needs ``open_connection``.
    """
    if name in _endpoints:
        return DirectTransport(lambda: find_service(name), name)
    transport = connect_to_host(name, secret)
    if transport is not None:
        return transport
    if open_connection is None:
        raise RunError(f"{name} is not on this host")
    return RemoteTransport(open_connection())


def close_endpoints(chosen: Callable[[str], bool], message: str) -> None:
    """Close this process's services with names that ``chosen`` accepts."""
    for name in [name for name in list(_endpoints) if chosen(name)]:
        endpoint = _endpoints.get(name)
        if endpoint is not None:
            endpoint.close(message)


def endpoint_names() -> list[str]:
    """Return the names of this process's services."""
    return list(_endpoints)
