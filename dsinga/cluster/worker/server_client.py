"""A worker's client of one server: pulls values of slices, pushes gradients, takes part in collectives.

Servers in other processes of a worker's host read its gradients in shared memory. The pool of result arrays
(:mod:`dsinga.base.buffers`) allocates gradients there, so that only their offsets are sent. If a feature of the same
size uses the memory already, the gradient is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dsinga.base import buffers
from dsinga.cluster.server import Push, Slice
from dsinga.cluster.transport.interface import URGENT, Reply, Transport
from dsinga.cluster.transport.shared_buffer import create_shared_buffer, offsets
from dsinga.cluster.transport.shared_memory import SharedMemoryTransport
from dsinga.cluster.worker.config import WorkerConfig
from dsinga.cluster.worker.group_links import GroupLinks
from dsinga.ops import Array, SparseRows


class SendBuffer:
    """Shared memory for gradients of ``nbytes`` bytes each, which servers on this host read.

    Raises OSError if memory cannot be shared.
    """

    def __init__(self, nbytes: Sequence[int]):
        sizes = {number: buffers.base_bytes(size) for number, size in enumerate(nbytes)}
        starts, total = offsets(sizes)
        self.buffer = create_shared_buffer(total, published=True)
        self.bases: dict[int, list[np.ndarray]] = {}
        for number, start in starts.items():
            self.bases.setdefault(sizes[number], []).append(self.buffer.view(start, sizes[number]))

    def holds(self, array: Array | SparseRows) -> bool:
        """Whether an array is in this memory."""
        return isinstance(array, np.ndarray) and self.buffer.offset_of(array) is not None


def open_send_buffer(
    transports: Mapping[int, Transport], slices: Iterable[Slice], shapes: Mapping[str, Sequence[int]]
) -> SendBuffer | None:
    """Allocate shared memory for gradients, for the servers that are reached through shared memory.

    Returns None if no gradient needs it: sparse rows, and gradients smaller than the pool's arrays, are always copied.
    """
    shared = {server for server, transport in transports.items() if isinstance(transport, SharedMemoryTransport)}
    params = dict.fromkeys(slice_.param for slice_ in slices if slice_.server in shared and not slice_.width)
    nbytes = [size for param in params if (size := 4 * prod(shapes[param])) >= buffers.SMALLEST]
    if not nbytes:
        return None
    send_buffer = SendBuffer(nbytes)
    for transport in transports.values():
        if isinstance(transport, SharedMemoryTransport):
            transport.publish(send_buffer.buffer)
    send_buffer.buffer.close()
    return send_buffer


class WorkerId(NamedTuple):
    """Identifies a worker by its group's generation, its group and number, and has the group's size.

    If the group's workers are blocks (``in_tree``), it may be ``blocks`` of them, from ``number`` on.
    """

    generation: int
    group: int
    number: int
    workers: int
    blocks: int = 1
    in_tree: bool = False


class ServerClient:
    """A worker's client of a server (:class:`dsinga.cluster.server.service.ShardService`), used by one thread."""

    def __init__(self, transport: Transport, worker: WorkerId, device: int | None = None):
        self.transport, self._device = transport, device
        self.worker = worker
        self._send_buffer: SendBuffer | None = None
        self._unreleased: dict[int, Array] = {}  # gradients in the send buffer that the server may still read

    def shares_gpu(self) -> bool:
        """Whether the server keeps its slices on the worker's GPU, not in host memory."""
        return not self.crosses_process and self._device in [*map(int, self.transport.call("gpu").result())]

    @property
    def crosses_process(self) -> bool:
        """Whether the server is in another process."""
        return self.transport.crosses_process

    def use_send_buffer(self, send_buffer: SendBuffer) -> None:
        """Send gradients in ``send_buffer``, which the server has mapped, without a copy."""
        self._send_buffer = send_buffer

    @property
    def crosses_host(self) -> bool:
        """Whether the server is on another host."""
        return self.transport.crosses_host

    def move(self, memory: Mapping[int, np.ndarray]) -> None:
        """Ask a server of this process to keep slices' values in this memory, by slice id."""
        assert not self.crosses_process
        self.transport.call("move", [list(memory)], list(memory.values())).result()

    def pull(
        self, ids: Sequence[int], version: int, since: Mapping[int, int], into: Sequence[np.ndarray] = (),
        priority: int = URGENT,
    ) -> ValuesReply:  # fmt: skip
        """Request the values of slices at ``version``.

        ``since`` maps slice ids to the caller's versions; the reply may contain only changed rows of these slices.
        ``into`` and ``priority`` are as in :meth:`Transport.call`.
        """
        fields = [ids, version, self.worker.group, list(since.items())]
        reply = self.transport.call("pull", fields, into=into, priority=priority)
        return ValuesReply(reply, ids, self._unreleased)

    def push(self, step: int, gradients: Mapping[int, Array], skip: bool = False, priority: int = URGENT) -> None:
        """Send gradients by slice id, which the server may overwrite; with ``skip``, count a step without changes."""
        self._send("push", step, gradients, skip, priority=priority)

    def push_pull(
        self, step: int, gradients: Mapping[int, Array], since: Mapping[int, int], skip: bool,
        into: Sequence[np.ndarray] = (), priority: int = URGENT,
    ) -> ValuesReply:  # fmt: skip
        """Do :meth:`push`, and :meth:`pull` the resulting values."""
        reply = self._send("push_pull", step, gradients, skip, list(since.items()), into=into, priority=priority)
        return ValuesReply(reply, list(gradients), self._unreleased)

    def squares(self, step: int) -> Reply:
        """Request the sums of squares of the summed gradients of ``step``, float64, by slice in order."""
        return self.transport.call("squares", [list(self._header(step))])

    def clip(self, step: int, factor: float) -> None:
        """Let the server update its slices by their gradients of ``step`` times ``factor``."""
        self.transport.call("clip", [list(self._header(step)), factor])

    def _header(self, step: int, skip: bool = False) -> Push:
        worker = self.worker
        return Push(worker.generation, worker.group, step, worker.number, skip, worker.blocks)

    def collective(self, kind: str, key: str, array: Array, links: GroupLinks | None = None) -> Reply:
        """Contribute an array to "all_reduce" or "all_gather" of the group; the reply has the result.

        The array goes through the server, or if there are ``links``, to the other workers.
        """
        worker = self.worker
        if worker.in_tree and kind == "all_reduce":
            kind = "tree_reduce"
        if links is not None:
            return links.add(kind, key, array)
        fields = [kind, key, *worker[:3], list(range(worker.workers)), worker.blocks]
        return self.transport.call("collective", fields, [array])

    def _send(
        self, method: str, step: int, gradients: Mapping[int, Array], skip: bool, *fields: Any, **options: Any
    ) -> Reply:
        fields = list(self._header(step, skip)), list(gradients), *fields
        if skip:
            return self.transport.call(method, fields, **options)
        if self._send_buffer is not None:
            for id, gradient in gradients.items():
                if self._send_buffer.holds(gradient):
                    self._unreleased[id] = gradient
        return self.transport.call(method, fields, list(gradients.values()), without_copy=True, **options)


class ValuesReply:
    """The reply to a pull, values by slice id; once it has arrived, these slices' gradients may change."""

    def __init__(self, reply: Reply, ids: Sequence[int], unreleased: dict[int, Array]):
        self._reply, self._ids, self._unreleased = reply, ids, unreleased

    def done(self) -> bool:
        """Whether the values, or an error instead, have arrived."""
        return self._reply.done()

    def result(self, timeout: float | None = None) -> dict[int, Array]:
        """Return the values. Raises TimeoutError after ``timeout`` seconds, and the call's error."""
        values = self._reply.result(timeout)
        for id in self._ids:
            self._unreleased.pop(id, None)
        return dict(zip(self._ids, values, strict=True))


def gradient_memory(
    config: WorkerConfig, transports: Mapping[int, Transport], clients: Mapping[int, ServerClient],
    slices: Sequence[Slice], shapes: Mapping[str, Sequence[int]],
) -> dict[int, list[np.ndarray]]:  # fmt: skip
    """Return memory for a worker's gradients, by size, for :func:`dsinga.base.buffers.use_bases`.

    Servers that share memory with this process read gradients where they are computed. For other hosts, the memory is
    for gradients that are too large for the pool of result arrays.
    """
    send_buffer = open_send_buffer(transports, slices, shapes)
    if send_buffer is not None:
        for client in clients.values():
            client.use_send_buffer(send_buffer)
        return send_buffer.bases
    params = sorted({slice_.param for slice_ in slices if not slice_.width})
    memory: dict[int, list[np.ndarray]] = {}
    if any(transport.crosses_host for transport in transports.values()):
        for size in (buffers.base_bytes(4 * prod(shapes[name])) for name in params):
            if size > buffers.LARGEST:
                memory.setdefault(size, []).append(np.empty(size, np.uint8))
    elif not config.updater.conf.clip_global_norm and config.topology.workers == config.topology.groups == 1:
        memory = buffers.few_bases(4 * prod(shapes[name]) for name in params)
    return memory  # with clip_global_norm all gradients wait for the last one
