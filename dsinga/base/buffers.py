"""A memory pool for the result arrays of kernels, with the same shapes in every iteration.

Every array is a view of a *base*, an array of bytes. A base is free again once only its pool refers to it. CPython's
reference counts show this exactly, because every view, memoryview or DLPack export refers to the base.

All threads share one pool: with a pool for each thread, each would keep the memory of an iteration's features. A thread
may also have its own bases, which it uses first, for instance in shared memory.
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

    So arrays that vary in size from step to step, such as sequences, share bases. A base is at most a quarter larger
    than its array.
    """
    step = 1 << max(0, size.bit_length() - 3)
    return -(-size // step) * step


class ResultPool:
    """A pool of bases (memory blocks) by size in bytes, rounded up by :func:`size_class`."""

    def __init__(self) -> None:
        self.buckets: dict[int, list[np.ndarray]] = {}
        self.lock = threading.Lock()

    def take(self, size: int) -> np.ndarray:
        """Return a block of memory (a base) of at least ``size`` bytes, a free one if possible."""
        size = size_class(size)
        with self.lock:
            bucket = self.buckets.get(size, ())
            free = _free(bucket)
            if free is None:  # one of the next class, as the sizes of arrays may differ at the border of two
                free = _free(self.buckets.get(size_class(size + 1), ()))
            if free is not None:
                return free
            if self.idle_bytes() > IDLE_LIMIT:
                self.drop_idle()
            base = np.empty(size, np.uint8)
            if len(bucket) < BUCKET:
                self.buckets.setdefault(size, []).append(base)
            return base

    def idle_bytes(self) -> int:
        """Return the total size of the free bases, in bytes."""
        return sum(
            size * sum(sys.getrefcount(bucket[index]) == _IDLE for index in range(len(bucket)))
            for size, bucket in self.buckets.items()
        )

    def drop_idle(self) -> None:
        """Return the free bases to the operating system."""
        self.buckets = {
            size: [bucket[index] for index in range(len(bucket)) if sys.getrefcount(bucket[index]) > _IDLE]
            for size, bucket in self.buckets.items()
        }


class ThreadBases(threading.local):
    """A thread's own bases (memory blocks), used before the pool, by size in bytes, and its hook."""

    bases: Mapping[int, Sequence[np.ndarray]] = {}
    hook: Callable[[np.ndarray], Any] | None = None


pool = ResultPool()
_thread_bases = ThreadBases()


@contextmanager
def use_bases(bases: Mapping[int, Sequence[np.ndarray]]) -> Iterator[None]:
    """Let this thread's new arrays reuse free memory blocks of ``bases``, by size in bytes, within the context.

    Sizes are as from :func:`base_bytes`. Each base is an array of bytes, no view, and only its sequence refers to it.
    """
    before, _thread_bases.bases = _thread_bases.bases, bases
    try:
        yield
    finally:
        _thread_bases.bases = before


def one_base(nbytes: Iterable[int]) -> dict[int, list[np.ndarray]]:
    """Let large arrays of these sizes share one block of memory: return bases for :func:`use_bases`.

    For gradients of params that are applied as soon as they are computed. Smaller arrays are not included.
    """
    sizes = [base_bytes(size) for size in nbytes if size > ONE_BASE]
    return dict.fromkeys(sizes, [np.empty(max(sizes, default=0), np.uint8)])


def clear() -> None:
    """Give the pool's memory back at the end of a run: free bases now, others with their last array.

    It takes no lock, because a finalizer may call it while its thread is taking a base.
    """
    pool.buckets = {}


def set_hook(hook: Callable[[np.ndarray], Any] | None) -> None:
    """Let ``hook`` replace each new array of the calling thread; None ends that."""
    _thread_bases.hook = hook


def base_bytes(nbytes: int) -> int:
    """Return the bytes of the memory block behind an array of ``nbytes`` bytes."""
    return nbytes + ALIGNMENT


def empty(shape: tuple[int, ...], channels_last: bool = False, dtype: Any = np.float32) -> Any:
    """Return an uninitialised array of ``shape``: C-contiguous, or channels-last as an image (B, C, H, W).

    Its memory is not reused while the array, or any view of it, exists.
    """
    if channels_last:
        batch, channels, *sizes = shape
        return empty((batch, *sizes, channels), dtype=dtype).transpose(0, -1, *range(1, len(sizes) + 1))
    size = prod(shape) * np.dtype(dtype).itemsize
    hook = _thread_bases.hook
    if size < SMALLEST:
        return np.empty(shape, dtype) if hook is None else hook(np.empty(shape, dtype))
    base_size = base_bytes(size)
    base = _free(_thread_bases.bases.get(base_size, ()))
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
    """Return the address of the first number of x, ten times faster than ``x.ctypes.data``.

    In numpy's C API (``PyArrayObject_fields``) the pointer to the data comes first after the object's head.
    """
    return _pointer(id(x) + _HEAD).value


def like(x: np.ndarray) -> Any:
    """Return an uninitialised array with the shape, layout and dtype of x (C-contiguous or channels-last)."""
    return empty(x.shape, channels_last=not x.flags.c_contiguous, dtype=x.dtype)
