"""Messages through a connected socket: plain values described by msgpack, and arrays as their bytes, never pickled.

Many messages may be on their way at once, both ways. Large arrays are sent from their own memory.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Protocol

import numpy as np

from dsinga.base import buffers
from dsinga.cluster.transport.interface import Items
from dsinga.cluster.transport.message import aligned, flatten, pack, restore, sizes, unpack
from dsinga.cluster.transport.socket_loop import add_connection

# The head of a message: the length of its description, which is followed by the bytes of the arrays.
HEAD = struct.Struct("<I")
# The most bytes of a description; what seems to be a longer one is no message.
MOST_DESCRIBED = 1 << 24
# The most bytes of an array that is copied behind the description, to be sent by the same call of the system.
JOINED_BYTES = 1 << 14
# Bytes up to which a message is sent by the thread that has it, if no other message is being sent. Beyond that, the
# copy into the system's memory would take the thread longer than waking up another thread.
DIRECT_BYTES = 1 << 18
# Bytes that the system takes ahead of what the network has sent. More would only delay messages of higher priority.
AHEAD_BYTES = 1 << 19
# Bytes after which it is another connection's turn.
TURN_BYTES = 1 << 21

BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Receiver(Protocol):
    """Interface of an object that handles the messages of a stream, in the thread of the socket loop."""

    def memory(self, values: Any, nbytes: Sequence[int]) -> Sequence[memoryview] | None:
        """Return memory for the arrays of a message, given their sizes; None for reused memory."""

    def received(self, values: Any, items: Items) -> None:
        """Handle a message."""

    def lost(self, reason: str) -> None:
        """Stop, because no more messages arrive, and none can be sent."""


class Stream:
    """One end of a connection to another process, which sends and receives messages. Any thread may send."""

    def __init__(self, connection: socket.socket, receiver: Receiver):
        connection.setblocking(False)
        with contextlib.suppress(OSError, AttributeError):  # not a TCP socket, or not on Linux
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, AHEAD_BYTES)
        self.socket = connection
        self._receiver: Receiver | None = receiver  # until the connection is lost: it refers to this object
        self._sends_directly = not isinstance(connection, ssl.SSLSocket)  # which one thread at a time may use
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._queue: list[tuple[int, int, deque[memoryview]]] = []  # a heap
        self._writing = False  # whether a thread is responsible for the queue
        self._parts: deque[memoryview] = deque()  # the rest of the message that is being sent, of that thread
        self._lost = ""  # the reason
        self._reads = self._messages()
        self._target = next(self._reads)  # the memory that is being filled

    def start(self) -> None:
        """Begin to receive, before anything is sent."""
        self._loop = add_connection(self)

    def send(self, values: Any, items: Items = (), priority: int = 0) -> None:
        """Send plain values and arrays, which must not change until they have arrived.

        Messages of a lower ``priority`` number are sent first. Raises OSError if the connection is lost.
        """
        parts, size = _encode(values, items)
        with self._lock:
            if self._lost:
                raise ConnectionError(self._lost)
            heapq.heappush(self._queue, (priority, next(self._numbers), parts))
            if self._writing:
                return
            self._writing = True
        if self._sends_directly and size <= DIRECT_BYTES:
            with contextlib.suppress(OSError):  # the loop meets the same error
                if not self.write():
                    return
        self._loop.write(self)

    def write(self) -> bool:
        """Write as many bytes as the socket accepts; return whether messages are left."""
        written = 0
        while written < TURN_BYTES:
            parts = self._parts
            if not parts:
                with self._lock:
                    if not self._queue:
                        self._writing = False
                        return False
                    parts = self._parts = heapq.heappop(self._queue)[2]
            try:
                count = self.socket.send(parts[0])
            except BLOCKED:
                return True
            written += count
            if count < len(parts[0]):
                parts[0] = parts[0][count:]
            else:
                parts.popleft()
        return True

    def read(self) -> bool:
        """Read the bytes that have arrived; return whether more may be there."""
        count = 0
        while count < TURN_BYTES:
            try:
                length = self.socket.recv_into(self._target)
            except BLOCKED:
                return False
            if not length:
                raise ConnectionResetError("the process at the other end is gone")
            count += length
            self._target = self._target[length:]
            if not self._target:
                try:
                    self._target = next(self._reads)
                except Exception as error:
                    raise ConnectionError(f"not a message of dsinga: {error!r}") from error
        return True

    def _messages(self) -> Generator[memoryview, None, None]:
        head = memoryview(bytearray(HEAD.size))
        while True:
            yield head
            (length,) = HEAD.unpack(head)
            if length > MOST_DESCRIBED:
                raise ValueError(f"a description of {length} bytes")
            # Not zeroed: pages that no byte arrives for use no memory, here and in the arrays of a message.
            description = np.empty(length, np.uint8).data
            yield description
            values, layouts = unpack(description)
            nbytes = list(sizes(layouts))
            memory = [*(self._open_receiver().memory(values, nbytes) or _allocate(nbytes))]
            for number, size in enumerate(nbytes):
                if size:
                    yield memory[number]
            items = restore(layouts, iter(memory))  # only now, because rows of sparse arrays are converted and checked
            memory.clear()
            self._open_receiver().received(values, items)
            del items  # its memory is reused when the receiver has released it

    def _open_receiver(self) -> Receiver:
        if self._receiver is None:
            raise ConnectionAbortedError("the connection was closed")
        return self._receiver

    def lost(self, reason: str) -> None:
        """Tell the receiver that the connection is lost, once."""
        with self._lock:
            self._lost = self._lost or reason
            self._queue.clear()
            self._parts = deque()
            receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.lost(self._lost)

    def closed(self) -> None:
        """Drop the message that was being read."""
        self._target = memoryview(b"")
        self._reads.close()  # it refers to this object

    def close(self) -> None:
        """Close the connection; unsent messages are dropped."""
        self._loop.remove(self)
        self.lost("the connection was closed")


def _encode(values: Any, items: Items) -> tuple[deque[memoryview], int]:
    layouts, arrays = flatten(items)
    description = pack([values, layouts])
    joined = bytearray(HEAD.pack(len(description)) + description)
    parts: deque[memoryview] = deque()
    size = len(joined)
    for array in arrays:
        size += array.nbytes
        if array.nbytes <= JOINED_BYTES:
            joined += array.tobytes()
            continue
        if joined:
            parts.append(memoryview(joined))
            joined = bytearray()
        parts.append(array.view(np.uint8).data)
    if joined:
        parts.append(memoryview(joined))
    return parts, size


def _allocate(nbytes: Sequence[int]) -> list[memoryview]:
    base = memoryview(buffers.empty((sum(map(aligned, nbytes)),), dtype=np.uint8))
    starts = itertools.accumulate(map(aligned, nbytes), initial=0)
    return [base[start : start + size] for start, size in zip(starts, nbytes, strict=False)]
