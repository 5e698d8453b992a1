"""A process of the same user that knows no secret, and sends nonsense to all local sockets of dsinga that it finds.

``python tests/faults/socket_attack.py COUNT SOCKETS SEED FILE`` ends after COUNT attacks and prints how many were of
each kind; the second half is made while there are SOCKETS sockets, which a run that starts has not yet. FILE is what
its pickles create when they are loaded. It uses the standard library only, to start at once.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import pickle
import random as random_module
import resource
import socket
import struct
import sys
import time
from pathlib import Path

KEPT = 20  # connections that stay open and say nothing more: a server lets a process have eight
KINDS = (
    "garbage", "huge length", "half message", "pickle", "push", "wrong proof", "proof of the server", "descriptors",
    "silence", "not read", "message after a number",
)  # fmt: skip
HEAD = struct.Struct("=BIQQQ")
NONCE_BYTES, PROOF_BYTES = 16, 32
# msgpack of [[1, "push", [[0, 0, 0, 0, False], [0]]], [["<f4", [4], [0]]], [16 bytes]]: a gradient for a server.
PUSH = bytes.fromhex("9393 01 a470757368 92 95 00000000c2 91 00 91 93a33c6634 91 04 91 00 91 c410") + bytes(16)


class Trap:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def addresses() -> list[str]:
    """Return the abstract sockets of dsinga at which this host listens."""
    names = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "@dsinga-" in line}
    return sorted(f"\0{name[1:]}" for name in names)


def send_descriptors(random: random_module.Random, connection: socket.socket, packet: bytes) -> None:
    """Send a packet with descriptors of memory, a pipe, a folder."""
    memory = os.memfd_create("attack")
    os.ftruncate(memory, random.choice((0, 1, 4096)))
    fds = [memory, *os.pipe(), os.open("/", os.O_RDONLY)]
    try:
        socket.send_fds(connection, [packet], random.sample(fds, random.randint(1, len(fds))))
    finally:
        for fd in fds:
            os.close(fd)


def attack(random: random_module.Random, connection: socket.socket, exploit: bytes) -> str:
    """Send one packet, or two; return of what kind they are."""
    kind = random.choice(KINDS)
    push = HEAD.pack(0, 0, 0, 0, 0) + PUSH
    number = random.randbytes(NONCE_BYTES)
    match kind:
        case "garbage":
            connection.send(random.randbytes(random.choice((1, NONCE_BYTES, PROOF_BYTES, 29, 1000, 30_000))))
        case "huge length":
            connection.send(HEAD.pack(0, random.getrandbits(32), random.getrandbits(64), 2**63, 2**63) + PUSH)
        case "half message":
            connection.send(push[: random.randrange(1, len(push))])
        case "pickle":
            connection.send(random.choice((b"", HEAD.pack(0, 0, 0, 0, 0))) + exploit)
        case "push":
            connection.send(push)
        case "descriptors":
            send_descriptors(random, connection, random.choice((number, HEAD.pack(2, 0, 1 << 30, 0, 0), push)))
        case "wrong proof" | "proof of the server" | "message after a number":
            connection.send(number)
            answer = connection.recv(1000)[NONCE_BYTES:]
            proofs = {"wrong proof": random.randbytes(PROOF_BYTES), "proof of the server": answer}
            connection.send(proofs.get(kind, push))
        case "not read":
            for _ in range(20):
                connection.send(number)
        case "silence":
            pass
    return kind


def main(count: int, sockets: int, seed: int, file: str) -> None:
    """Attack until so many connections have been attacked; print how many of each kind."""
    random = random_module.Random(seed)
    exploit = pickle.dumps(Trap(file))
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    kept: collections.deque[socket.socket] = collections.deque()
    kinds: collections.Counter[str] = collections.Counter()
    attacked: set[str] = set()
    print("ready", flush=True)
    for attempt in itertools.count():
        if attempt % 50 == 0:
            targets = addresses()
        if not targets or (kinds.total() > count // 2 and len(targets) < sockets):
            time.sleep(0.002)
            targets = addresses()
            continue
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(0.05)
        target = random.choice(targets)
        try:
            connection.connect(target)
        except OSError:
            connection.close()
            targets = addresses()
            continue
        try:
            kind = attack(random, connection, exploit)
        except OSError:
            kind = "refused before it was sent"
        kinds[kind] += 1
        attacked.add(target)
        kept.append(connection)
        while len(kept) > KEPT:
            kept.popleft().close()
        if kinds.total() >= count:
            break
    for connection in kept:
        with contextlib.suppress(OSError):
            connection.close()
    print(f"{len(attacked)} sockets: " + ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
