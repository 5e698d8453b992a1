"""Adds small arrays of a group's workers that are processes of one host: each sends its own to all others by sockets.

No server takes part, so that the sums of a layer wait for no other thread. Servers add all other arrays.
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

import numpy as np

from dsinga.base.errors import RunError
from dsinga.cluster.server.collectives import combine
from dsinga.cluster.transport.handshake import process_of
from dsinga.ops import Array

MOST_BYTES = 1 << 15  # of an array
BUFFER_BYTES = 4 * MOST_BYTES  # in which the system keeps two such messages until the receiver reads them
CONNECT_SECONDS = 10.0
SEND_SECONDS = 60.0
NAME_BYTES = TOKEN_BYTES = 16
# What a worker tells the others through a server: its number and process, and the name and token of its socket.
OFFER = struct.Struct(f"=qq{NAME_BYTES}s{TOKEN_BYTES}s")
# The first message on a connection: the token of the worker that accepts it, and the number of the other one.
HELLO = struct.Struct(f"={TOKEN_BYTES}sq")

# Joins the rows of all workers, in their order (:meth:`dsinga.cluster.worker.exchange.Exchange.all_gather`).
Gather = Callable[[str, np.ndarray], Array]


class GroupLinks:
    """The connections of worker ``number`` to all others of its group, by number. For one thread at a time."""

    def __init__(self, number: int, connections: Mapping[int, socket.socket]):
        self._number, self._connections = number, connections

    def add(self, kind: str, key: str, array: np.ndarray) -> LinkedSum:
        """Send an array to all workers; return the reply with the sum, "all_reduce" or "tree_reduce"."""
        head = f"{kind} of {key} {array.dtype.str}{array.shape}".encode()
        head = head.ljust(-(-len(head) // 8) * 8)  # so that the numbers after it are aligned
        packet = head + array.tobytes()
        reply = LinkedSum(kind, head, self._number, array, dict(self._connections))
        for worker, connection in self._connections.items():
            connection.settimeout(SEND_SECONDS)
            try:
                connection.send(packet)
            except TimeoutError:
                reply.lost = ConnectionResetError(f"worker {worker} has read no message for {SEND_SECONDS:g} s")
            except OSError as error:
                reply.lost = ConnectionResetError(f"worker {worker} is gone: {error}")
        return reply

    def close(self) -> None:
        """End the connections, while no other thread waits for a sum."""
        for connection in self._connections.values():
            connection.close()


class LinkedSum:
    """The sum of the workers' arrays: a reply (:class:`dsinga.cluster.transport.interface.Reply`)."""

    def __init__(
        self, kind: str, head: bytes, number: int, array: np.ndarray, missing: dict[int, socket.socket],
    ):  # fmt: skip
        self._kind, self._head, self._missing = kind, head, missing
        self._arrays = {number: array}
        self.lost: OSError | RunError | None = None  # why an array was not sent, or not received

    def done(self) -> bool:
        """Whether all arrays, or an error instead, have arrived."""
        try:
            self._receive(0.0)
        except TimeoutError:
            return False
        except (OSError, RunError):  # which result() raises again
            return True
        return True

    def result(self, timeout: float | None = None) -> list[np.ndarray]:
        """Return the sum, read-only. Raises TimeoutError after ``timeout`` seconds without a message, and OSError."""
        self._receive(timeout)
        return [combine(self._kind, self._arrays)]

    def _receive(self, timeout: float | None) -> None:
        if self.lost is not None:
            raise self.lost
        own = next(iter(self._arrays.values()))
        for worker, connection in list(self._missing.items()):
            connection.settimeout(timeout)
            try:
                packet = connection.recv(len(self._head) + own.nbytes + 1)
            except BlockingIOError:
                raise TimeoutError from None
            except ConnectionError:
                packet = b""
            if not packet:
                self.lost = ConnectionResetError(f"worker {worker} is gone")
                raise self.lost
            if not packet.startswith(self._head) or len(packet) != len(self._head) + own.nbytes:
                self.lost = RunError(f"worker {worker} adds another array than {self._head.decode().rstrip()}")
                raise self.lost
            del self._missing[worker]
            self._arrays[worker] = np.frombuffer(packet, own.dtype, offset=len(self._head)).reshape(own.shape)


def open_links(number: int, process: int, gather: Gather) -> GroupLinks | None:
    """Connect worker ``number``, in this ``process``, to all others of its group; they call this at the same time.

    Returns None, in all workers alike, unless they are processes of one host. ``gather`` is called up to three times.
    """
    with ExitStack() as opened:
        name, token = secrets.token_bytes(NAME_BYTES), secrets.token_bytes(TOKEN_BYTES)
        listener = _listen(name, opened)
        offer = np.frombuffer(OFFER.pack(number, process if listener else 0, name, token), np.uint8)
        offers = [OFFER.unpack(row.tobytes()) for row in gather("offers", offer[None])]
        are_processes = len({process for _, process, _, _ in offers} - {0}) == len(offers) > 1
        if listener is None or not are_processes:  # one without a listener has told the others
            return None
        connections: dict[int, socket.socket] = {}

        def all_have(count: int, key: str) -> bool:
            """Whether all workers have their connections, this one ``count`` of them."""
            return bool(np.all(gather(key, np.array([len(connections) == count]))))

        for other, _, other_name, other_token in offers:
            if other < number:
                with suppress(OSError):
                    connections[other] = _connect(other_name, HELLO.pack(other_token, number), opened)
        if not all_have(sum(offer[0] < number for offer in offers), "connected"):
            return None
        higher = {offer[0] for offer in offers if offer[0] > number}
        with suppress(OSError):  # all others have connected, so that nothing here waits
            while higher - connections.keys():
                _accept(listener, token, higher, connections, opened)
        if not all_have(len(offers) - 1, "accepted"):
            return None
        opened.pop_all()
        listener.close()
        return GroupLinks(number, dict(sorted(connections.items())))


def _listen(name: bytes, opened: ExitStack) -> socket.socket | None:
    """Listen at an abstract Unix socket; return None if the system lacks such sockets."""
    with suppress(OSError, AttributeError):
        listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(_address(name))
        listener.listen(socket.SOMAXCONN)
        listener.setblocking(False)
        return listener
    return None


def _connect(name: bytes, hello: bytes, opened: ExitStack) -> socket.socket:
    connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    connection.settimeout(CONNECT_SECONDS)
    if not _has_buffer(connection):
        raise OSError("the system's limit of a socket's buffer is too low for these messages")
    connection.connect(_address(name))
    connection.send(hello)
    return connection


def _accept(
    listener: socket.socket, token: bytes, others: set[int], connections: dict[int, socket.socket], opened: ExitStack
) -> None:
    """Accept one connection; keep it if its first message proves that it comes from one of the workers ``others``."""
    connection = opened.enter_context(listener.accept()[0])
    connection.setblocking(False)
    with suppress(OSError, struct.error):
        shown, number = HELLO.unpack(connection.recv(HELLO.size + 1))
        is_one = secrets.compare_digest(shown, token) and number in others and process_of(connection) is not None
        if is_one and _has_buffer(connection):
            connections[number] = connection
            return
    connection.close()


def _has_buffer(connection: socket.socket) -> bool:
    """Ask for a buffer of messages to send; return whether the system's limit allows it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= BUFFER_BYTES


def _address(name: bytes) -> str:
    return f"\0dsinga-{name.hex()}"
