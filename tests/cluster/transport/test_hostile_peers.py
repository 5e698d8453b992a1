"""A peer that sends nonsense loses its connection; the service, its memory and its other clients stay as they were."""

import contextlib
import fcntl
import mmap
import os
import pickle
import resource
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dsinga.cluster.transport import shared_memory
from dsinga.cluster.transport.channel import HEAD, MESSAGE, PUBLISH, Channel
from dsinga.cluster.transport.handshake import NONCE_BYTES, PROCESS_SECRET, PROOF_BYTES, Secret, shake_hands
from dsinga.cluster.transport.message import pack
from dsinga.cluster.transport.remote import RemoteTransport
from dsinga.cluster.transport.shared_buffer import SIZE_SEALS, create_shared_buffer
from dsinga.cluster.transport.shared_memory import SharedMemoryServer, SharedMemoryTransport, connect_to_host
from tests.support.echo_service import EchoService, connected
from tests.support.polling import wait_until
from tests.support.refusals import refused
from tests.support.socket_pairs import socket_pair

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="anonymous memory files are Linux's")
WAIT = 60.0


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a service, which must answer when the test has done what it likes to it."""
    name = uuid.uuid4().hex
    server = SharedMemoryServer(name, EchoService(), create_shared_buffer(100, published=True))
    yield name
    transport = connected(name)
    (answer,) = transport.call("double", (), [np.ones(5000)]).result(WAIT)
    assert (answer == 2).all()
    transport.close()
    server.close()


def raw_socket(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(WAIT)
    connection.connect(f"\0dsinga-{name}")
    return connection


@contextlib.contextmanager
def proved(name: str) -> Iterator[socket.socket]:
    """Give the socket of a client that belongs to the run."""
    with raw_socket(name) as connection:
        assert shake_hands(connection, PROCESS_SECRET)
        channel = Channel(connection.dup())
        assert channel.receive() is None
        assert channel.receive() is not None
        channel.close()
        yield connection


def ends(connection: socket.socket) -> bool:
    """Whether the other end hangs up."""
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("first", [b"x", b"", bytes(NONCE_BYTES - 1), HEAD.pack(MESSAGE, 0, 0, 0, 0) + pack([1, 2, 3])])
def test_who_does_not_know_the_protocol_is_told_nothing(name: str, first: bytes) -> None:
    with raw_socket(name) as client:
        client.send(first)
        assert ends(client)


@pytest.mark.parametrize("proof", [b"", bytes(PROOF_BYTES), bytes(PROOF_BYTES - 1), bytes(1000)])
def test_who_does_not_know_the_secret_is_served_nothing(name: str, proof: bytes) -> None:
    with raw_socket(name) as client:
        client.send(bytes(NONCE_BYTES))
        assert len(client.recv(1000)) == NONCE_BYTES + PROOF_BYTES
        client.send(proof)
        assert ends(client)
    assert connect_to_host(name, Secret(b"another")) is None


def test_the_proof_of_one_connection_is_none_for_another(name: str) -> None:
    nonce = bytes(NONCE_BYTES)
    with raw_socket(name) as first, raw_socket(name) as second:
        first.send(nonce)
        answer = first.recv(1000)
        second.send(nonce)
        second.recv(1000)
        second.send(PROCESS_SECRET.proof(b"client", nonce, answer[:NONCE_BYTES]))
        assert ends(second)
        first.send(answer[NONCE_BYTES:])  # nor is the server's own proof
        assert ends(first)


def test_a_process_that_has_taken_the_name_first_gets_no_proof() -> None:
    name = uuid.uuid4().hex
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0dsinga-{name}")
        listener.listen()
        received = []

        def answer() -> None:
            connection, _ = listener.accept()
            received.append(connection.recv(1000))
            connection.send(bytes(NONCE_BYTES + PROOF_BYTES))
            received.append(connection.recv(1000))
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        assert connect_to_host(name) is None
        thread.join(WAIT)
    assert len(received[0]) == NONCE_BYTES
    assert received[1] == b""


def test_a_secret_is_not_shown() -> None:
    secret = Secret(b"abc")
    assert "abc" not in f"{secret!r} {secret} {hash(secret)}"
    assert secret == Secret(b"abc") != Secret()


def test_clients_that_say_nothing_take_no_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a process are few at a time, and none stays for long."""
    monkeypatch.setattr(shared_memory, "ACCEPT_SECONDS", 0.5)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(raw_socket(name)) for _ in range(40)]
        assert all(map(ends, silent))


def test_clients_that_read_nothing_do_not_stop_the_others(name: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(raw_socket(name))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                for _ in range(10_000):
                    client.send(bytes(NONCE_BYTES))
        (answer,) = connected(name).call("double", (), [np.ones(1)]).result(WAIT)
        assert answer == [2]


def test_a_server_without_descriptors_accepts_later(name: str) -> None:
    transport = connected(name)
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(WAIT)
    with client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), most))
        fillers = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    fillers.append(os.dup(0))
            client.connect(f"\0dsinga-{name}")
            for _ in range(3):
                assert transport.call("fields", [1]).result(WAIT)
        finally:
            for filler in fillers:
                os.close(filler)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        assert shake_hands(client, PROCESS_SECRET)


def memory(size: int, seals: int = SIZE_SEALS) -> int:
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


FDS: dict[str, Callable[[], int]] = {
    "memory that is smaller than said": lambda: memory(4096),
    "memory that can shrink": lambda: memory(1 << 20, fcntl.F_SEAL_GROW),
    "no memory": lambda: os.open("/dev/zero", os.O_RDWR),
    "a folder": lambda: os.open("/", os.O_RDONLY),
    "a socket": lambda: socket.socket().detach(),
    "a pipe": lambda: os.dup(os.pipe()[0]),
}


@pytest.mark.parametrize("kind", [MESSAGE, PUBLISH])
@pytest.mark.parametrize("what", FDS)
def test_a_descriptor_of_something_else_ends_the_connection(name: str, what: str, kind: int) -> None:
    body = pack([[1, "echo", []], [["|u1", [1 << 20], [0]]], [0]])
    check_closed(name, HEAD.pack(kind, 0, 1 << 20, 0, 0) + body, [FDS[what]()])


@pytest.mark.parametrize(
    "packet", [b"", b"x", HEAD.pack(9, 0, 0, 0, 0), HEAD.pack(MESSAGE, 7, 1 << 20, 0, 0) + b"\xc1"]
)
def test_descriptors_of_packets_that_are_no_messages_are_closed(name: str, packet: bytes) -> None:
    check_closed(name, packet, [memory(1 << 20) for _ in range(3)])


def check_closed(name: str, packet: bytes, fds: list[int]) -> None:
    """Send a packet with descriptors; the connection ends, and the peer closes its copies."""
    with proved(name) as client:
        before = descriptors()
        socket.send_fds(client, [packet], fds)
        assert ends(client)
        wait_until(lambda: descriptors() <= before)
    for fd in fds:
        os.close(fd)


def message(*parts: object, size: int = 0) -> bytes:
    return HEAD.pack(MESSAGE, 0, size, 0, 0) + pack(parts)


EXPLOIT = pickle.dumps(Path("/"), protocol=5)
ECHO = [1, "echo", []]
CALLS = [[1, "echo"], ["1", "echo", []], [1, 2, []], [1, "echo", "x"], {"a": 1}, None, 7]  # none of which is a call


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        EXPLOIT,
        HEAD.pack(MESSAGE, 0, 0, 0, 0) + EXPLOIT,
        HEAD.pack(7, 0, 0, 0, 0),
        HEAD.pack(1, 99, 0, 0, 0),
        message(ECHO, [["O", [1], [0]]], [b"12345678"]),
        message(ECHO, [["<f4", [10], [0]]], [[64]]),
        message(ECHO, [["<f4", [10], [0]]], [b"1"]),
        message(ECHO, [["<f4", [10], [0]]], [0], size=1 << 40),
        *(message(call, [], []) for call in CALLS),
    ],
)
def test_a_packet_that_is_no_message_ends_its_connection(name: str, packet: bytes) -> None:
    """In particular, a pickle is never loaded."""
    with proved(name) as client:
        client.send(packet)
        assert ends(client)


@pytest.mark.parametrize("values", [[99, None], [1], [[], None], [1, [1, 2]], "x", None])
def test_values_that_are_no_reply_fail_the_calls_that_wait(values: object) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    transport, server = SharedMemoryTransport(Channel(here)), Channel(there)
    reply = transport.call("anything")
    server.send(values)
    refused(lambda: reply.result(WAIT), "not a reply", error=ConnectionError)
    server.close()
    transport.close()


def test_memory_for_readers_cannot_be_written_or_cut_by_them() -> None:
    for published in (True, False):
        buffer = create_shared_buffer(5000, published)
        with pytest.raises(PermissionError):
            os.ftruncate(buffer.fd, 10)
        with pytest.raises(PermissionError):
            os.ftruncate(buffer.fd, 10_000)
        if published:
            with pytest.raises(PermissionError):
                mmap.mmap(buffer.fd, 5000)
            with pytest.raises(PermissionError):
                os.pwrite(buffer.fd, b"x", 0)
        buffer.array[:] = 7
        assert mmap.mmap(buffer.fd, 5000, prot=mmap.PROT_READ)[:] == bytes([7]) * 5000
        buffer.close()


@pytest.mark.parametrize(
    "values",
    [[99, None], [0], [[], None], [0, [1, 2]], "x", None, [0, 0, 0, 0], ["a", "b", "c", []], [0, "a", "b", []]],
)
def test_nonsense_between_hosts_ends_its_connection_only(values: object) -> None:
    """All connections of a process are served by one thread, which goes on."""
    pairs = [socket_pair() for _ in range(2)]
    bad, good = (RemoteTransport(here) for here, _ in pairs)
    waits, lives = bad.call("anything"), good.call("anything")
    body = pack([values, []])
    pairs[0][1].sendall(len(body).to_bytes(4, "little") + body)
    refused(lambda: waits.result(WAIT), "not a message", error=ConnectionError)
    body = pack([[0, None], []])
    pairs[1][1].sendall(len(body).to_bytes(4, "little") + body)
    assert lives.result(WAIT) == []
    for transport, (_, there) in zip((bad, good), pairs, strict=True):
        transport.close()
        there.close()
