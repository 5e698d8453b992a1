"""Proves to both ends of a local socket that the other end belongs to the same run.

Any process of the host can read the address of an abstract socket. So each end sends a random number. By an HMAC of
both numbers, each proves that it knows the run's secret, which is never sent.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct

SECRET_BYTES, NONCE_BYTES, PROOF_BYTES = 32, 16, 32
CLIENT, SERVER = b"client", b"server"


class Secret:
    """Random bytes that only the processes of one run know; neither text nor hash shows them."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes = b""):
        self._value = value or secrets.token_bytes(SECRET_BYTES)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(Secret)

    def __repr__(self) -> str:
        return "Secret(...)"

    def proof(self, role: bytes, *nonces: bytes) -> bytes:
        """Return one end's proof that it knows the secret, for the end that has sent one of ``nonces``."""
        return hmac.digest(self._value, role + b"".join(nonces), "sha256")


# The secret of services and clients that are given none: no other process knows it.
PROCESS_SECRET = Secret()


class Handshake:
    """The server's side of a connection that has proved nothing yet; its socket does not block.

    Packets before the proof are read without descriptors: the system closes descriptors that they carry.
    """

    def __init__(self, connection: socket.socket, secret: Secret):
        connection.setblocking(False)
        self.connection = connection
        self._secret, self._client_nonce, self._nonce = secret, b"", b""

    def read(self) -> bool | None:
        """Read the next packet; return True once the client has proved itself, None while packets are missing.

        False means that the client is gone or cannot prove it.
        """
        try:
            packet = self.connection.recv(PROOF_BYTES + 1)
            if self._nonce:
                expected = self._secret.proof(CLIENT, self._client_nonce, self._nonce)
                return hmac.compare_digest(packet, expected)
            if len(packet) != NONCE_BYTES:
                return False
            self._client_nonce, self._nonce = packet, secrets.token_bytes(NONCE_BYTES)
            self.connection.send(self._nonce + self._secret.proof(SERVER, packet, self._nonce))
        except BlockingIOError:
            return None
        except OSError:
            return False
        return None


def shake_hands(connection: socket.socket, secret: Secret) -> bool:
    """Do the client's side of the handshake; return whether the server knows the secret."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.send(nonce)
    packet = connection.recv(NONCE_BYTES + PROOF_BYTES + 1)
    server_nonce, proof = packet[:NONCE_BYTES], packet[NONCE_BYTES:]
    if not hmac.compare_digest(proof, secret.proof(SERVER, nonce, server_nonce)):
        return False
    connection.send(secret.proof(CLIENT, nonce, server_nonce))
    return True


def process_of(connection: socket.socket) -> int | None:
    """Return the process at the other end of a Unix socket; None if it is another user's."""
    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return process if user == os.geteuid() else None
