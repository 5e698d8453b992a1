"""Messages through a socket of the host: an object each, whose large arrays lie in memory that both ends see."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import weakref
from typing import Any, NamedTuple

import numpy as np

from dsinga.transport.shared_buffer import ALIGNMENT, BufferPool, SharedBuffer

# Up to so many bytes an array goes through the socket, above it is copied into memory that the other end sees.
INLINE = 1 << 12
# Room for a message in the socket: its pickle, if longer, goes that other way too.
ROOM = 1 << 14
# So many arrays of a message at the most go the other way.
MOST = 250
# What a message begins with: its kind, the number and the size of a segment, how many arrays lie there.
HEADER = struct.Struct("=BIQB")
PLAIN, PARCEL, RETURN = range(3)


class Message(NamedTuple):
    """What came: an object, and a segment if one was given with it. ``None`` for the object is nothing to act on."""

    said: Any
    segment: SharedBuffer | None = None


class Channel:
    """One end of a connection. Several threads may send; one at a time receives.

    Large arrays lie in segments of the sender's. As soon as nobody at the other end refers to them any more, it says
    so, and the sender uses the segment for another message.
    """

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._close = weakref.finalize(self, connection.close)
        self._own, self._theirs = BufferPool(), dict[int, SharedBuffer]()

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._socket.fileno()

    def send(self, said: Any, segment: SharedBuffer | None = None) -> None:
        """Send an object, not None, and a segment, if given; OSError where nobody is there any more."""
        large: list[memoryview] = []
        packed = pickle.dumps(said, protocol=5, buffer_callback=lambda buffer: _in_band(buffer.raw(), large))
        if len(packed) > ROOM:
            large.append(memoryview(packed))
            packed = b""
        if not large:
            size = segment.size if segment else 0
            self._deliver(HEADER.pack(PLAIN, 0, size, 0) + packed, segment)
            return
        assert segment is None, "large arrays lie in a segment of their own"
        sizes = [buffer.nbytes for buffer in large]
        number, parcel = self._own.take(sum(_aligned(size) for size in sizes))
        at = 0
        for buffer in large:
            parcel.array[at : at + buffer.nbytes] = np.frombuffer(buffer, np.uint8)
            at += _aligned(buffer.nbytes)
        header = HEADER.pack(PARCEL, number, parcel.size, len(sizes)) + struct.pack(f"{len(sizes)}Q", *sizes)
        self._deliver(header + packed, parcel if parcel.fd >= 0 else None)
        parcel.close()  # the other end has it from now on

    def receive(self) -> Message:
        """Return the next message, waiting for it. Raises ConnectionResetError where the other end is gone.

        A segment that is given can be read only; the arrays of a message are the receiver's.
        """
        raw, fds, _, _ = socket.recv_fds(self._socket, 2 * ROOM, 1, socket.MSG_CMSG_CLOEXEC)
        if not raw:
            raise ConnectionResetError("the process at the other end is gone")
        kind, number, size, count = HEADER.unpack_from(raw)
        packed = raw[HEADER.size + 8 * count :]
        segment = SharedBuffer(fds[0], size, writable=kind == PARCEL) if fds else None
        if kind == RETURN:
            self._own.give_back(number)
            return Message(None)
        if kind == PLAIN:
            return Message(pickle.loads(packed), segment)
        if segment is not None:
            segment.close()
            self._theirs[number] = segment
        # All that is made of the message refers to this view, which is nobody else's.
        whole = self._theirs[number].view()
        weakref.finalize(whole, _hand_back, weakref.ref(self), number)
        buffers, at = [], 0
        for length in struct.unpack_from(f"{count}Q", raw, HEADER.size):
            buffers.append(whole[at : at + length])
            at += _aligned(length)
        return Message(pickle.loads(packed or buffers.pop().data, buffers=buffers))

    def close(self) -> None:
        """Let go of it. Not while another thread receives."""
        self._close()

    def _deliver(self, packed: bytes, segment: SharedBuffer | None) -> None:
        if segment is None:
            self._socket.send(packed)
        else:
            socket.send_fds(self._socket, [packed], [segment.fd])


def _hand_back(channel: weakref.ref[Channel], number: int) -> None:
    """Tell the sender that its segment is free; if there is no room to say so, it makes another one."""
    there = channel()
    if there is not None and there.fileno() >= 0:
        with contextlib.suppress(OSError):
            there._socket.send(HEADER.pack(RETURN, number, 0, 0), socket.MSG_DONTWAIT)


def _in_band(buffer: memoryview, large: list[memoryview]) -> bool:
    if buffer.nbytes <= INLINE or len(large) >= MOST:
        return True
    large.append(buffer)
    return False


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
