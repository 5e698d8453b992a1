"""Limits how long kernel threads of GNU OpenMP spin while they wait for work, so that they do not block others.

On a busy machine a spinning thread blocks the very thread that it waits for. GNU OpenMP spins up to 300,000 turns (5 to
20 ms). If the user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT, this module does nothing.

After loading, GNU OpenMP spins for just 100 turns while the process has more OpenMP threads than cores, which
:class:`SpinLimiter` uses.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Turns of 15 to 50 ns: longer than the Python between two kernels takes.
SPIN_COUNT = 60_000
CHECK_SECONDS = 0.1
WAIT_SECONDS = 10.0  # for spare threads to start or to end
# The share of time that a thread waits for a core: the machine is busy once it was above BUSY_SHARE at BUSY_CHECKS
# checks in a row, and idle again once it was below IDLE_SHARE at IDLE_CHECKS checks.
BUSY_SHARE, BUSY_CHECKS = 0.15, 2
IDLE_SHARE, IDLE_CHECKS = 0.05, 10
RUN_TIMES = Path("/proc/thread-self/schedstat")  # Linux: nanoseconds on a core, nanoseconds of waiting for one, turns


def limit_spinning() -> bool:
    """Limit how long OpenMP threads of a library loaded later spin; False if the user did so."""
    if "OMP_WAIT_POLICY" in os.environ:
        return False
    return os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT)) == str(SPIN_COUNT)


def core_wait_seconds() -> float | None:
    """Return how long the calling thread has waited for a core; None if unknown."""
    try:
        return 1e-9 * int(RUN_TIMES.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None


class SpareThreads:
    """Sleeping threads that make OpenMP count more threads than cores, so that waiting threads do not spin long."""

    def __init__(self, library: Any):
        self._end, started = threading.Event(), threading.Event()
        count = len(os.sched_getaffinity(0)) + 1  # one is this thread
        nothing = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p)  # a function without effect

        def keep() -> None:
            library.GOMP_parallel(nothing, None, ctypes.c_uint(count), ctypes.c_uint(0))
            started.set()
            self._end.wait()  # the library ends the spare threads with this thread

        self._thread = threading.Thread(target=keep, name="dsinga spare OpenMP threads", daemon=True)
        self._thread.start()
        started.wait(WAIT_SECONDS)

    def close(self) -> None:
        self._end.set()
        self._thread.join(WAIT_SECONDS)


class SpinLimiter:
    """Stops spinning by spare threads while the threads that call :meth:`check` wait for cores."""

    def __init__(self, create_spare_threads: Callable[[], SpareThreads]):
        self._create = create_spare_threads
        self._spare: SpareThreads | None = None
        self._lock = threading.Lock()
        self._busy_checks = self._idle_checks = 0
        self._thread = threading.local()

    @property
    def is_limiting(self) -> bool:
        return self._spare is not None

    def check(self) -> None:
        """Check whether the machine is busy, at most every CHECK_SECONDS per thread."""
        now = time.monotonic()
        last: tuple[float, float | None] = getattr(self._thread, "last", (-CHECK_SECONDS, None))
        if now < last[0] + CHECK_SECONDS:
            return
        waited = core_wait_seconds()
        self._thread.last = now, waited
        if waited is not None and last[1] is not None:
            self.observe((waited - last[1]) / (now - last[0]))

    def observe(self, share: float) -> None:
        """Record a thread's share of time spent waiting for a core."""
        with self._lock:
            self._busy_checks = self._busy_checks + 1 if share > BUSY_SHARE else 0
            self._idle_checks = self._idle_checks + 1 if share < IDLE_SHARE else 0
            if self._spare is None and self._busy_checks >= BUSY_CHECKS:
                self._spare = self._create()
            elif self._spare is not None and self._idle_checks >= IDLE_CHECKS:
                self._spare.close()
                self._spare = None
