"""Reuses the memory of arrays that kernels return, because every iteration needs the same shapes.

Every array is a view of a *base*, an array of bytes. Every view, memoryview or DLPack export of an array refers to its
base. A base is free again once nothing refers to it. All threads share one pool. A thread may also have its own bases,
for instance in shared memory, and uses them first. CPython's reference counts show which of these are free.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes: one AVX-512 register, one cache line
SMALLEST = 32 * 1024  # bytes; smaller arrays come from malloc, which is quick and returns memory that is in the caches
# Bytes; larger arrays are not pooled, as they would be idle mostly. A lower limit costs time for new pages.
LARGEST = 128 * 1024 * 1024
LARGE = 256 * 1024  # bytes
CHUNK = 128 * 1024 * 1024  # bytes of a chunk, which take memory when arrays use them
SHIFT = 48  # bits of an offset in a chunk
IDLE_LIMIT = 512 * 1024 * 1024  # bytes; above, a new chunk replaces those that are free

ONE_BASE = 1 << 20  # bytes; larger arrays take turns in one memory where that is asked for

_pointer = ctypes.c_size_t.from_address
_HEAD = object.__basicsize__  # bytes before the fields of an object's own type
_probe = [np.empty(0)]
_IDLE = sys.getrefcount(_probe[0])  # the count of an object that only a list refers to


class ResultPool:
    """Memory of arrays, in chunks of which each array has a part (its base), as malloc would.

    ``new`` allocates a chunk. A part is free again once no array refers to it, and joins its free neighbours. An array
    gets the smallest free part that is large enough. Small arrays have chunks of their own, with odd numbers, so free
    parts of large arrays stay whole. A part begins at ``chunk << SHIFT | offset``, so parts of two chunks are no
    neighbours.
    """

    def __init__(self, new: Callable[[int], memoryview] = lambda size: np.empty(size, np.uint8).data) -> None:
        self.lock = threading.Lock()
        self._is_to_clear, self._new = False, new
        self._forget()

    def renew(self) -> None:
        """Start again in a forked process, at whose start another thread may have had the lock."""
        self.lock = threading.Lock()
        self._forget()

    def clear(self) -> None:
        """Give back the chunks that no array uses.

        The garbage collector may call this in a thread that has the lock, which then gives them back afterwards.
        """
        self._is_to_clear = True
        while self._is_to_clear and self.lock.acquire(blocking=False):
            try:
                self._is_to_clear = False
                self._take_back()
                self._drop_free_chunks()
            finally:
                self.lock.release()

    def _forget(self) -> None:
        """Forget all chunks; each lives on while an array refers to it."""
        self._chunks: dict[int, memoryview] = {}  # not arrays, which would be the base of their parts' views
        self._touched: dict[int, int] = {}  # how much of each chunk arrays have had, so that it takes memory
        self._free: tuple[list[tuple[int, int]], ...] = [], []  # parts of even and odd chunks, as (size, start), sorted
        self._stops: dict[int, int] = {}  # of free parts, by their start
        self._starts: dict[int, int] = {}  # and the reverse
        self._used: dict[int, tuple[weakref.ref[np.ndarray], int, int]] = {}  # by the id of the reference
        self._returned: deque[weakref.ref[np.ndarray]] = deque()  # appended to by any thread, at any time
        self._in_use = 0

    @property
    def size(self) -> int:
        """How many bytes arrays take, or have taken before."""
        return sum(self._touched.values())

    def take(self, size: int) -> np.ndarray:
        """Return a block of memory of at least ``size`` bytes."""
        with self.lock:
            try:
                self._take_back()
                base = self._taken(-(-size // ALIGNMENT) * ALIGNMENT)
            except BaseException:  # an interrupt may have left the parts in disorder
                self._forget()
                raise
        if self._is_to_clear:
            self.clear()
        return base

    def _taken(self, size: int) -> np.ndarray:
        free = self._free[size < LARGE]
        place = bisect_left(free, (size, 0))
        if place == len(free):
            self._grow(size)
            place = bisect_left(free, (size, 0))
        _, start = free[place]
        stop = self._remove(start)
        if stop > start + size:
            self._add(start + size, stop)
        chunk, offset = start >> SHIFT, start & (1 << SHIFT) - 1
        self._touched[chunk] = max(self._touched[chunk], offset + size)
        self._in_use += size
        base = np.frombuffer(self._chunks[chunk], np.uint8, size, offset)
        reference = weakref.ref(base, self._returned.append)
        self._used[id(reference)] = reference, start, start + size
        return base

    def _take_back(self) -> None:
        """Free the parts of arrays that are gone."""
        while self._returned:
            _, start, stop = self._used.pop(id(self._returned.popleft()))
            self._in_use -= stop - start
            if start in self._starts:
                start = self._starts[start]
                self._remove(start)
            if stop in self._stops:
                stop = self._remove(stop)
            self._add(start, stop)

    def _grow(self, size: int) -> None:
        """Add a chunk; first drop the free ones if too much memory is idle."""
        if self.size - self._in_use > IDLE_LIMIT:
            self._drop_free_chunks()
        try:
            memory = self._new(max(size, CHUNK))
        except MemoryError:  # of a limit of the address space
            self._drop_free_chunks()
            memory = self._new(size)
        chunk = max(self._chunks, default=0) // 2 * 2 + 2 + (size < LARGE)
        self._chunks[chunk], self._touched[chunk] = memory, 0
        self._add(chunk << SHIFT, self._end(chunk))

    def _drop_free_chunks(self) -> None:
        for chunk in [chunk for chunk in self._chunks if self._stops.get(chunk << SHIFT) == self._end(chunk)]:
            self._remove(chunk << SHIFT)
            del self._chunks[chunk], self._touched[chunk]

    def _end(self, chunk: int) -> int:
        return (chunk << SHIFT) + self._chunks[chunk].nbytes

    def _add(self, start: int, stop: int) -> None:
        insort(self._free[start >> SHIFT & 1], (stop - start, start))
        self._stops[start], self._starts[stop] = stop, start

    def _remove(self, start: int) -> int:
        """Remove a free part, and return where it ends."""
        stop = self._stops.pop(start)
        free = self._free[start >> SHIFT & 1]
        del self._starts[stop], free[bisect_left(free, (stop - start, start))]
        return stop


class ThreadBases(threading.local):
    """A thread's own memory blocks, which its new arrays use first, and its hook."""

    bases: Mapping[int, Sequence[np.ndarray]] = {}
    hook: Callable[[np.ndarray], Any] | None = None


def _private_pages(size: int) -> memoryview:
    """Allocate memory in small pages: huge ones take longer to clear where each is used once, as kept fields do."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return np.empty(size, np.uint8).data
    try:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a forked process has its own copy
    except OSError as error:
        raise MemoryError(f"{size} bytes for kept numbers: {error}") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memoryview(memory)


pool = ResultPool()
_lasting = ResultPool(_private_pages)
if hasattr(os, "register_at_fork"):  # here, since what is registered is kept for good
    os.register_at_fork(after_in_child=pool.renew)
    os.register_at_fork(after_in_child=_lasting.renew)
_thread_bases = ThreadBases()


@contextmanager
def use_bases(bases: Mapping[int, Sequence[np.ndarray]]) -> Iterator[None]:
    """Let this thread's new arrays use the memory blocks ``bases``, by size in bytes, within the context.

    Sizes are as from :func:`base_bytes`; only its sequence may refer to a base. Threads may use the same bases.
    """
    before, _thread_bases.bases = _thread_bases.bases, bases
    try:
        yield
    finally:
        _thread_bases.bases = before


def few_bases(nbytes: Iterable[int], count: int = 1) -> dict[int, list[np.ndarray]]:
    """Let large arrays of these sizes share ``count`` blocks of memory, one after another; for :func:`use_bases`."""
    sizes = [base_bytes(size) for size in nbytes if size > ONE_BASE]
    return dict.fromkeys(sizes, [np.empty(max(sizes, default=0), np.uint8) for _ in range(count)])


def clear() -> None:
    """Give back the memory that no array uses at the end of a run."""
    pool.clear()
    _lasting.clear()


def set_hook(hook: Callable[[np.ndarray], Any] | None) -> None:
    """Let ``hook`` replace each new array of the calling thread, for instance while a pass is recorded."""
    _thread_bases.hook = hook


def base_bytes(nbytes: int) -> int:
    """Return how large the memory block behind an array of ``nbytes`` bytes is."""
    return nbytes + ALIGNMENT


def empty(shape: tuple[int, ...], channels_last: bool = False, dtype: Any = np.float32) -> Any:
    """Return an uninitialised array of ``shape``, in reused memory: C-contiguous, or channels-last (B, C, H, W)."""
    if channels_last:
        batch, channels, *sizes = shape
        return empty((batch, *sizes, channels), dtype=dtype).transpose(0, -1, *range(1, len(sizes) + 1))
    size = prod(shape) * np.dtype(dtype).itemsize
    hook = _thread_bases.hook
    if size < SMALLEST:
        return np.empty(shape, dtype) if hook is None else hook(np.empty(shape, dtype))
    base_size = base_bytes(size)
    own, base = _thread_bases.bases.get(base_size), None
    if own:
        with pool.lock:  # threads may share bases
            base = _free(own)
    if base is None:
        base = np.empty(base_size, np.uint8) if size > LARGEST else pool.take(base_size)
    array = np.ndarray(shape, dtype, base, -address(base) % ALIGNMENT)
    return array if hook is None else hook(array)


def lasting(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array for numbers that are kept for long, so they do not cut up the memory of batches."""
    size = prod(shape) * np.dtype(dtype).itemsize
    base = _lasting.take(size) if SMALLEST <= size <= LARGEST else np.empty(size, np.uint8)
    return np.ndarray(shape, dtype, base)


def _free(bases: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return a base that is free as a new array, which belongs to one user of the memory, as those of the pool do."""
    for index in range(len(bases)):
        if sys.getrefcount(bases[index]) == _IDLE:
            return np.frombuffer(bases[index].data, np.uint8)
    return None


def address(x: np.ndarray) -> int:
    """Return the memory address of an array's first number, ten times faster than ``x.ctypes.data``."""
    return _pointer(id(x) + _HEAD).value


def like(x: np.ndarray) -> Any:
    """Return an uninitialised array with the shape, layout and dtype of x (C-contiguous or channels-last)."""
    return empty(x.shape, channels_last=not x.flags.c_contiguous, dtype=x.dtype)
