"""A stack for signal handlers of a thread that runs kernels of oneDNN, apart from the thread's own stack.

In the library's products for x86-64 (``gemm:jit``, ``sgemm``), until its issue 4845 was mended in 2026, the register of
the stack pointer holds the address of an array on the heap. A signal that arrives meanwhile, such as Ctrl+C, is written
below that array, over memory of others. Python's handlers use the alternate stack of a thread, if it has one.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

SIZE = 256 * 1024  # bytes: the registers of AMX take 11 KB; pages that are not used take no memory
DISABLED = 2  # SS_DISABLE


class Stack(ctypes.Structure):
    """``stack_t`` of Linux."""

    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


class SignalStack:
    """The alternate stack of the thread that makes it, unless the thread has one already; on Linux only."""

    def __init__(self) -> None:
        self.start = 0
        if sys.platform != "linux" or not current_stack().flags & DISABLED:
            return
        self._memory = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(self.start, 0, SIZE)), None)

    def __del__(self) -> None:
        if self.start and current_stack().start == self.start:  # at the end of the thread, by the thread itself
            ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(None, DISABLED, 0)), None)


def current_stack() -> Stack:
    """Return the alternate stack of the calling thread."""
    stack = Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack))
    return stack
