"""Reuses the memory of arrays that kernels return, because every iteration needs the same shapes.

Every array is a view of a *base*, an array of bytes. A base is free again once only its pool refers to it. CPython's
reference counts show this exactly, because every view, memoryview or DLPack export refers to the base. All threads
share one pool. A thread may also have its own bases, which it uses first, for instance in shared memory.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes: one AVX-512 register, one cache line
SMALLEST = 32 * 1024  # bytes; smaller arrays come from malloc, which is quick and returns memory that is in the caches
# Bytes; larger arrays are not pooled, as they would be idle mostly. A lower limit costs time for new pages.
LARGEST = 128 * 1024 * 1024
BUCKET = 1024  # bases of one size; results beyond that number get memory that is not pooled
IDLE_LIMIT = 512 * 1024 * 1024  # bytes; above, asking for a new base drops the free ones of every size

ONE_BASE = 1 << 20  # bytes; larger arrays take turns in one memory where that is asked for

_pointer = ctypes.c_size_t.from_address
_HEAD = object.__basicsize__  # bytes before the fields of an object's own type
_probe = [np.empty(0)]
_IDLE = sys.getrefcount(_probe[0])  # the count of an object that only a list refers to


def size_class(size: int) -> int:
    """Round ``size`` up to one of four sizes per power of two, so arrays of similar sizes share memory.

    A base is at most a quarter larger than its array.
    """
    step = 1 << max(0, size.bit_length() - 3)
    return -(-size // step) * step


class ResultPool:
    """Blocks of memory (bases) for arrays, reused once no array refers to them; by size in bytes."""

    def __init__(self) -> None:
        self.buckets: dict[int, list[np.ndarray]] = {}
        self.lock = threading.Lock()

    def take(self, size: int) -> np.ndarray:
        """Return a block of memory of at least ``size`` bytes, a free one if possible."""
        size = size_class(size)
        with self.lock:
            bucket = self.buckets.get(size, ())
            free = _free(bucket)
            if free is None:  # one of the next class, as the sizes of arrays may differ at the border of two
                free = _free(self.buckets.get(size_class(size + 1), ()))
            if free is not None:
                return free
            pooled = sum(each * len(bases) for each, bases in self.buckets.items())
            if pooled > IDLE_LIMIT and self.idle_bytes() > IDLE_LIMIT:
                self.drop_idle()
            base = np.empty(size, np.uint8)
            if len(bucket) < BUCKET:
                self.buckets.setdefault(size, []).append(base)
            return base

    def idle_bytes(self) -> int:
        """Return how many bytes of memory are free for new arrays."""
        return sum(
            size * sum(sys.getrefcount(bucket[index]) == _IDLE for index in range(len(bucket)))
            for size, bucket in self.buckets.items()
        )

    def drop_idle(self) -> None:
        """Return the free memory to the operating system."""
        self.buckets = {
            size: [bucket[index] for index in range(len(bucket)) if sys.getrefcount(bucket[index]) > _IDLE]
            for size, bucket in self.buckets.items()
        }


class ThreadBases(threading.local):
    """A thread's own memory blocks, which its new arrays use first, and its hook."""

    bases: Mapping[int, Sequence[np.ndarray]] = {}
    hook: Callable[[np.ndarray], Any] | None = None


pool = ResultPool()
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
    """Give back the memory of all arrays at the end of a run."""
    pool.buckets = {}


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
        with pool.lock:
            base = _free(own)
    if base is None:
        base = np.empty(base_size, np.uint8) if size > LARGEST else pool.take(base_size)
    array = np.ndarray(shape, dtype, base, -address(base) % ALIGNMENT)
    return array if hook is None else hook(array)


def _free(bases: Sequence[np.ndarray]) -> np.ndarray | None:
    for index in range(len(bases)):
        if sys.getrefcount(bases[index]) == _IDLE:
            return bases[index]
    return None


def address(x: np.ndarray) -> int:
    """Return the memory address of an array's first number, ten times faster than ``x.ctypes.data``."""
    return _pointer(id(x) + _HEAD).value


def like(x: np.ndarray) -> Any:
    """Return an uninitialised array with the shape, layout and dtype of x (C-contiguous or channels-last)."""
    return empty(x.shape, channels_last=not x.flags.c_contiguous, dtype=x.dtype)
