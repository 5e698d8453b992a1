"""Graphs of the emulated device: launches that a capture lists instead of running, and that a graph runs again.

As on a device, what is listed has fixed addresses and fixed numbers. Whatever copies between host and device, or waits,
is refused while a stream is captured.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

Launch = Callable[[], Any]
_thread_state = threading.local()


class OutOfMemoryError(MemoryError):
    """CuPy's error where a pool finds no memory; the pool's ``limit`` raises it."""


class Capture:
    """The launches of a stream that is captured, and the arrays that they use, whose addresses must stay theirs."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.arrays: list[Any] = []


def capture() -> Capture | None:
    """Return the capture of the calling thread, None if there is none."""
    return getattr(_thread_state, "capture", None)


def is_silent() -> bool:
    """Whether launches are not logged: they are captured, or run by a graph."""
    return capture() is not None or getattr(_thread_state, "replays", False)


def launch(run: Launch) -> None:
    """Run a launch, or list it where a stream is captured."""
    listed = capture()
    if listed is None:
        run()
    else:
        listed.launches.append(run)


def produce(compute: Callable[[], Any], shape_of: Callable[[], Any] | None = None) -> np.ndarray:
    """Return the array that ``compute`` returns; where a stream is captured, a graph computes it in the same memory.

    A capture calls ``shape_of`` in its place, if there is one, since arrays have no values then.
    """
    listed = capture()
    if listed is None:
        return np.asarray(compute())
    with np.errstate(all="ignore"):
        result = np.array((shape_of or compute)())

    def again() -> None:
        result[...] = compute()

    listed.launches.append(again)
    listed.arrays.append(result)
    return result


def refuse(what: str) -> None:
    """Raise RuntimeError where a stream is captured."""
    if capture() is not None:
        raise RuntimeError(f"{what} during stream capture is unsupported")


class Graph:
    """The graph of a capture; ``log`` gets an entry for each launch of it."""

    def __init__(self, listed: Capture, log: list[tuple[Any, ...]]):
        self._listed, self._log = listed, log

    def launch(self, stream: Any = None) -> None:
        self._log.append((stream, "graph", len(self._listed.launches)))
        _thread_state.replays = True
        try:
            for run in self._listed.launches:
                run()
        finally:
            _thread_state.replays = False


def begin_capture() -> None:
    """Begin to list the launches of the calling thread."""
    assert capture() is None
    _thread_state.capture = Capture()


def end_capture() -> Capture:
    """Return what was listed."""
    listed = _thread_state.capture
    _thread_state.capture = None
    return listed


class MemoryPool:
    """A memory pool that counts the bytes that were taken from it, up to ``limit``."""

    limit = 2**40

    def __init__(self) -> None:
        self.taken = 0

    def malloc(self, size: int) -> None:
        self.taken += size
        if self.taken > self.limit:
            raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes")

    def total_bytes(self) -> int:
        return self.taken

    free_bytes = total_bytes

    def free_all_blocks(self) -> None:
        pass


@contextmanager
def using_allocator(malloc: Callable[[int], None]) -> Iterator[None]:
    """Let new arrays of the calling thread count as taken by ``malloc``."""
    before = getattr(_thread_state, "malloc", None)
    _thread_state.malloc = malloc
    try:
        yield
    finally:
        _thread_state.malloc = before


def allocated(array: Any) -> Any:
    """Return a new array, which is counted, and kept for the graph where a stream is captured."""
    malloc, listed = getattr(_thread_state, "malloc", None), capture()
    if malloc is not None:
        malloc(array.nbytes)
    if listed is not None:
        listed.arrays.append(array)
    return array
