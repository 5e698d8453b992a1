"""Captures a pass over a net's layers as one CUDA graph, with its memory, and launches it.

CuPy refuses copies between host and device during a capture, and a kernel's first call compiles it. So a pass is first
recorded in fixed memory by the same calls, which run immediately.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dsinga.addons.gpu.cupy.library import cupy, pinned
from dsinga.addons.gpu.cupy.recording import CupyRecording, Recording
from dsinga.addons.gpu.cupy.streams import Streams, Upload
from dsinga.ops.types import Array, AsyncCopy


class GraphPiece(NamedTuple):
    """A graph of a pass, whether metrics are read after it, and the host's action before the next graph."""

    graph: Any
    reads: bool
    action: Callable[[], None] | None


class CupyPass:
    """The device memory and, once captured, the CUDA graphs of a pass over batches of fixed shapes.

    Kernels called within :meth:`recording` read everything that changes with the step from fixed device addresses: the
    batch, the step, and numbers that depend on it. Within :meth:`capturing` they do not run but become a graph for
    :meth:`launch`.
    """

    warm_ups = 2  # in which libraries compile, choose and allocate
    is_on_host = False
    rows = 0, 0, 0

    def __init__(self, ops: CupyRecording, streams: Streams):
        assert streams.compute is not cupy.cuda.Stream.null, "the default stream cannot be captured"
        self._ops, self._streams = ops, streams
        cupy.get_default_memory_pool().free_all_blocks()  # memory of earlier passes, for this pass's pool
        self._pool = cupy.cuda.MemoryPool()
        self._pieces: list[GraphPiece] = []
        self._captured = self._is_capturing = False
        self._buffers: dict[str, Array] = {}
        self._unread = deque[tuple[np.ndarray, Any]]()  # numbers of passes that run, and the event after the copy
        with self._memory():
            self._recording = Recording()

    def put(self, name: str, array: np.ndarray | AsyncCopy | Array) -> Array:
        """Copy an array of the batch to its buffer on the device; return the buffer."""
        shape, dtype = array.kind if isinstance(array, AsyncCopy) else (array.shape, array.dtype)
        if name not in self._buffers:
            with self._memory():
                self._buffers[name] = cupy.empty(shape, dtype)
        buffer = self._buffers[name]
        if isinstance(array, Upload):
            array.copy_to(buffer)
        elif isinstance(array, AsyncCopy):
            buffer[...] = array.result()
        elif isinstance(array, cupy.ndarray):
            buffer[...] = array
        else:
            staged = pinned(array.shape, array.dtype)
            np.copyto(staged, array)
            buffer.set(staged, stream=self._streams.compute)
            self._streams.hold(self._streams.event(self._streams.compute), staged)
        return buffer

    def hold(self, params: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the params themselves, because they keep their addresses."""
        return params

    def results(self, outputs: Any) -> Any:
        """Return a recorded pass's outputs, which each launch overwrites."""
        return outputs

    @contextlib.contextmanager
    def recording(self, step: int) -> Iterator[None]:
        """Within the context, kernels use the block's numbers for ``step``, and memory from the pool."""
        assert self._ops.recording is None
        self._recording.begin(step)
        self._ops.recording = self._recording
        try:
            with self._memory():
                yield
        finally:
            self._ops.recording = None

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Within the context, inside :meth:`recording`, kernels become the graph instead of running."""
        stream = self._streams.compute
        self._recording.begin(0, is_capturing=True)
        self._is_capturing = True
        stream.begin_capture()
        try:
            yield
            self._end_piece(None)
        except BaseException:
            with contextlib.suppress(Exception):  # a capture that has failed cannot be ended without an error
                stream.end_capture()
            raise
        finally:
            self._is_capturing = False
        self._captured = True

    def cut(self, action: Callable[[], None]) -> None:
        """During a capture, end the graph and begin another: :meth:`launch` calls ``action`` between the two."""
        if self._is_capturing:
            self._end_piece(action)
            self._streams.compute.begin_capture()

    def _end_piece(self, action: Callable[[], None] | None) -> None:
        reads = self._recording.numbers is not None and not any(piece.reads for piece in self._pieces)
        self._pieces.append(GraphPiece(self._streams.compute.end_capture(), reads, action))

    @property
    def captured(self) -> bool:
        """Whether there is a graph to launch."""
        return self._captured

    def launch(self, step: int) -> None:
        """Run the graph, or its pieces and actions, with the numbers of ``step``.

        Raises NotCapturable, with nothing changed, if this step has other formulas.
        """
        self._recording.block.fill(step, self._streams.compute)
        for piece in self._pieces:
            piece.graph.launch(stream=self._streams.compute)
            if piece.reads:
                self._start_reading()
            if piece.action is not None:
                piece.action()

    def _start_reading(self) -> None:
        """Start copying the last pass's numbers, if any, to the host before they are overwritten."""
        numbers, stream = self._recording.numbers, self._streams.compute
        if numbers is None:
            return
        host = pinned(numbers.shape, numbers.dtype)
        numbers.get(stream=stream, out=host, blocking=False)
        self._unread.append((host, self._streams.event(stream)))

    def read(self) -> list[float]:
        """Wait for the first unread launch; return its numbers of :meth:`dsinga.ops.Ops.defer_read`.

        After one that is not finite, this pass and later launches change no param until :meth:`cancel`.
        """
        if self._recording.numbers is None:
            return []
        if not self._unread:  # it was recorded
            self._start_reading()
        host, done = self._unread.popleft()
        done.synchronize()
        return host.tolist()

    def cancel(self) -> None:
        """Wait for all launches, drop their numbers, and let later ones change params again."""
        while self._unread:
            self.read()
        self._recording.block.allow(self._streams.compute)

    @property
    def nbytes(self) -> int:
        """The bytes of device memory that the pass holds."""
        return int(self._pool.total_bytes())

    def _memory(self) -> Any:
        """Context that allocates from the pool that lives as long as the graph."""
        return cupy.cuda.using_allocator(self._pool.malloc)
