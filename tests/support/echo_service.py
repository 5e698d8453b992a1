"""A service for tests of transports: echoes, refuses, fails, waits."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from dsinga import RunError
from dsinga.cluster.transport.handshake import PROCESS_SECRET, Secret
from dsinga.cluster.transport.shared_memory import SharedMemoryTransport, connect_to_host


class EchoService:
    """Answers ``double`` with twice each array, ``fields`` with the fields as numbers, ``later`` when released."""

    def __init__(self) -> None:
        self.waiting: list[Future[Any]] = []
        self.items: list[Any] = []
        self.keeps = False
        self.closed: str | None = None

    def handle(self, method: str, fields: Sequence[Any], items: Sequence[Any]) -> Any:
        """Handle a call."""
        if self.keeps:
            self.items += items
        match method:
            case "echo":
                return list(items)
            case "double":
                return [item + item for item in items]
            case "fields":
                return [np.array(fields)]
            case "later":
                future: Future[Any] = Future()
                self.waiting.append(future)
                return future
            case "refuse":
                raise RunError("refused")
            case "fail":
                raise ValueError("a fault")
        return None

    def close(self, message: str) -> None:
        """Fail the calls that wait."""
        self.closed = message
        for future in self.waiting:
            if not future.done():
                future.set_exception(RunError(message))


def connected(name: str, secret: Secret = PROCESS_SECRET) -> SharedMemoryTransport:
    """Return a transport to a service of this host."""
    transport = connect_to_host(name, secret)
    assert transport is not None
    return transport
