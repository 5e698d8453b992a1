"""Registers the services of this process by name, and connects to services of any process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from dsinga.transport.actor import ActorTransport
from dsinga.transport.direct import DirectTransport
from dsinga.transport.interface import Service, Transport
from dsinga.transport.shared_buffer import SharedBuffer
from dsinga.transport.shared_memory import SharedMemoryServer, connect_to_host

_endpoints: dict[str, Endpoint] = {}


class Endpoint:
    """A service that this process offers under a name, until it is closed.

    Args:
        name: a name that is unique on the host.
        service: the service.
        published: shared memory; clients on this host receive arrays in it without a copy.
        to_host: whether other processes of this host may connect, where the system has shared memory.
    """

    def __init__(self, name: str, service: Service, published: SharedBuffer | None = None, to_host: bool = True):
        self.name, self.service = name, service
        self._server: SharedMemoryServer | None = None
        if to_host:
            with contextlib.suppress(OSError, AttributeError):
                self._server = SharedMemoryServer(name, service, published)
        if self._server is None and published is not None:
            published.close()
        _endpoints[name] = self

    def close(self, message: str) -> None:
        """Serve no more calls; those that wait fail with RunError(``message``). May be called more than once."""
        if _endpoints.get(self.name) is self:
            del _endpoints[self.name]
        self.service.close(message)
        if self._server is not None:
            self._server.close()


def find_service(name: str) -> Service | None:
    """Return the service that this process offers under ``name``; None if it offers none."""
    endpoint = _endpoints.get(name)
    return None if endpoint is None else endpoint.service


def connect(name: str, actor: Any) -> Transport:
    """Return the fastest transport to a service: direct, through shared memory, else by its ``actor``."""
    if name in _endpoints:
        return DirectTransport(lambda: find_service(name), name)
    return connect_to_host(name) or ActorTransport(actor)


def close_endpoints(chosen: Callable[[str], bool], message: str) -> None:
    """Close the services of this process whose names ``chosen`` accepts."""
    for name in [name for name in list(_endpoints) if chosen(name)]:
        endpoint = _endpoints.get(name)
        if endpoint is not None:
            endpoint.close(message)


def endpoint_names() -> list[str]:
    """Return the names of the services that this process offers."""
    return list(_endpoints)
