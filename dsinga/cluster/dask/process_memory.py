"""Gives memory back to the operating system when a run has ended in this process.

What a run has freed stays with the allocator of the C library otherwise. glibc has up to eight arenas of memory a core
and spreads the threads over them, so a process grows from run to run. Free memory at the end of an arena, up to 64 MB,
is never given back, except in the first arena. Hence all threads of a worker process that dsinga starts share that one.
In a process with several workers, one arena costs 14% of an iteration of a small net: the user's process keeps all.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from typing import Any

from dask.utils import key_split

# Environment of worker processes. Dask's default returns freed memory to the system at once, so that each iteration has
# to fault its pages in again. These limits, in bytes, are those that glibc arrives at by itself. A variable that is set
# in the user's environment takes precedence.
MALLOC_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": 32 << 20, "MALLOC_TRIM_THRESHOLD_": 64 << 20, "MALLOC_ARENA_MAX": 1}
# Seconds from the end of a part of a run until memory is given back: by then Dask has released the other parts, on a
# busy machine after the second delay; with a lock for each, which is held while a thread waits.
DELAYS = {0.2: threading.Lock(), 2.0: threading.Lock()}


def give_back_after(part: object) -> None:
    """Give memory back soon after ``part``, which belongs to a run in this process, has been released."""
    weakref.finalize(part, give_back_soon).atexit = False


def give_back_soon() -> None:
    """Give memory back after each of ``DELAYS``, in a thread, which serves all calls that come meanwhile."""
    for seconds, scheduled in DELAYS.items():
        if not scheduled.acquire(blocking=False):
            continue
        timer = threading.Timer(seconds, _give_back, [scheduled])
        timer.name, timer.daemon = "dsinga memory", True
        try:
            timer.start()
        except RuntimeError:  # the interpreter is shutting down
            scheduled.release()


def _give_back(scheduled: threading.Lock) -> None:
    scheduled.release()
    key_split.cache_clear()  # the names of the last 100,000 tasks, which Dask keeps by their keys
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        _libc().malloc_trim(0)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)
