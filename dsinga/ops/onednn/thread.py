"""What each thread has of its own: a stream, scratch memory, and the kernels that it made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dsinga.ops.buffers import ALIGNMENT
from dsinga.ops.onednn.descriptors import Handle, Unsupported, engine
from dsinga.ops.onednn.library import get_omp_threads, set_omp_threads

KERNELS = 2048  # kept by one thread; the oldest goes first

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


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stream = Handle("stream", "stream_create", engine, 1)
        self.scratchpad = Arena()
        self.packed = Arena()
        self.kernels: dict[Any, Any] = {}


this = _Thread()


def get_kernel(make: Callable[..., Kernel], *arguments: Any) -> Kernel | None:
    """Return ``make(*arguments)``, made once by each thread; None if the library does not support the case."""
    key = (make, arguments)
    kernels = this.kernels
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
    """Let kernels that the calling thread runs use ``count`` cores."""
    if count != get_omp_threads():
        set_omp_threads(count)
        this.kernels.clear()  # a primitive divides its work when it is made
