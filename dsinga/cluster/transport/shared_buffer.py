"""Shared memory of processes on one host, which map the same anonymous file.

A buffer's file descriptor is sent through a socket (:mod:`dsinga.cluster.transport.channel`). The system frees the
memory when the last process that maps it ends; the size of /dev/shm does not matter. Seals fix a buffer's size, and let
only the process that created a published buffer write into it.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import stat
import threading
from collections.abc import Mapping

import numpy as np

from dsinga.base.buffers import address
from dsinga.cluster.transport.message import aligned

with contextlib.suppress(ImportError):  # outside Unix, where no shared memory is created either
    import fcntl

# The least bytes of a buffer that asks the system for huge pages: fewer page faults and TLB misses.
HUGE = 1 << 21
# F_SEAL_FUTURE_WRITE of Linux, and F_SEAL_SEAL, F_SEAL_SHRINK and F_SEAL_GROW.
FUTURE_WRITE_SEAL, SIZE_SEALS = 0x10, 0x1 | 0x2 | 0x4


class SharedBuffer:
    """Memory that processes share: ``array``, uint8 (size,), zeros at first.

    Pages that are never written use no memory. The array and its views keep the memory alive; ``fd`` is needed only
    until other processes have mapped it.
    """

    def __init__(self, fd: int, size: int, writable: bool = True):
        self.fd, self.size = fd, size
        self._map = mmap.mmap(fd, max(size, 1), prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
        if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.array = self.view()

    def view(self, start: int = 0, size: int | None = None) -> np.ndarray:
        """Return a new array of ``size`` bytes from ``start``, which is not a view of ``array``."""
        return np.frombuffer(self._map, np.uint8, self.size - start if size is None else size, start)

    def offset_of(self, array: np.ndarray) -> int | None:
        """Return a C-contiguous array's offset in this buffer, in bytes; None if it is elsewhere."""
        at = address(array) - address(self.array)
        return at if 0 <= at <= self.size - array.nbytes and array.flags.c_contiguous else None

    def close(self) -> None:
        """Close the descriptor; the array stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def create_shared_buffer(size: int, published: bool = False) -> SharedBuffer:
    """Allocate a buffer of a fixed size; if ``published``, only this process can write to it.

    Raises OSError if there is no memory for it, AttributeError outside Linux.
    """
    fd = os.memfd_create("dsinga", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, max(size, 1))
        buffer = SharedBuffer(fd, size)
        if published:
            with contextlib.suppress(OSError):  # Linux before 5.1
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, FUTURE_WRITE_SEAL)
        with contextlib.suppress(OSError):  # such as emulated kernels
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SIZE_SEALS)
        return buffer
    except BaseException:
        os.close(fd)
        raise


def open_shared_buffer(fd: int, size: int, writable: bool = False) -> SharedBuffer:
    """Map a buffer that another process has created; the descriptor stays the caller's.

    Raises ValueError unless it is a file of ``size`` bytes with a sealed size.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size < max(size, 1):
        raise ValueError(f"a descriptor that is no shared memory of {size} bytes")
    if _seals_sizes() and fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SIZE_SEALS != SIZE_SEALS:
        raise ValueError("shared memory whose size may change")
    buffer = SharedBuffer(fd, size, writable)
    buffer.fd = -1
    return buffer


@functools.cache
def _seals_sizes() -> bool:
    buffer = create_shared_buffer(1)
    try:
        return fcntl.fcntl(buffer.fd, fcntl.F_GET_SEALS) & SIZE_SEALS == SIZE_SEALS
    except OSError:
        return False
    finally:
        buffer.close()


def offsets(sizes: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Lay blocks of memory out in one buffer; return each block's offset, by id, and the buffer's size."""
    starts, at = {}, 0
    for id in sorted(sizes):
        starts[id] = at
        at += aligned(sizes[id])
    return starts, at


class SharedArrays:
    """Float32 arrays of the given ``sizes``, by id, in one shared buffer.

    Raises OSError if there is no memory for them, AttributeError outside Linux.
    """

    def __init__(self, sizes: Mapping[int, int]):
        starts, total = offsets({id: 4 * size for id, size in sizes.items()})
        self.buffer = create_shared_buffer(total, published=True)
        self._arrays = {
            id: self.buffer.array[start : start + 4 * sizes[id]].view(np.float32) for id, start in starts.items()
        }
        self._filled: set[int] = set()

    def fill(self, values: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Copy first values into the arrays, unless they have some, and return the arrays."""
        for id in values.keys() - self._filled:
            self._arrays[id][:] = values[id]
            self._filled.add(id)
        return {id: self._arrays[id] for id in values}


class BufferPool:
    """The shared buffers of a connection by number, reused because new memory is slow. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: list[SharedBuffer] = []
        self._free: list[int] = []

    def take(self, size: int) -> tuple[int, SharedBuffer]:
        """Return the number of a free or new buffer of at least ``size`` bytes, and the buffer."""
        with self._lock:
            fitting = [number for number in self._free if self._buffers[number].size >= size]
            if fitting:
                number = min(fitting, key=lambda number: self._buffers[number].size)
                self._free.remove(number)
            else:
                number = len(self._buffers)
                self._buffers.append(create_shared_buffer(1 << (size - 1).bit_length()))
            return number, self._buffers[number]

    def give_back(self, number: int) -> None:
        """Mark a buffer as free, because no process uses it any more."""
        with self._lock:
            if number >= len(self._buffers) or number in self._free:
                raise ValueError(f"shared buffer {number} was not taken")
            self._free.append(number)
