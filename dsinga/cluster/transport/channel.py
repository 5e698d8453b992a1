"""Sends messages through a Unix socket: plain values and small arrays; large arrays are passed in shared memory."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.cluster.transport.interface import Items
from dsinga.cluster.transport.message import aligned, aligned_size, copy_into, flatten, pack, restore, sizes, unpack
from dsinga.cluster.transport.shared_buffer import BufferPool, SharedBuffer, open_shared_buffer

# The most bytes of an array that is sent through the socket; larger ones are copied into shared memory.
INLINE_BYTES = 1 << 12
# The most bytes of a message's body that is sent through the socket; a longer one is in shared memory, too.
PACKET_BYTES = 1 << 14
# The head of a packet: its kind, the number and size of a shared buffer, and where the body lies in that buffer
# (offset and length; length 0: the body is the rest of the packet).
HEAD = struct.Struct("=BIQQQ")
MESSAGE, RETURN, PUBLISH = range(3)
# The flags of a packet with dropped bytes or descriptors; a plain number, which is faster.
INCOMPLETE = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


class ChannelMessage(NamedTuple):
    """A message: plain values, and arrays that belong to the receiver."""

    values: Any
    items: Items


class Channel:
    """One end of a connection between processes of a host. Several threads may send, one at a time receive.

    Large arrays are sent in the sender's shared buffers, which the receiver returns when it has released the arrays.
    Each end may also publish a buffer, which the other end can map only read-only. Arrays in it can be sent as offsets,
    without a copy.
    """

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._close = weakref.finalize(self, connection.close)
        self._pool, self._received = BufferPool(), dict[int, SharedBuffer]()
        self._published: SharedBuffer | None = None
        self._peer_buffer: SharedBuffer | None = None

    def fileno(self) -> int:
        """Return the descriptor of the socket, to poll."""
        return self._socket.fileno()

    def publish(self, buffer: SharedBuffer) -> None:
        """Share a buffer with the other end, to send arrays in it as offsets."""
        self._published = buffer
        socket.send_fds(self._socket, [HEAD.pack(PUBLISH, 0, buffer.size, 0, 0)], [buffer.fd])

    def send(self, values: Any, items: Items = (), without_copy: bool = False) -> None:
        """Send plain values and arrays.

        With ``without_copy``, arrays in the published buffer are sent as offsets.
        """
        layouts, arrays = flatten(items)
        places: list[Any] = []  # of each array: its bytes, [offset] in the published buffer, or offset in the parcel
        large: list[np.ndarray] = []
        end = 0
        for array in arrays:
            at = self._published.offset_of(array) if without_copy and self._published is not None else None
            if at is not None:
                places.append([at])
            elif array.nbytes <= INLINE_BYTES:
                places.append(array.tobytes())
            else:
                places.append(end)
                large.append(array)
                end += aligned(array.nbytes)
        body, body_length = pack([values, layouts, places]), 0
        if len(body) > PACKET_BYTES:
            large.append(np.frombuffer(body, np.uint8))
            body, body_length = b"", len(body)
        if not large:
            self._socket.send(HEAD.pack(MESSAGE, 0, 0, 0, 0) + body)
            return
        number, parcel = self._pool.take(aligned_size(large))
        copy_into(parcel.array, large)
        packet = HEAD.pack(MESSAGE, number, parcel.size, end if body_length else 0, body_length) + body
        if parcel.fd >= 0:
            socket.send_fds(self._socket, [packet], [parcel.fd])
            parcel.close()  # only the other end needs the descriptor
        else:
            self._socket.send(packet)

    def receive(self) -> ChannelMessage | None:
        """Wait for the next message and return it; None for a packet that needs no action."""
        packet, fds, flags, _ = socket.recv_fds(self._socket, 2 * PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        try:
            if not packet:
                raise ConnectionResetError("the process at the other end is gone")
            if flags & INCOMPLETE:
                raise ValueError("a packet that is too long, or has several descriptors")
            return self._read(packet, fds)
        except ConnectionResetError:
            raise
        except Exception as error:  # of whatever kind: what the other end sends ends this connection only
            raise ConnectionError(f"not a message of dsinga: {error!r}") from error
        finally:
            for fd in fds:
                os.close(fd)

    def _read(self, packet: bytes, fds: Sequence[int]) -> ChannelMessage | None:
        kind, number, size, at, length = HEAD.unpack_from(packet)
        buffer = open_shared_buffer(fds[0], size, writable=kind == MESSAGE) if fds else None
        if kind == RETURN:
            self._pool.give_back(number)
            return None
        if kind == PUBLISH:
            self._peer_buffer = buffer
            return None
        if kind != MESSAGE:
            raise ValueError(f"a packet of kind {kind}")
        if buffer is not None:
            self._received[number] = buffer
        parcel = None
        if size:
            # All arrays of the message refer to this view, and nothing else does.
            parcel = self._received[number].view()
            weakref.finalize(parcel, _give_back, weakref.ref(self), number)
        body = packet[HEAD.size :]
        if length:
            if parcel is None:
                raise ValueError("a body in shared memory without a buffer")
            body = parcel[at : at + length].tobytes()
        values, layouts, places = unpack(body)
        return ChannelMessage(values, restore(layouts, self._buffers(layouts, places, parcel)))

    def _buffers(self, layouts: Sequence[Any], places: Sequence[Any], parcel: np.ndarray | None) -> Iterator[Any]:
        for place, size in zip(places, sizes(layouts), strict=True):
            if isinstance(place, bytes):
                yield place
                continue
            published = None if self._peer_buffer is None else self._peer_buffer.array
            memory, start = (parcel, place) if isinstance(place, int) else (published, place[0])
            if memory is None or not 0 <= start <= memory.size - size:
                raise ValueError("an array outside of the shared memory")
            yield memory[start : start + size]

    def end(self) -> None:
        """End the connection, so that both ends receive nothing more. Any thread may call it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, while no other thread receives."""
        self._close()


def _give_back(channel: weakref.ref[Channel], number: int) -> None:
    receiver = channel()
    if receiver is not None and receiver.fileno() >= 0:
        with contextlib.suppress(OSError):
            receiver._socket.send(HEAD.pack(RETURN, number, 0, 0, 0), socket.MSG_DONTWAIT)
