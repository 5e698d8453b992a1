"""Calls between processes of one host: memory that is used again, mapped memory, and what a killed process leaves."""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import numpy as np
import pytest

from dsinga.cluster.transport import handshake
from dsinga.cluster.transport.channel import HEAD, Channel
from dsinga.cluster.transport.handshake import Secret
from dsinga.cluster.transport.shared_buffer import HUGE, SharedArrays, create_shared_buffer, offsets
from dsinga.cluster.transport.shared_memory import SharedMemoryServer, connect_to_host
from tests.support.echo_service import EchoService, connected
from tests.support.refusals import refused

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="anonymous memory files are Linux's")
WAIT = 60.0


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def service() -> EchoService:
    return EchoService()


@pytest.fixture
def server(name: str, service: EchoService):
    server = SharedMemoryServer(name, service)
    yield server
    server.close()


def mapped_files() -> set[str]:
    """Return the memory files that this process has mapped, by inode."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in maps if "memfd:" in line}


def wait_for_end(before: set[threading.Thread]) -> None:
    """Wait until threads that are not in ``before`` have ended."""
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT)
        assert not thread.is_alive(), thread


def test_memory_is_used_again_when_nothing_refers_to_its_contents(server: SharedMemoryServer, name: str) -> None:
    """And not before."""
    transport, before = connected(name), mapped_files()
    kept = transport.call("double", (), [np.full(5000, 1.0)]).result(WAIT)[0]
    for number in range(20):
        (answer,) = transport.call("double", (), [np.full(5000, number)]).result(WAIT)
        assert (answer == 2 * number).all()
    assert (kept == 2).all()
    assert len(mapped_files() - before) <= 8


def test_a_message_of_many_small_arrays_arrives(server: SharedMemoryServer, name: str) -> None:
    arrays = [np.full(3, number) for number in range(2_000)]
    answers = connected(name).call("double", (), arrays).result(WAIT)
    np.testing.assert_array_equal(np.stack(answers), 2 * np.stack(arrays))


def test_a_huge_array_comes_and_goes(server: SharedMemoryServer, name: str) -> None:
    array = np.random.default_rng(0).random(HUGE, np.float32)
    (answer,) = connected(name).call("double", (), [array]).result(WAIT)
    np.testing.assert_array_equal(answer, array + array)


def test_waits_end_when_the_server_closes(server: SharedMemoryServer, name: str) -> None:
    transport = connected(name)
    reply = transport.call("later")
    threading.Timer(0.1, server.close).start()
    refused(lambda: reply.result(WAIT), "gone", error=OSError)
    refused(lambda: transport.call("double", (), [np.ones(1)]).result(WAIT), "gone", error=OSError)


def test_waits_end_when_the_client_closes(server: SharedMemoryServer, name: str) -> None:
    transport = connected(name)
    reply = transport.call("later")
    transport.close()
    refused(lambda: reply.result(WAIT), "closed", error=OSError)


def test_a_name_is_free_again_when_its_server_has_closed(name: str) -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        server = SharedMemoryServer(name, EchoService())
        server.close()
        wait_for_end(before)
    assert connect_to_host(name) is None


def test_another_user_is_refused_at_both_ends(
    server: SharedMemoryServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake.os, "geteuid", lambda: 12345)
    assert connect_to_host(name) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(WAIT)
        client.connect(f"\0dsinga-{name}")
        assert client.recv(100) == b""


def test_published_memory_is_mapped_read_only_and_outlives_its_descriptors(name: str) -> None:
    class Published(EchoService):
        def handle(self, method, fields, items):
            return [arrays.fill({0: np.arange(5000, dtype=np.float32)})[0]]

    arrays, before = SharedArrays({0: 5000}), set(threading.enumerate())
    server = SharedMemoryServer(name, Published(), arrays.buffer)
    (answer,) = connected(name).call("any").result(WAIT)
    np.testing.assert_array_equal(answer, np.arange(5000))
    arrays.buffer.array.view(np.float32)[7] = -3
    assert answer[7] == -3
    assert not answer.flags.writeable
    server.close()
    wait_for_end(before)
    assert arrays.buffer.fd == -1
    assert answer[7] == -3


def test_lent_arrays_are_seen_where_they_lie(server: SharedMemoryServer, service: EchoService, name: str) -> None:
    service.keeps = True
    transport, buffer = connected(name), create_shared_buffer(100_000)
    transport.publish(buffer)
    buffer.close()
    array = buffer.view(64, 40_000).view(np.float32)
    array[:] = 1
    transport.call("keep", (), [array], without_copy=True).result(WAIT)
    transport.call("keep", (), [array]).result(WAIT)
    array[:] = 2
    mapped, copied = service.items
    assert mapped[0] == 2
    assert not mapped.flags.writeable
    assert copied[0] == 1


def test_blocks_of_a_buffer_share_no_cache_line() -> None:
    places, size = offsets({3: 1, 1: 64, 2: 65, 0: 0})
    assert places == {0: 0, 1: 0, 2: 64, 3: 192}
    assert size == 256


def test_a_buffer_returned_twice_is_refused() -> None:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left, right = map(Channel, ends)
    left.send("x", [np.zeros(5000)])
    message = right.receive()
    assert message is not None
    del message
    gc.collect()
    assert left.receive() is None
    ends[1].send(HEAD.pack(1, 0, 0, 0, 0))
    refused(lambda: left.receive(), "not taken", error=OSError)


CHILD = """
import sys, time
from dsinga.cluster.transport.handshake import Secret
from dsinga.cluster.transport.shared_memory import SharedMemoryServer
from dsinga.cluster.transport.shared_buffer import SharedArrays
from concurrent.futures import Future
import numpy as np

arrays = SharedArrays({0: 1 << 20})
value = arrays.fill({0: np.ones(1 << 20, np.float32)})[0]

class Service:
    def handle(self, method, fields, items):
        return [value] if method == "value" else Future()

server = SharedMemoryServer(sys.argv[1], Service(), arrays.buffer, Secret(b"known"))
print("ready", flush=True)
time.sleep(60)
"""


def test_nothing_is_left_of_a_process_that_is_killed(name: str) -> None:
    """No file, no address, no memory but what the other end still refers to."""
    before = set(Path("/dev/shm").iterdir())
    with subprocess.Popen([sys.executable, "-c", CHILD, name], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        transport = connected(name, Secret(b"known"))
        (value,) = transport.call("value").result(WAIT)
        reply = transport.call("wait")
        os.kill(child.pid, signal.SIGKILL)
    refused(lambda: reply.result(WAIT), "gone|reset", error=OSError)
    assert value.all()
    assert connect_to_host(name) is None
    with contextlib.suppress(PermissionError):
        assert name not in Path("/proc/net/unix").read_text()
    assert {path.name for path in set(Path("/dev/shm").iterdir()) - before if "dsinga" in path.name} == set()
