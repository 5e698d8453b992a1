"""The interfaces of calls between workers and servers: transport, service and reply; and calls within a process."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from dsinga.base.errors import RunError, WorkerLost
from dsinga.ops import Array, SparseRows

# The priority of calls that a computation waits for; larger numbers are for later.
URGENT = 0
# Seconds between two checks, during a wait, of whether the run has been aborted.
POLL_SECONDS = 0.5

Items = Sequence[Array | SparseRows]


class Reply(Protocol):
    """The reply to a call, possibly still to come, for the calling thread."""

    def done(self) -> bool:
        """Whether the reply, or an error instead, has arrived."""

    def result(self, timeout: float | None = None) -> Any:
        """Return the reply's arrays. Raises TimeoutError after ``timeout`` seconds, and the call's error."""


class Pending(Protocol):
    """A result that a service will have later."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result; return its arrays."""

    def done(self) -> bool:
        """Whether the result, or an error instead, is known."""

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Call ``callback`` with the result when it is done.

        The callback must not reference this object.
        """


class Service(Protocol):
    """An object with methods that workers and servers call through transports, several threads at once."""

    def handle(self, method: str, fields: Sequence[Any], items: Items) -> Items | Pending | None:
        """Call a method; return the arrays of the reply (None for no arrays), or a pending result.

        ``fields`` are plain values (None, numbers, strings, lists of them); the service owns the arrays ``items``.
        """

    def close(self, message: str) -> None:
        """Fail all waiting and later calls with RunError(``message``)."""


class Transport(Protocol):
    """The caller's end of a connection to one service. Used by one thread at a time."""

    crosses_process: bool
    crosses_host: bool

    def call(
        self, method: str, fields: Sequence[Any] = (), items: Items = (), without_copy: bool = False,
        into: Sequence[np.ndarray] = (), priority: int = URGENT,
    ) -> Reply:  # fmt: skip
        """Call a method of the service with plain values and arrays, which must not be changed afterwards.

        Without copy, arrays in a shared buffer must stay unchanged until the service has used them, possibly after the
        reply. If the reply's arrays must be copied, they may be copied to ``into``, contiguous arrays of their sizes.
        Between hosts, messages of a lower ``priority`` number are sent first.
        """

    def close(self) -> None:
        """End the connection."""


class Ready:
    """A reply that is complete from the start."""

    def __init__(self, items: Items = ()):
        self._items = items

    def done(self) -> bool:
        """Return True, because the arrays are there."""
        return True

    def result(self, timeout: float | None = None) -> Items:
        """Return the arrays."""
        return self._items


def serve(
    service: Service, method: str, fields: Sequence[Any], items: Items,
    reply: Callable[[Items, BaseException | None], None],
) -> None:  # fmt: skip
    """Call a service's method, and pass its arrays or error to ``reply``, now or when known."""
    try:
        answer = service.handle(method, fields, items)
    except RunError as error:
        reply((), error)
    except Exception as error:
        reply((), RunError(f"{method} failed: {error!r}"))
    else:
        if answer is None or isinstance(answer, Sequence):
            reply(answer or (), None)
        else:
            answer.add_done_callback(functools.partial(_pass_on, reply))


def _pass_on(reply: Callable[[Items, BaseException | None], None], answer: Pending) -> None:
    try:
        items = answer.result(0) or ()
    except BaseException as error:  # a future may have been cancelled
        reply((), error)
    else:
        reply(items, None)


def wait_for(reply: Reply, timeout: float, what: str, aborted: Callable[[], str | None] = lambda: None) -> Any:
    """Wait for ``reply`` and return its result; errors name the wait's reason, ``what``.

    Raises RunError after ``timeout`` seconds and soon after ``aborted`` returns a reason, WorkerLost if the other end's
    process is lost.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return reply.result(timeout=POLL_SECONDS)
        except TimeoutError:
            reason = aborted()
            if reason:
                raise RunError(reason) from None
            if time.monotonic() > deadline:
                raise RunError(f"waited {timeout:g} s for {what}") from None
        except RunError:
            raise
        except (OSError, RuntimeError) as lost:  # RuntimeError: Dask reports a lost Actor by it
            reason = aborted()
            if reason:
                raise RunError(reason) from lost
            raise WorkerLost(f"a process was lost while waiting for {what}: {lost}") from lost


class DirectTransport:
    """A transport to a service of this process, by plain function calls.

    ``find`` returns the service, or None if it is closed, so that the transport does not keep the service alive.
    """

    crosses_process = crosses_host = False

    def __init__(self, find: Callable[[], Service | None], name: str):
        self._find, self._name = find, name

    def call(
        self, method: str, fields: Sequence[Any] = (), items: Items = (), without_copy: bool = False,
        into: Sequence[np.ndarray] = (), priority: int = URGENT,
    ) -> Reply:  # fmt: skip
        """Call a method of the service in this thread, which raises its errors."""
        service = self._find()
        if service is None:
            raise WorkerLost(f"{self._name} is no longer in this process: the run has ended here")
        answer = service.handle(method, fields, items)
        if answer is None or isinstance(answer, Sequence):
            return Ready(answer or ())
        return answer

    def close(self) -> None:
        """Do nothing, because there is no connection."""
