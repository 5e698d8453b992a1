"""What each thread needs to call oneDNN: OpenMP threads, stream, scratch memory, cached kernels, signal stack."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dsinga.base.buffers import ALIGNMENT
from dsinga.base.cores import available_cores
from dsinga.ops.onednn.library import (
    Handle,
    Unsupported,
    engine,
    get_omp_threads,
    lib,
    limits_spinning,
    quick_sgemm,
    set_omp_threads,
)
from dsinga.ops.onednn.library import sgemm as full_sgemm
from dsinga.ops.onednn.waiting import SpareThreads, SpinLimiter
from dsinga.ops.recorded_array import Recorder, recorder
from dsinga.ops.types import NotCapturable

KERNELS = 2048  # kept by one thread; the oldest is dropped first
# A kernel below both limits takes no longer than to wake another thread. It uses one core and keeps the interpreter's
# lock, for which the thread might have to wait afterwards.
SMALL_OPERATIONS, SMALL_BYTES = 2_000_000, 300_000

Kernel = TypeVar("Kernel")

SIGNAL_STACK = 256 * 1024  # bytes: the registers of AMX take 11 KB; pages that are not used take no memory
DISABLED = 2  # SS_DISABLE


class Stack(ctypes.Structure):
    """Linux's C struct ``stack_t``, for a signal stack."""

    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


class SignalStack:
    """Gives the thread an alternate signal stack, unless it has one; on Linux only.

    In oneDNN's x86-64 products, until the fix of its issue 4845, the stack pointer register holds a heap array's
    address. A signal such as Ctrl+C would overwrite memory below that array.
    """

    def __init__(self) -> None:
        self.start = 0
        if sys.platform != "linux" or not current_stack().flags & DISABLED:
            return
        self._memory = mmap.mmap(-1, SIGNAL_STACK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(self.start, 0, SIGNAL_STACK)), None)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # names of this module are None by then
            return
        if self.start and current_stack().start == self.start:  # at the end of the thread, by the thread itself
            ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(None, DISABLED, 0)), None)


def current_stack() -> Stack:
    """Return the calling thread's alternate signal stack."""
    stack = Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack))
    return stack


class Arena:
    """Scratch memory that grows to the largest request; valid for one call of one kernel."""

    def __init__(self) -> None:
        self.array = np.empty(0, np.uint8)

    def reserve(self, size: int) -> None:
        if size > self.array.size:
            memory = np.empty(size + ALIGNMENT, np.uint8)
            self.array = memory[-memory.ctypes.data % ALIGNMENT :][:size]


class Team:
    """Sets how many OpenMP threads a kernel uses: ``size`` for large ones, 1 for small ones.

    After a fork a child computes with one thread if its parent had several, because OpenMP would wait for them.
    """

    most = sys.maxsize
    has_started = False

    def __init__(self) -> None:
        self.current = get_omp_threads()
        self.size = min(self.current, available_cores(), Team.most)

    def use(self, count: int) -> None:
        """Set the number of threads for making or running the next kernel."""
        if count != self.current:
            set_omp_threads(count)
            self.current = count
        if count > 1:
            Team.has_started = True


class ThreadState(threading.local):
    """oneDNN's objects and scratch memory of one thread.

    Attributes:
        last_rounded: which array was last rounded to bfloat16, its memory and the result, as weak references.
    """

    def __init__(self) -> None:
        self.signal_stack = SignalStack()
        self.team = Team()
        self.stream = Handle("stream", "stream_create", engine, 1)
        self.scratchpad = Arena()
        self.packed_weights = Arena()
        self.kernels: dict[Any, Any] = {}
        self.last_rounded: tuple[Any, Callable[[], Any], Callable[[], Any]] = None, _nothing, _nothing


def _nothing() -> None:
    return None


thread_state = ThreadState()


def _use_one_thread_in_child() -> None:
    if Team.has_started:
        Team.most = 1
        set_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_use_one_thread_in_child)
spin_limiter = SpinLimiter(lambda: SpareThreads(lib)) if limits_spinning and hasattr(lib, "GOMP_parallel") else None


def get_kernel(make: Callable[..., Kernel], *arguments: Any) -> Kernel | None:
    """Return the calling thread's cached kernel, made on first use; None if oneDNN does not support it."""
    key = (make, arguments)
    kernels = thread_state.kernels
    try:
        return kernels[key]
    except KeyError:
        pass
    try:
        kernel = make(*arguments)
    except Unsupported:
        kernel = None
    if len(kernels) >= KERNELS:
        del kernels[next(iter(kernels))]
    kernels[key] = kernel
    return kernel


def set_threads(count: int) -> None:
    """Let large kernels of the calling thread use ``count`` cores."""
    count = min(count, Team.most)
    if count > 1 and spin_limiter is not None:
        spin_limiter.check()
    if count != thread_state.team.size:
        thread_state.team.size = count
        thread_state.kernels.clear()  # a primitive is made for a number of threads


def is_small(operations: int, nbytes: int) -> bool:
    """Whether a kernel of this size is too small for more than one thread."""
    return operations <= SMALL_OPERATIONS and nbytes <= SMALL_BYTES


def sgemm(
    transpose_a: bytes, transpose_b: bytes, rows: int, columns: int, depth: int, *rest: Any, memory: Sequence[Any]
) -> None:
    """Multiply the matrices in ``memory`` by oneDNN's ``dnnl_sgemm``, large ones with all threads."""
    small = is_small(2 * rows * columns * depth, 4 * (rows * depth + depth * columns + rows * columns))
    call = quick_sgemm if small else full_sgemm
    thread_state.team.use(1 if small else thread_state.team.size)
    status = call(transpose_a, transpose_b, rows, columns, depth, *rest)
    if status:
        raise RuntimeError(f"oneDNN: sgemm failed with status {status}")
    if (recorded := recorder()) is not None:
        values = transpose_a, transpose_b, rows, columns, depth, *rest
        arguments = [kind(value) for kind, value in zip(call.argtypes, values, strict=True)]  # converted once
        note(recorded, partial(call, *arguments), 1 if small else thread_state.team.size, *memory)


def note(recorder: Recorder, call: Callable[[], Any], threads: int, *memory: Any) -> None:
    """Add a call of oneDNN to a recorded pass; refuse a call with several threads."""
    if threads > 1:
        raise NotCapturable("its kernels are large")
    if not recorder.calls_library:
        recorder.calls_library = True
        recorder.calls.insert(0, lambda: thread_state.team.use(1))  # first, of the thread that replays it
    recorder.add(call, *memory)
