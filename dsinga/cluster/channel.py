"""Messages through a socket of the host: an object each, whose large arrays go in memory that is handed over."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import weakref
from typing import Any, NamedTuple

import numpy as np

from dsinga.cluster.sharedmemory import ALIGNMENT, Segment, create_segment

# Up to so many bytes an array goes through the socket, above in memory that is handed over.
INLINE = 1 << 12
# Room for a message: its pickle, if longer, is handed over in memory too.
ROOM = 1 << 14


class Message(NamedTuple):
    """What came: an object, and a segment if one was given with it."""

    said: Any
    segment: Segment | None = None


class Channel:
    """One end of a connection. Several threads may send; one at a time receives."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._close = weakref.finalize(self, connection.close)

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._socket.fileno()

    def send(self, said: Any, segment: Segment | None = None) -> None:
        """Send an object and, where it has no large arrays, a segment; OSError where nobody is there any more."""
        large: list[memoryview] = []
        packed = pickle.dumps(said, protocol=5, buffer_callback=lambda buffer: _in_band(buffer.raw(), large))
        if len(packed) > ROOM:
            large.append(memoryview(packed))
            packed = b""
        if not large:
            header = struct.pack("Q", segment.size if segment else 0) + b"\0"
            _deliver(self._socket, header + packed, segment)
            return
        assert segment is None, "a message has one segment"
        sizes = [buffer.nbytes for buffer in large]
        parcel = create_segment(sum(_aligned(size) for size in sizes))
        try:
            at = 0
            for buffer in large:
                parcel.array[at : at + buffer.nbytes] = np.frombuffer(buffer, np.uint8)
                at += _aligned(buffer.nbytes)
            header = struct.pack("Q", parcel.size) + bytes([len(sizes)]) + struct.pack(f"{len(sizes)}Q", *sizes)
            _deliver(self._socket, header + packed, parcel)
        finally:
            parcel.close()

    def receive(self, writable: bool = True) -> Message:
        """Return the next message, waiting for it. Raises ConnectionResetError where the other end is gone."""
        raw, fds, _, _ = socket.recv_fds(self._socket, 2 * ROOM, 1, socket.MSG_CMSG_CLOEXEC)
        if not raw:
            raise ConnectionResetError("the process at the other end is gone")
        (size,), count = struct.unpack_from("Q", raw), raw[8]
        packed = raw[9 + 8 * count :]
        segment = Segment(fds[0], size, writable) if fds else None
        if not count:
            return Message(pickle.loads(packed), segment)
        assert segment is not None
        segment.close()
        buffers, at = [], 0
        for length in struct.unpack_from(f"{count}Q", raw, 9):
            buffers.append(segment.array[at : at + length])
            at += _aligned(length)
        return Message(pickle.loads(packed or buffers.pop().data, buffers=buffers))

    def close(self) -> None:
        """Let go of it. Not while another thread receives: see :meth:`hang_up`."""
        self._close()

    def hang_up(self) -> None:
        """End the connection: whoever receives, here or there, is told."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _in_band(buffer: memoryview, large: list[memoryview]) -> bool:
    if buffer.nbytes <= INLINE or len(large) >= 250:
        return True
    large.append(buffer)
    return False


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _deliver(connection: socket.socket, packed: bytes, segment: Segment | None) -> None:
    if segment is None:
        connection.send(packed)
    else:
        socket.send_fds(connection, [packed], [segment.fd])
