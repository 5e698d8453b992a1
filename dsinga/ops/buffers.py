"""Result arrays from a pool: a training loop asks for the same shapes again and again.

The system maps fresh multi-megabyte arrays page by page on first touch, which costs more than most elementwise
kernels (three 8 MB results in a row: 3.4 ms fresh, 0.6 ms pooled), and aligns them badly. Here every array is a view of
a *base*; a base is free again once nothing but its pool refers to it, which CPython's reference counts tell exactly:
every view of a view, memoryview or DLPack export holds on to the base.

There is one pool for all threads: what one has computed another may use next (tests, predictions, the next run), and
with a pool for each thread the features of an iteration would be kept once for each. Who asks holds a lock; who lets go
of an array needs none, as that only ever turns a taken base into a free one. A thread may also have been lent bases,
which it takes first: in memory that other processes see, say.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from dsinga.ops.types import Array

ALIGNMENT = 64  # bytes: one AVX-512 register, one cache line
SMALLEST = 32 * 1024  # bytes; below, malloc is quick and hands back warm memory
# Bytes; above, the system gets the pages back: the largest gradient of AlexNet, 151 MB, would lie idle mostly. New
# pages have their price: with a limit of 32 MB its iteration takes a third longer.
LARGEST = 128 * 1024 * 1024
BUCKET = 256  # bases of one size; whoever keeps more results than that gets arrays of their own
IDLE_LIMIT = 512 * 1024 * 1024  # bytes; above, asking for a new base drops the free ones of every size

_pointer = ctypes.c_size_t.from_address
_HEAD = object.__basicsize__  # bytes that every object of the interpreter begins with
_probe = [np.empty(0)]
_IDLE = sys.getrefcount(_probe[0])  # the count of an object that only a list refers to


class _Pool:
    def __init__(self) -> None:
        self.buckets: dict[int, list[np.ndarray]] = {}
        self.lock = threading.Lock()

    def take(self, size: int) -> np.ndarray:
        """Return a base of ``size`` bytes: a free one, or a new one."""
        with self.lock:
            bucket = self.buckets.get(size, ())
            found = _free(bucket)
            if found is not None:
                return found
            if self.idle_bytes() > IDLE_LIMIT:
                self.drop_idle()
            base = np.empty(size, np.uint8)
            if len(bucket) < BUCKET:
                self.buckets.setdefault(size, []).append(base)
            return base

    def idle_bytes(self) -> int:
        """Return how many bytes wait for a taker."""
        return sum(
            size * sum(sys.getrefcount(bucket[index]) == _IDLE for index in range(len(bucket)))
            for size, bucket in self.buckets.items()
        )

    def drop_idle(self) -> None:
        """Give the bases that wait for a taker back to the system."""
        self.buckets = {
            size: [bucket[index] for index in range(len(bucket)) if sys.getrefcount(bucket[index]) > _IDLE]
            for size, bucket in self.buckets.items()
        }


class _Own(threading.local):
    lent: Mapping[int, Sequence[np.ndarray]] = {}


_pool = _Pool()
_own = _Own()


@contextmanager
def lent(bases: Mapping[int, Sequence[np.ndarray]]) -> Iterator[None]:
    """Have arrays that this thread asks for lie in these bases while they are free, by :func:`base_bytes` of them.

    A base is an array of bytes that is no view of another, of which nobody else keeps a reference.
    """
    before, _own.lent = _own.lent, bases
    try:
        yield
    finally:
        _own.lent = before


def base_bytes(nbytes: int) -> int:
    """Return how many bytes an array of so many takes of a base."""
    return nbytes + ALIGNMENT


def empty(shape: tuple[int, ...], channels_last: bool = False, dtype: Any = np.float32) -> Array:
    """Return an uninitialised array of ``shape``: C-contiguous, or an image (B, C, H, W) with channels-last strides.

    The array is the caller's for as long as it, or any view of it, is referred to.
    """
    if channels_last:
        batch, channels, height, width = shape
        return empty((batch, height, width, channels), dtype=dtype).transpose(0, 3, 1, 2)
    size = prod(shape) * np.dtype(dtype).itemsize
    if size < SMALLEST:
        return np.empty(shape, dtype)
    room = base_bytes(size)
    base = _free(_own.lent.get(room, ()))
    if base is None:
        base = np.empty(room, np.uint8) if size > LARGEST else _pool.take(room)
    return np.ndarray(shape, dtype, base, -address(base) % ALIGNMENT)


def _free(bases: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the first base that nothing refers to but ``bases``."""
    for index in range(len(bases)):
        if sys.getrefcount(bases[index]) == _IDLE:
            return bases[index]
    return None


def address(x: np.ndarray) -> int:
    """Return where the first number of x lies in memory, as ``x.ctypes.data`` does in ten times the time.

    In numpy's C API (``PyArrayObject_fields``) the pointer to the data comes first after the object's head.
    """
    return _pointer(id(x) + _HEAD).value


def like(x: Array) -> Array:
    """Return an uninitialised float32 array of the shape and layout of x, which is C-contiguous or channels-last."""
    return empty(x.shape, channels_last=not x.flags.c_contiguous)
