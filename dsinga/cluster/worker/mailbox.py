"""Passes arrays between workers of a group by bridges (pairs of layers that send features) during an iteration.

Sending never blocks, and arrays may be received in any order. Arrays carry their iteration's number. An array that
arrives more than AHEAD iterations early is acknowledged later. At the end of an iteration a worker waits until the
previous iteration's arrays are acknowledged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from dsinga.base.errors import RunError, WorkerLost
from dsinga.cluster.transport.interface import POLL_SECONDS, Reply, Transport
from dsinga.cluster.worker.exchange_options import Meter
from dsinga.ops import Array

# An array that is up to so many iterations ahead of its receiver is acknowledged at once.
AHEAD = 1


class Mailbox:
    """Stores the arrays that have arrived for one worker until it receives them. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived: dict[tuple[int, str], Array] = {}
        self._early: list[tuple[int, Future[None]]] = []
        self._iteration = 0
        self._error: RunError | None = None

    def handle(self, method: str, fields: Sequence[Any], items: Sequence[Any]) -> Future[None] | None:
        """Store an array that another worker sends."""
        iteration, key = fields
        return self.put(iteration, key, items[0])

    def put(self, iteration: int, key: str, array: Array) -> Future[None] | None:
        """Store an array sent under ``key`` in an iteration, unless there is one.

        Returns None, or for an early array a future that resolves when the receiver is at most AHEAD iterations behind.
        """
        with self._changed:
            self.check()
            if iteration >= self._iteration:
                self._arrived.setdefault((iteration, key), array)
                self._changed.notify_all()
            if iteration <= self._iteration + AHEAD:
                return None
            acknowledged: Future[None] = Future()
            acknowledged.set_running_or_notify_cancel()  # so that resolving it never meets a cancelled future
            self._early.append((iteration, acknowledged))
            return acknowledged

    def begin(self, iteration: int) -> None:
        """Start an iteration; drop unreceived arrays of earlier iterations."""
        with self._changed:
            self._iteration = iteration
            self._arrived = {place: array for place, array in self._arrived.items() if place[0] >= iteration}
            near = [future for early, future in self._early if early <= iteration + AHEAD]
            self._early = [(early, future) for early, future in self._early if early > iteration + AHEAD]
        for future in near:
            future.set_result(None)

    def take(self, key: str, timeout: float) -> Array:
        """Wait for the array sent under ``key`` in this iteration; TimeoutError after ``timeout`` seconds."""
        place = (self._iteration, key)
        with self._changed:
            if not self._changed.wait_for(lambda: place in self._arrived or self._error is not None, timeout):
                raise TimeoutError
            self.check()
            return self._arrived.pop(place)

    def check(self) -> None:
        """Raise the error of :meth:`fail`, if it has been called."""
        if self._error is not None:
            raise self._error

    def fail(self, error: RunError) -> None:
        """Fail all waits and later calls with ``error``; the first error stays."""
        with self._changed:
            self._error = self._error or error
            self._arrived.clear()
            early, self._early = self._early, []
            self._changed.notify_all()
        for _, future in early:
            future.set_exception(self._error)

    def close(self, message: str) -> None:
        """Fail all waits and later calls with RunError(``message``)."""
        self.fail(RunError(message))


class GroupPeers:
    """Sends arrays to, and receives arrays from, the other workers of a group, as layers require."""

    def __init__(self, timeout: float, meter: Meter):
        self.mailbox = Mailbox()
        self._timeout = timeout
        self._meter = meter
        self.transports: Sequence[Transport] = ()  # by the number of the worker
        self._iteration = 0
        self._name = ""
        self._sent: list[tuple[int, int, str, Reply]] = []

    def connect(self, transports: Sequence[Transport]) -> None:
        """Set the transports to the mailboxes of the group's workers, by their numbers."""
        self.transports = transports

    def begin(self, name: str) -> None:
        """Start the next iteration; errors call it ``name``."""
        self._iteration += 1
        self._name = name
        self.mailbox.begin(self._iteration)

    def send(self, location: int, key: str, array: Array) -> None:
        """Send an array, which must not be changed afterwards, to the worker ``location``."""
        started = time.perf_counter()
        transport = self.transports[location]
        self._meter.count(transport.crosses_process, array.nbytes)
        reply = transport.call("put", [self._iteration, key], [array])
        if transport.crosses_process or not reply.done():
            self._sent.append((self._iteration, location, key, reply))
        self._meter.waited += time.perf_counter() - started

    def receive(self, key: str) -> Array:
        """Return the array that was sent here under ``key`` in this iteration.

        Raises RunError after the timeout, and soon after the run has ended or a worker is lost.
        """
        started = time.perf_counter()
        while True:
            try:
                array = self.mailbox.take(key, POLL_SECONDS)
                break
            except TimeoutError:
                self._check_sent()
                if time.perf_counter() - started > self._timeout:
                    raise RunError(f"waited {self._timeout:g} s for {key!r} in {self._name}") from None
        self._meter.waited += time.perf_counter() - started
        return array

    def finish(self) -> None:
        """End the iteration: wait until the previous iteration's sent arrays are acknowledged."""
        if not self._sent:
            return
        started = time.perf_counter()
        for iteration, location, key, reply in self._sent:
            while iteration < self._iteration and not reply.done():
                try:
                    reply.result(POLL_SECONDS)
                except TimeoutError:
                    self.mailbox.check()
                    if time.perf_counter() - started > self._timeout:
                        raise RunError(
                            f"waited {self._timeout:g} s in {self._name}: worker {location} is behind and has "
                            f"not taken {key!r}"
                        ) from None
                except Exception:
                    break  # _check_sent raises it with the number of the worker
        self._check_sent()
        self._meter.waited += time.perf_counter() - started

    def _check_sent(self) -> None:
        waiting = []
        for sent in self._sent:
            _, location, key, reply = sent
            if not reply.done():
                waiting.append(sent)
                continue
            try:
                reply.result(0)
            except Exception as error:
                self.mailbox.check()
                raise WorkerLost(f"worker {location} was lost while {key!r} was sent to it: {error}") from error
        self._sent = waiting
