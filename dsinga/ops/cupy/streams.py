"""The streams of one worker, and copies that run beside its kernels (Wang et al., 2016, section 5.4.2 and figure 14).

A worker computes on one stream, in order. Batches and values go up on a second one, gradients come down on a third;
events say who waits for whom. Device memory goes back to the pool of the stream on which it was taken, so that memory
which another stream still reads is referred to until the event behind that reading is done.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np

from dsinga.ops.async_copy import AsyncCopy
from dsinga.ops.cupy.library import cupy
from dsinga.ops.types import Array


class Streams:
    """Compute, up and down. ``compute`` is the default stream for those who enter none; it waits for that one, too."""

    def __init__(self, device: int, own: bool):
        self.device = cupy.cuda.Device(device)
        with self.device:
            self.compute = cupy.cuda.Stream() if own else cupy.cuda.Stream.null
            self.up, self.down = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self._held: deque[tuple[Any, Any]] = deque()
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Make the device and the stream for computing those of the calling thread."""
        self.device.use()
        self.compute.use()

    def event(self, stream: Any) -> Any:
        """Return an event behind all that ``stream`` has been given to do."""
        return stream.record(cupy.cuda.Event(disable_timing=True))

    def hold(self, event: Any, *memory: Any) -> None:
        """Refer to ``memory`` until the event is done; let go of what is past."""
        with self._lock:
            self._held.append((event, memory))
            while self._held and self._held[0][0].done:
                self._held.popleft()

    def synchronize(self) -> None:
        """Wait for all three streams."""
        for stream in (self.compute, self.up, self.down):
            stream.synchronize()
        with self._lock:
            self._held.clear()


class Upload(AsyncCopy):
    """A copy on its way to the device. Any thread may begin it; kernels see it after :meth:`result`."""

    def __init__(self, streams: Streams, array: np.ndarray):
        staged = pinned(array.shape, array.dtype)
        np.copyto(staged, array)
        self._streams = streams
        with streams.device, streams.up:
            self._arriving = cupy.empty(array.shape, array.dtype)
            self._arriving.set(staged, stream=streams.up)
            self._arrived = streams.event(streams.up)
        streams.hold(self._arrived, staged)
        self._copy: Array | None = None

    def result(self) -> Array:
        """Copy the array once more: from memory of the stream that brought it to memory of the one that computes."""
        if self._copy is None:
            with self._streams.device, self._streams.compute:
                self._streams.compute.wait_event(self._arrived)
                self._copy = self._arriving.copy()
                self._streams.hold(self._streams.event(self._streams.compute), self._arriving)
            del self._arriving
        return self._copy


class Download(AsyncCopy):
    """A copy on its way to pinned host memory, which goes back to CuPy's pool when nobody refers to it."""

    def __init__(self, streams: Streams, array: Array):
        with streams.device, streams.compute:
            source = cupy.ascontiguousarray(array)
            ready = streams.event(streams.compute)
        self._host = pinned(source.shape, source.dtype)
        with streams.device, streams.down:
            streams.down.wait_event(ready)
            source.get(stream=streams.down, out=self._host, blocking=False)
            self._done = streams.event(streams.down)
        streams.hold(self._done, source, self._host)

    def result(self) -> np.ndarray:
        """Wait for the copy."""
        self._done.synchronize()
        return self._host


def pinned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array in page-locked host memory, which copies run beside kernels from and to."""
    size = int(np.prod(shape, dtype=np.int64))
    memory = cupy.cuda.alloc_pinned_memory(max(size, 1) * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, size).reshape(shape)
