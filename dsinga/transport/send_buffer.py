"""Where a partition has gradients that go to servers in other processes of its host: in memory that these see, too.

While it computes, the partition lends the pool of result arrays a base in this memory for each such gradient. So the
product that makes a gradient writes it there, and nobody copies it: a message says where it lies. A feature of the same
size may have taken the base before; then that gradient lies elsewhere, and is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsinga.ops import Array, buffers
from dsinga.transport.shared_buffer import create_shared_buffer, offsets


class SendBuffer:
    """Memory for arrays of so many bytes, for :func:`dsinga.ops.buffers.use_bases` as ``bases``, seen by ``segment``.

    Raises OSError where memory cannot be shared.
    """

    def __init__(self, nbytes: Sequence[int]):
        rooms = {number: buffers.base_bytes(size) for number, size in enumerate(nbytes)}
        places, size = offsets(rooms)
        self.segment = create_shared_buffer(size)
        self.bases: dict[int, list[np.ndarray]] = {}
        for number, at in places.items():
            self.bases.setdefault(rooms[number], []).append(self.segment.view(at, rooms[number]))

    def place(self, array: Array) -> int | None:
        """Return where in the segment an array begins, in bytes, that is C-contiguous; None if it lies elsewhere."""
        at = buffers.address(array) - buffers.address(self.segment.array)
        return at if 0 <= at <= self.segment.size - array.nbytes and array.flags.c_contiguous else None
