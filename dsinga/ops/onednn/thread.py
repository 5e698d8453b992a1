"""What each thread has of its own: OpenMP threads, a stream, scratch memory, and the kernels that it made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dsinga.ops.buffers import ALIGNMENT
from dsinga.ops.onednn.descriptors import Handle, Unsupported, engine
from dsinga.ops.onednn.library import get_omp_threads, quick_sgemm, set_omp_threads
from dsinga.ops.onednn.library import sgemm as full_sgemm

KERNELS = 2048  # kept by one thread; the oldest goes first
# A kernel that does no more than either takes some 40 us at most. That is what it takes to wake another thread: for
# such a kernel no second core is called, nor the interpreter given up, for which one may have to wait afterwards.
SMALL_OPERATIONS, SMALL_BYTES = 2_000_000, 300_000

Kernel = TypeVar("Kernel")


class Arena:
    """Scratch memory that grows to the largest size asked for; what is in it lasts for one call of one kernel."""

    def __init__(self) -> None:
        self.array = np.empty(0, np.uint8)

    def reserve(self, size: int) -> None:
        """Make room for ``size`` bytes."""
        if size > self.array.size:
            memory = np.empty(size + ALIGNMENT, np.uint8)
            self.array = memory[-memory.ctypes.data % ALIGNMENT :][:size]


class Team:
    """The OpenMP threads that the calling thread's kernels are given: ``size`` for large ones, 1 for small ones."""

    def __init__(self) -> None:
        self.size = self.current = get_omp_threads()

    def use(self, count: int) -> None:
        """Let the next kernel run, or be made, with ``count`` threads."""
        if count != self.current:
            set_omp_threads(count)
            self.current = count


class ThreadState(threading.local):
    """The library's objects and scratch memory of one thread."""

    def __init__(self) -> None:
        self.team = Team()
        self.stream = Handle("stream", "stream_create", engine, 1)
        self.scratchpad = Arena()
        self.packed_weights = Arena()
        self.kernels: dict[Any, Any] = {}


thread_state = ThreadState()


def get_kernel(make: Callable[..., Kernel], *arguments: Any) -> Kernel | None:
    """Return ``make(*arguments)``, made once by each thread; None if the library does not support the case."""
    key = (make, arguments)
    kernels = thread_state.kernels
    try:
        return kernels[key]
    except KeyError:
        pass
    try:
        made = make(*arguments)
    except Unsupported:
        made = None
    if len(kernels) >= KERNELS:
        del kernels[next(iter(kernels))]
    kernels[key] = made
    return made


def set_threads(count: int) -> None:
    """Let large kernels that the calling thread runs use ``count`` cores."""
    if count != thread_state.team.size:
        thread_state.team.size = count
        thread_state.kernels.clear()  # a primitive divides its work when it is made


def is_small(operations: int, nbytes: int) -> bool:
    """Whether a kernel that does so many operations on so many bytes is not worth more than one thread."""
    return operations <= SMALL_OPERATIONS and nbytes <= SMALL_BYTES


def sgemm(turn_a: bytes, turn_b: bytes, rows: int, columns: int, depth: int, *rest: Any) -> None:
    """Multiply matrices by ``dnnl_sgemm``, with as many threads as the product is worth."""
    small = is_small(2 * rows * columns * depth, 4 * (rows * depth + depth * columns + rows * columns))
    thread_state.team.use(1 if small else thread_state.team.size)
    status = (quick_sgemm if small else full_sgemm)(turn_a, turn_b, rows, columns, depth, *rest)
    assert status == 0, f"sgemm failed with status {status}"
