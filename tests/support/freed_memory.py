"""A fixture that gives memory back to the system after large tests. Imported by tests/conftest.py."""

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

GROWTH_BYTES = 48 << 20  # from which on memory is freed
ARENAS = 2
M_ARENA_MAX = -8  # of glibc's malloc.h

_left = [0]


@pytest.fixture(autouse=True)
def freed_memory() -> Iterator[None]:
    """Free the pools and caches that dsinga keeps for a process, if the process has grown since they were freed last.

    A process of pytest-xdist runs thousands of tests: what is idle for the rest of a run would be idle for all of them.
    """
    yield
    resident = resident_bytes()
    if resident - _left[0] > GROWTH_BYTES:
        free_pools()
        if resident_bytes() - _left[0] > GROWTH_BYTES:  # the garbage collector takes a quarter of a second
            gc.collect()
            return_memory()
        _left[0] = resident_bytes()
    else:
        _left[0] = min(_left[0], resident)


def free_pools() -> None:
    """Free arrays of pools and decoded chunks."""
    if buffers := imported("dsinga.base.buffers"):
        buffers.clear()
    if source := imported("dsinga.data.record_source"):
        source.clear_cache()
    return_memory()


def return_memory() -> None:
    """Let malloc return what is free to the system."""
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def use_few_arenas() -> None:
    """Let the threads of this process share arenas of malloc: each would keep some memory of its own."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)


def imported(name: str) -> Any:
    """Return a module that a test has imported, else None."""
    return sys.modules.get(name)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system has no /proc."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0
