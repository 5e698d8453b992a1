"""Calls within one process, without copies: the service receives the caller's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import WorkerLost
from dsinga.transport.interface import URGENT, Items, Ready, Reply, Service


class DirectTransport:
    """The caller's end of a :class:`Transport` to a service of this process.

    Args:
        find: returns the service, or None when it has been closed. It is called for each call, so that the transport
            does not keep the service alive.
        name: the service's name, for errors.
    """

    crosses_process = crosses_host = False

    def __init__(self, find: Callable[[], Service | None], name: str):
        self._find, self._name = find, name

    def call(
        self, method: str, fields: Sequence[Any] = (), items: Items = (), without_copy: bool = False,
        into: Sequence[np.ndarray] = (), priority: int = URGENT,
    ) -> Reply:  # fmt: skip
        """Call a method of the service in this thread; errors of the method are raised here."""
        service = self._find()
        if service is None:
            raise WorkerLost(f"{self._name} is no longer in this process: the run has ended here")
        answer = service.handle(method, fields, items)
        if answer is None or isinstance(answer, Sequence):
            return Ready(answer or ())
        return answer

    def close(self) -> None:
        """Do nothing: there is no connection."""
