"""Links between server groups: each server sends the changes of its slices to the same server of other groups."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from dsinga.cluster.dask.error_frames import cleared_frames
from dsinga.cluster.on_workers.connections import connection_to
from dsinga.errors import RunError
from dsinga.ops import Array
from dsinga.serial_executor import SerialExecutor
from dsinga.server import Routes
from dsinga.server.service import ShardService
from dsinga.transport.endpoints import connect, find_service
from dsinga.transport.interface import Transport
from dsinga.worker.config import ServerKey


class ServerLink:
    """Sends changes of the server ``key`` to the same server of another group, which ``transport`` reaches.

    It has a thread of its own where that is in another process, so that a server's threads never wait for another.
    """

    def __init__(self, transport: Transport, key: ServerKey, timeout: float):
        self._transport, self._timeout = transport, timeout
        self._sender = key.group, key.generation
        self._thread = SerialExecutor(f"dsinga link of {key.name}") if transport.crosses_process else None

    def send(self, route: int, ids: Sequence[int], changes: Sequence[Array]) -> Future[Any]:
        """Send the changes of slices on a route; the future resolves when they have been received."""
        if self._thread is not None:
            return self._thread.submit(self._call, route, ids, changes)
        received: Future[Any] = Future()
        self._call(route, ids, changes)
        received.set_result(None)
        return received

    def close(self, message: str) -> None:
        """Send nothing more; the thread ends."""
        if self._thread is not None:
            self._thread.close(message)
        if self._transport.crosses_host:
            self._transport.close()

    def _call(self, route: int, ids: Sequence[int], changes: Sequence[Array]) -> None:
        self._transport.call("receive", [route, list(ids), *self._sender], list(changes)).result(self._timeout)


# The links of the servers of this process, by the name of the server and the linked server group.
_links: dict[str, dict[int, ServerLink]] = {}


@cleared_frames()
def connect_server(
    key: ServerKey, addresses: Mapping[ServerKey, str], routes: Routes, frequency: int, timeout: float
) -> None:
    """Task: from now on keep a server in step with the same server of other groups.

    ``addresses`` are those of their Dask workers, ``frequency`` is the number of updates of a slice after which its
    changes are sent. Where one of them is lost, its changes wait for :func:`link_server` for ``timeout`` seconds.
    """
    service = _find_server(key)
    links = _links[key.name] = {other.group: _connect(key, other, addresses[other], timeout) for other in addresses}
    service.on_close.append(functools.partial(_close_links, key.name))

    def send(group: int, route: int, ids: Sequence[int], changes: Sequence[Array]) -> Future[Any]:
        return links[group].send(route, ids, changes)

    service.shard.synchronise(key.group, routes, frequency, send, timeout)
    for other in addresses:
        service.shard.link(other.group, other.generation)


@cleared_frames()
def link_server(key: ServerKey, other: ServerKey, address: str, timeout: float) -> None:
    """Task: link a server with the server ``other`` on the Dask worker ``address``, which replaces a lost one."""
    service, links = _find_server(key), _links[key.name]
    lost, links[other.group] = links[other.group], _connect(key, other, address, timeout)
    lost.close(f"server {other.server} of group {other.group} was replaced")
    service.shard.link(other.group, other.generation)


def _find_server(key: ServerKey) -> ShardService:
    service = find_service(key.name)
    if not isinstance(service, ShardService):
        raise RunError(f"server {key.server} of group {key.group} is no longer in this process: the run has ended here")
    return service


def _connect(key: ServerKey, other: ServerKey, address: str, timeout: float) -> ServerLink:
    return ServerLink(connect(other.name, connection_to(address, other.name), other.secret), key, timeout)


def _close_links(name: str, message: str) -> None:
    for link in _links.pop(name, {}).values():
        link.close(message)
