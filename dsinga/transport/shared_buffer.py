"""Memory that processes of one host share, by mapping the same anonymous file.

Nothing has a name that could outlive its run: who is to have a segment is handed its file descriptor through a socket
(:mod:`dsinga.transport.channel`), and the system takes the memory back with the last process that maps it, however
that ends. Nor does the size of /dev/shm matter, which is small in many containers.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Mapping

import numpy as np

# Where arrays begin: at multiples of a cache line, so that no two servers write to the same one.
ALIGNMENT = 64
# From this size on a segment is of huge pages where the system lets it: fewer faults, fewer misses of the TLB.
HUGE = 1 << 21


class SharedBuffer:
    """So many bytes at ``array``, uint8 (size,); zeros at first, and no memory is used for what is never written.

    The array, and views of it, keep the memory alive; ``fd`` is needed only as long as others are to get it.
    """

    def __init__(self, fd: int, size: int, writable: bool = True):
        self.fd, self.size = fd, size
        self._map = mmap.mmap(fd, max(size, 1), prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
        if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.array = self.view()

    def view(self, start: int = 0, size: int | None = None) -> np.ndarray:
        """Return another such array, of some of the bytes, which is no view of ``array``.

        Views of it refer to it, and not to ``array``: it goes when they go.
        """
        return np.frombuffer(self._map, np.uint8, self.size - start if size is None else size, start)

    def close(self) -> None:
        """Give up the descriptor; the array stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def create_shared_buffer(size: int) -> SharedBuffer:
    """Return a new segment. Raises OSError where there is no memory for it, AttributeError outside Linux."""
    fd = os.memfd_create("dsinga")
    try:
        os.ftruncate(fd, max(size, 1))
        return SharedBuffer(fd, size)
    except BaseException:
        os.close(fd)
        raise


def offsets(sizes: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Return where pieces of so many bytes begin in a segment, by the id of each, and how large that must be."""
    found, at = {}, 0
    for id in sorted(sizes):
        found[id] = at
        at += -(-sizes[id] // ALIGNMENT) * ALIGNMENT
    return found, at


class BufferPool:
    """Segments that are used again and again by one end of a connection, for a new one costs a fault for every page.

    Each has a number. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: list[SharedBuffer] = []
        self._free: list[int] = []

    def take(self, size: int) -> tuple[int, SharedBuffer]:
        """Return the smallest free segment of at least so many bytes, a new one if there is none."""
        with self._lock:
            fitting = [number for number in self._free if self._segments[number].size >= size]
            if fitting:
                number = min(fitting, key=lambda number: self._segments[number].size)
                self._free.remove(number)
            else:
                number = len(self._segments)
                self._segments.append(create_shared_buffer(1 << (size - 1).bit_length()))
            return number, self._segments[number]

    def give_back(self, number: int) -> None:
        """Have a segment free again: nobody looks at what is in it any more."""
        with self._lock:
            self._free.append(number)
