"""A parameter server as a Dask Actor, which workers reach directly, by shared memory or by a network."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import RunError
from dsinga.cluster.dask.worker_memory import Packed, give_back_after, unpacked
from dsinga.cluster.on_workers.connections import connection_to, serve_connections
from dsinga.cluster.serial_executor import SerialExecutor
from dsinga.cluster.server import (
    BackgroundExecutor,
    Codec,
    CooperativeExecutor,
    GroupStaleness,
    InlineExecutor,
    Policy,
    Routes,
    Shard,
    SliceSpec,
)
from dsinga.cluster.server.service import ShardService
from dsinga.cluster.transport.endpoints import Endpoint, connect, find_service
from dsinga.cluster.transport.interface import Transport
from dsinga.cluster.transport.shared_buffer import SharedArrays
from dsinga.cluster.worker.config import ServerKey
from dsinga.ops import Array, Processor
from dsinga.training import Updater

# Seconds that a server may take to reach the version of a snapshot.
SNAPSHOT_SECONDS = 60.0
# The links of the servers of this process, by the name of the server and the linked server group.
_links: dict[str, dict[int, ServerLink]] = {}


class ServerActor:
    """One server of a server group, in the process of a Dask worker until Dask releases the Actor.

    Args:
        groups: the worker groups that it serves.
        staleness: how many steps a group may be ahead of the slowest; None for no bound.
        has_remote_clients: whether workers or servers of other processes call it.
        single_worker_group: whether only a single worker group, and no server group, pushes to it.
        has_host_clients: whether some of those processes are on its host and read values in shared memory.
        device: the GPU of all its workers, which are in its process; None for host memory.
    """

    def __init__(
        self,
        key: ServerKey,
        slices: Sequence[SliceSpec],
        updater: Updater | Packed[Updater],
        groups: Sequence[int],
        start: int,
        staleness: int | None,
        timeout: float,
        codec: Codec | None = None,
        has_remote_clients: bool = True,
        single_worker_group: bool = False,
        has_host_clients: bool = True,
        device: int | None = None,
    ):
        self._updater = unpacked(updater)
        executor, gpu = InlineExecutor, None if device is None else Processor(1, device)
        if single_worker_group and device is None:
            executor = BackgroundExecutor if has_remote_clients else CooperativeExecutor
        self._shard = Shard(slices, self._updater, groups, key.generation, start, staleness, executor, gpu)
        self._timeout, self._key = timeout, key
        self._arrays = _shared_arrays({spec.slice.id: spec.slice.size for spec in slices}) if has_host_clients else None
        published = self._arrays.buffer if self._arrays else None
        service = ShardService(self._shard, codec, published is not None)
        clips, sparse = bool(self._updater.conf.clip_global_norm), any(spec.slice.width for spec in slices)
        slow = clips or self._updater.needs_whole_params or sparse or executor is InlineExecutor
        endpoint = Endpoint(key.name, service, published, has_remote_clients, slow, key.secret)
        if has_remote_clients:
            serve_connections()
        give_back_after(self._shard)
        # Dask releases an Actor when its client is gone, even if that was killed.
        weakref.finalize(self, endpoint.close, "the driver of the run is gone")

    def put(self, values: Mapping[int, Array], state: Mapping[int, Mapping[str, Array]] | None) -> None:
        """Set the first values, and for a resumed run the updater's state."""
        self._shard.put(values if self._arrays is None else self._arrays.fill(values), state)

    def snapshot(
        self, version: int | None, state: bool, copied: bool
    ) -> tuple[dict[int, Array], dict[int, dict[str, Array]]]:
        """Return values, and the updater's ``state``, by slice id, at ``version`` or, for None, as they stand."""
        return self._shard.snapshot(version, self._timeout, state, copied)

    async def request_snapshot(self, version: int | None) -> None:
        """Request a copy for :meth:`requested_snapshot` (:meth:`Shard.request_snapshot`)."""
        self._requested = self._shard.request_snapshot(version)

    async def requested_snapshot(self) -> tuple[dict[int, Array], dict[int, dict[str, Array]]]:
        """Return the requested copy when all slices have reached its version; training goes on."""
        return await asyncio.wait_for(asyncio.wrap_future(self._requested), SNAPSHOT_SECONDS)

    async def staleness(self) -> list[GroupStaleness]:
        """Return how stale each worker group's gradients were since the last call."""
        return self._shard.staleness_meter.read()

    async def site_progress(self) -> tuple[int, int, int, int, float]:
        """Return a site server's figures: group, step and age, bytes sent, and the busiest link's seconds in use."""
        links = [*_links.get(self._key.name, {}).values()]
        seconds = max((link.seconds for link in links), default=0.0)
        return self._key.group, *self._shard.group_sync.progress(), sum(link.sent for link in links), seconds

    async def flush(self) -> int:
        """Send other server groups all unsent changes; return how many messages were ever sent."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._shard.group_sync.flush()), self._timeout)
        except TimeoutError:
            raise RunError(f"waited {self._timeout:g} s at a server: {self._shard.pending()}") from None

    async def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by these factors, each from a step (:meth:`Updater.set_rate_factors`)."""
        self._updater.set_rate_factors(factors)

    async def refresh(self, group: int) -> None:
        """Let a worker group that stands still pull the present values."""
        for served_slice in self._shard.slices.values():
            served_slice.drop_copy(group)

    async def leave(self, group: int) -> None:
        """Stop waiting for a worker group, which has ended or begins later."""
        self._shard.leave(group)

    async def restart(self, group: int, generation: int, step: int) -> int:
        """Restart a worker group after a loss of its workers (:meth:`Shard.restart`); return its step."""
        return self._shard.restart(group, generation, step)

    def values_for(
        self, group: int, generation: int, source: int
    ) -> tuple[dict[int, Array], dict[int, dict[str, Array]]]:
        """Return a share of the values of a linked group's lost server (:meth:`GroupSync.values_for`)."""
        return self._shard.group_sync.values_for(group, generation, source)

    async def join(self, group: int, step: int) -> None:
        """Let a worker group that left before its first step begin at ``step``."""
        self._shard.join(group, step)


def _shared_arrays(sizes: Mapping[int, int]) -> SharedArrays | None:
    """Allocate shared memory for slices of these sizes; None if the system has none."""
    try:
        return SharedArrays(sizes)
    except (OSError, AttributeError):
        return None


class ServerLink:
    """Sends a server's changes to the same server of another group through ``transport``.

    Between hosts, changes are sent without waiting for acknowledgements. To another process of the host, the link has a
    thread that waits.
    """

    def __init__(self, transport: Transport, key: ServerKey, timeout: float):
        self._transport, self._timeout = transport, timeout
        self._sender = key.group, key.generation
        self.sent, self.seconds = 0, 0.0  # bytes, and the time in which some of them were on their way
        self._lock, self._in_flight = threading.Lock(), 0
        self._begun = 0.0  # since when the time on their way is not in ``seconds`` yet
        waits = transport.crosses_process and not transport.crosses_host
        self._thread = SerialExecutor(f"dsinga link of {key.name}") if waits else None

    def send(self, route: int, keys: Sequence[Any], changes: Sequence[Array]) -> Future[Any]:
        """Send changes of slices on a route; the future resolves when they have been received."""
        fields = [route, list(keys), *self._sender]
        if self._thread is not None:
            received = self._thread.submit(self._call, fields, changes)
        else:
            reply = self._transport.call("receive", fields, list(changes))
            received = reply if isinstance(reply, Future) else _completed(reply.result(self._timeout))
        with self._lock:
            if not self._in_flight:
                self._begun = time.perf_counter()
            self._in_flight += 1
            self.sent += sum(change.nbytes for change in changes)
        received.add_done_callback(self._note_arrival)
        return received

    def _call(self, fields: Sequence[Any], changes: Sequence[Array]) -> None:
        self._transport.call("receive", fields, list(changes)).result(self._timeout)

    def _note_arrival(self, received: Future[Any]) -> None:
        with self._lock:
            now = time.perf_counter()
            self.seconds, self._begun = self.seconds + now - self._begun, now
            self._in_flight -= 1

    def close(self, message: str) -> None:
        """Send nothing more, and end the thread."""
        if self._thread is not None:
            self._thread.close(message)
        if self._transport.crosses_host:
            self._transport.close()


def _completed(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


@cleared_frames()
def connect_server(
    key: ServerKey,
    addresses: Mapping[ServerKey, str],
    routes: Routes,
    policy: Policy,
    timeout: float,
) -> None:
    """Task: link a server with the same server of other groups, which exchange changes.

    Changes for a lost server wait ``timeout`` seconds for :func:`link_server`.
    """
    service = _find_server(key)
    links = _links[key.name] = {other.group: _connect(key, other, addresses[other], timeout) for other in addresses}
    service.on_close.append(functools.partial(_close_links, key.name))

    def send(group: int, route: int, keys: Sequence[Any], changes: Sequence[Array]) -> Future[Any]:
        return links[group].send(route, keys, changes)

    service.shard.synchronise(policy, key.group, routes, send, timeout)
    for other in addresses:
        service.shard.group_sync.link(other.group, other.generation)


@cleared_frames()
def link_server(key: ServerKey, other: ServerKey, address: str, timeout: float) -> None:
    """Task: link a server with ``other``, on the Dask worker ``address``, in place of a lost server."""
    service, links = _find_server(key), _links[key.name]
    lost, links[other.group] = links[other.group], _connect(key, other, address, timeout)
    lost.close(f"server {other.server} of group {other.group} was replaced")
    service.shard.group_sync.link(other.group, other.generation)


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
