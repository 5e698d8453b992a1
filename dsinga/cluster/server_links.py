"""Links between server groups: each server sends the changes of its slices to the same server of other groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from dsinga.cluster.connections import connection_to
from dsinga.cluster.error_frames import cleared_frames
from dsinga.errors import RunError
from dsinga.ops import Array
from dsinga.serial_executor import SerialExecutor
from dsinga.server import Routes
from dsinga.server.service import ShardService
from dsinga.transport.endpoints import connect, find_service
from dsinga.transport.interface import Transport
from dsinga.worker.config import ServerKey


class ServerLink:
    """Sends changes to the same server of another group, in a thread of its own where that is in another process.

    So a server's own threads never wait for another server.
    """

    def __init__(self, transport: Transport, timeout: float, name: str):
        self._transport, self._timeout = transport, timeout
        self._thread = SerialExecutor(name) if transport.crosses_process else None

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
        self._transport.call("receive", [route, list(ids)], list(changes)).result(self._timeout)


@cleared_frames()
def connect_server(
    key: ServerKey, addresses: Mapping[ServerKey, str], routes: Routes, frequency: int, timeout: float
) -> None:
    """Task: from now on keep a server in step with the same server of other groups.

    ``addresses`` are those of their Dask workers, ``frequency`` is the number of updates of a slice after which its
    changes are sent.
    """
    service = find_service(key.name)
    if not isinstance(service, ShardService):
        raise RunError(f"server {key.server} of group {key.group} is no longer in this process: the run has ended here")
    links = {}
    for other, address in addresses.items():
        transport = connect(other.name, connection_to(address, other.name), other.secret)
        links[other.group] = ServerLink(transport, timeout, f"dsinga server link {key.group}-{other.group}")
    service.on_close.extend(link.close for link in links.values())

    def send(group: int, route: int, ids: Sequence[int], changes: Sequence[Array]) -> Future[Any]:
        return links[group].send(route, ids, changes)

    service.shard.synchronise(key.group, routes, frequency, send)
