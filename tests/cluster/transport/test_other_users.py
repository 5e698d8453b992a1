"""Other users of the host reach neither a service's calls nor its shared memory."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from dsinga.cluster.transport.handshake import Secret
from dsinga.cluster.transport.shared_memory import SharedMemoryServer, connect_to_host
from tests.support.echo_service import EchoService
from tests.support.programs import python

NOBODY = 65534
ROOT = Path(__file__).parents[3]
CLIENT = """
import os, socket, sys
from dsinga.cluster.transport.handshake import Secret
from dsinga.cluster.transport.shared_memory import connect_to_host
os.setuid(int(sys.argv[2]))
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.settimeout(60)
connection.connect(f"\\0dsinga-{sys.argv[1]}")
try:
    connection.send(bytes(16))
    answer = connection.recv(1000)
except ConnectionError:
    answer = b""
print(connect_to_host(sys.argv[1], Secret(b"known")) is not None, bool(answer))
"""

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create") or os.geteuid() != 0, reason="only root can become another user, on Linux"
)


@pytest.mark.parametrize(("user", "reply"), [(0, "True True"), (NOBODY, "False False")])
def test_a_service_serves_its_own_user_only(user: int, reply: str) -> None:
    """It sends others nothing, and with that no descriptor of memory."""
    name = uuid.uuid4().hex
    server = SharedMemoryServer(name, EchoService(), secret=Secret(b"known"))
    try:
        printed = python("-c", CLIENT, name, user, environment={"PYTHONPATH": str(ROOT)})
    finally:
        server.close()
    assert printed.stdout.startswith(reply), printed.stderr


def test_a_client_refuses_the_service_of_another_user() -> None:
    """Whoever takes a name first could answer in place of the service."""
    name = uuid.uuid4().hex
    squatter = f"""
import os, socket, sys
os.setuid({NOBODY})
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("\\0dsinga-{name}")
listener.listen()
print("ready", flush=True)
connection, _ = listener.accept()
print(connection.recv(1000))
"""
    process = subprocess.Popen([sys.executable, "-c", squatter], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        assert connect_to_host(name) is None
        assert process.stdout.readline() == "b''\n"  # it was told nothing
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
