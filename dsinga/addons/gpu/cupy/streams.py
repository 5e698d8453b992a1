"""The streams of one worker, and copies concurrent with its kernels (Wang et al., 2016, section 5.4.2 and figure 14).

A worker computes on one stream, in order. A second stream copies batches and values to the device, a third gradients to
the host; events order the streams. Memory that another stream reads is referenced until the event after that read.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np

from dsinga.addons.gpu.cupy.arrays import contiguous
from dsinga.addons.gpu.cupy.library import cupy, pinned
from dsinga.ops.types import Array, AsyncCopy


class Streams:
    """The streams of a worker: ``compute``, ``up`` (to the device) and ``down`` (to the host).

    ``compute`` is the process's default stream unless the worker has its ``own``.
    """

    def __init__(self, device: int, own: bool):
        self.device = cupy.cuda.Device(device)
        with self.device:
            # A capture needs a stream that does not wait for the default one.
            self.compute = cupy.cuda.Stream(non_blocking=True) if own else cupy.cuda.Stream.null
            self.up, self.down = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self._references: deque[tuple[Any, Any]] = deque()
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Make device and compute stream current in the calling thread."""
        self.device.use()
        self.compute.use()

    def event(self, stream: Any) -> Any:
        """Record an event after all launches on ``stream`` so far."""
        return stream.record(cupy.cuda.Event(disable_timing=True))

    def hold(self, event: Any, *memory: Any) -> None:
        """Keep ``memory`` alive until the event has happened; release memory of past events."""
        with self._lock:
            self._references.append((event, memory))
            while self._references and self._references[0][0].done:
                self._references.popleft()

    def synchronize(self) -> None:
        """Wait for all three streams."""
        for stream in (self.compute, self.up, self.down):
            stream.synchronize()
        with self._lock:
            self._references.clear()


class Upload(AsyncCopy):
    """A copy to the device, which any thread may start and kernels may use after :meth:`result`."""

    def __init__(self, streams: Streams, array: np.ndarray):
        staged = pinned(array.shape, array.dtype)
        np.copyto(staged, array)
        self._streams, self._kind = streams, (array.shape, array.dtype)
        with streams.device, streams.up:
            self._source = cupy.empty(array.shape, array.dtype)
            self._source.set(staged, stream=streams.up)
            self._done = streams.event(streams.up)
        streams.hold(self._done, staged)
        self._copy: Array | None = None

    def result(self) -> Array:
        """Return a second copy of the array, in memory of the compute stream."""
        if self._copy is None:
            with self._streams.device, self._streams.compute:
                self._streams.compute.wait_event(self._done)
                self._copy = self._source.copy()
                self._streams.hold(self._streams.event(self._streams.compute), self._source)
            del self._source
        return self._copy

    @property
    def kind(self) -> tuple[tuple[int, ...], Any]:
        return self._kind

    def copy_to(self, buffer: Array) -> None:
        """Copy the array to ``buffer`` in the compute stream's order; :meth:`result` may still be called."""
        with self._streams.device, self._streams.compute:
            self._streams.compute.wait_event(self._done)
            buffer[...] = self._source
            self._streams.hold(self._streams.event(self._streams.compute), self._source)


class ComputedArray(AsyncCopy):
    """An array for other threads and streams: the array itself, after earlier kernels have ended."""

    def __init__(self, streams: Streams, array: Array):
        with streams.device, streams.compute:
            self._array = contiguous(array)
            self._done = streams.event(streams.compute)

    def result(self) -> Array:
        """Wait for the kernels, and return the array."""
        self._done.synchronize()
        return self._array


class Download(AsyncCopy):
    """A copy to pinned host memory, which returns to CuPy's pool when unreferenced."""

    def __init__(self, streams: Streams, array: Array):
        with streams.device, streams.compute:
            source = contiguous(array)
            ready = streams.event(streams.compute)
        self._host = pinned(source.shape, source.dtype)
        with streams.device, streams.down:
            streams.down.wait_event(ready)
            source.get(stream=streams.down, out=self._host, blocking=False)
            self._done = streams.event(streams.down)
        streams.hold(self._done, source, self._host)

    def result(self) -> np.ndarray:
        """Wait for the copy, and return it, an array in host memory."""
        self._done.synchronize()
        return self._host
