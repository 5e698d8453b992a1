"""Shared memory for the gradients of a worker, which servers in other processes of its host map and read.

While a worker computes, the pool of result arrays (:mod:`dsinga.ops.buffers`) takes memory for its gradients from here.
So the matrix product that computes a gradient writes it into shared memory, and only its offset is sent. If a feature
of the same size has taken the memory before, the gradient is elsewhere and is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from dsinga.ops import Array, SparseRows, buffers
from dsinga.server import Slice
from dsinga.transport.interface import Transport
from dsinga.transport.shared_buffer import create_shared_buffer, offsets
from dsinga.transport.shared_memory import SharedMemoryTransport


class SendBuffer:
    """Shared memory for arrays of ``nbytes`` bytes each, published in ``buffer``.

    ``bases`` is the argument of :func:`dsinga.ops.buffers.use_bases`. Raises OSError where memory cannot be shared.
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
    transports: Sequence[Transport], slices: Iterable[Slice], shapes: Mapping[str, Sequence[int]]
) -> SendBuffer | None:
    """Allocate shared memory for gradients, for the servers that are reached through shared memory.

    ``transports`` lead to the servers, in order. The buffer has memory for the whole gradient of each param of which
    such a server has a slice. Returns None if there is no such param: sparse rows, and gradients smaller than the
    arrays of the pool, are always copied.
    """
    shared = {server for server, transport in enumerate(transports) if isinstance(transport, SharedMemoryTransport)}
    params = dict.fromkeys(slice_.param for slice_ in slices if slice_.server in shared and not slice_.width)
    nbytes = [size for param in params if (size := 4 * prod(shapes[param])) >= buffers.SMALLEST]
    if not nbytes:
        return None
    send_buffer = SendBuffer(nbytes)
    for transport in transports:
        if isinstance(transport, SharedMemoryTransport):
            transport.publish(send_buffer.buffer)
    send_buffer.buffer.close()
    return send_buffer
