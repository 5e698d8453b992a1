"""Synchronisation of a shard with the same shards of other server groups, by sending the changes of its slices.

The change of a slice is its value minus its value when the last change was sent; changes that are received are added
to both. A change is to be sent on every route that begins at the group; received changes are to be forwarded on the
onward routes. The changes for a route are added up until its previous message has arrived, so that a slow peer gets
fewer messages, not a growing queue.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from dsinga.errors import RunError
from dsinga.server.routes import Routes
from dsinga.server.served_slice import ServedSlice

# Sends changes to the shard of a linked group: (group, route, slice ids, arrays). The shard there gets them by
# ``receive``, with the number of the route.
Send = Callable[[int, int, Sequence[int], Sequence[np.ndarray]], Future]


class Synchronisation:
    """Sends the changes of a shard's slices to the same shards of other server groups, and adds theirs. Thread-safe.

    ``group`` is the server group of this shard, ``frequency`` the number of updates of a slice after which its change
    is sent. ``send(group, route, ids, arrays)`` is called without a lock, one message at a time on each route; it must
    not write to the arrays. If it fails, ``fail`` is called with the error.

    In the end the trainable slices of all groups have the updates of all groups. A slice that is not trainable (a
    running mean) is estimated by each group separately, and all groups get the average.
    """

    def __init__(self, group: int, routes: Routes, frequency: int, send: Send, fail: Callable[[BaseException], None]):
        assert frequency > 0, frequency
        self._starts, self._routes = routes.starts[group], routes.routes
        self._groups = len(routes.starts)
        self._frequency = frequency
        self._send, self._fail = send, fail
        # By slice id, under the lock of the slice: its value at the last change, and the number of updates since then.
        self._last: dict[int, np.ndarray] = {}
        self._updates: dict[int, int] = {}
        self._lock = threading.Lock()
        # By route and slice id: changes that wait for the previous message to arrive.
        self._unsent: dict[int, dict[int, np.ndarray]] = {number: {} for number in range(len(self._routes))}
        self._in_flight: set[int] = set()  # routes with a message that has not arrived yet
        self._sent = 0
        self._flushes: list[Future[int]] = []
        self._error: BaseException | None = None

    def begin(self, served_slice: ServedSlice) -> None:
        """Begin to track the changes of a slice from its present value; a repeated call changes nothing."""
        self._last.setdefault(served_slice.spec.slice.id, served_slice.value.copy())
        self._updates.setdefault(served_slice.spec.slice.id, 0)

    def updated(self, served_slices: Iterable[ServedSlice]) -> None:
        """Count an update of these slices, and send the changes of those that have had ``frequency`` updates."""
        changes = {}
        for served_slice in served_slices:
            id = served_slice.spec.slice.id
            with served_slice.lock:
                self._updates[id] += 1
                if self._updates[id] >= self._frequency:
                    changes[id] = self._change(served_slice)
        self._enqueue(self._starts, changes)

    def receive(self, served_slices: Mapping[int, ServedSlice], route: int, changes: Mapping[int, np.ndarray]) -> None:
        """Add changes received on a route, float32 (size,) by slice id, and forward them."""
        for id, change in changes.items():
            with served_slices[id].lock:
                served_slices[id].value += change
                served_slices[id].changes += 1
                self._last[id] += change
        self._enqueue(self._routes[route].onward, changes)

    def flush(self, served_slices: Iterable[ServedSlice]) -> Future[int]:
        """Send all changes that have not been sent yet, for :meth:`dsinga.server.Shard.flush`."""
        changes = {}
        for served_slice in served_slices:
            with served_slice.lock:
                if self._updates[served_slice.spec.slice.id]:
                    changes[served_slice.spec.slice.id] = self._change(served_slice)
        self._enqueue(self._starts, changes)
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._flushes.append(future)
        self._end_flushes()
        return future

    def close(self, error: BaseException) -> None:
        """Stop sending, and fail the futures of all flushes with ``error``."""
        with self._lock:
            self._error = error
        self._end_flushes()

    def pending(self) -> list[str]:
        """Return texts that say which server groups have not acknowledged a message."""
        with self._lock:
            groups = sorted({self._routes[number].group for number in self._in_flight})
        return [f"server group {group} has not taken the changes sent to it" for group in groups]

    def _change(self, served_slice: ServedSlice) -> np.ndarray:
        """Return the change of a slice since the last one, and track the next change; the caller holds its lock."""
        id = served_slice.spec.slice.id
        change = served_slice.value - self._last[id]
        if not served_slice.spec.trainable:
            change /= self._groups
            np.add(self._last[id], change, out=served_slice.value)
        np.copyto(self._last[id], served_slice.value)
        self._updates[id] = 0
        return change

    def _enqueue(self, routes: Sequence[int], changes: Mapping[int, np.ndarray]) -> None:
        """Add changes to those to be sent on these routes, and send them where no message is in flight."""
        with self._lock:
            for number in routes:
                unsent = self._unsent[number]
                for id, change in changes.items():  # routes share these arrays, so they are not changed in place
                    unsent[id] = unsent[id] + change if id in unsent else change
        for number in routes:
            self._dispatch(number)

    def _dispatch(self, number: int) -> None:
        """Send the changes that wait on a route, unless a message is in flight there."""
        while changes := self._next_message(number):
            try:
                arrival = self._send(self._routes[number].group, number, list(changes), list(changes.values()))
            except Exception as error:
                self._fail_route(number, error)
                return
            if not arrival.done():
                arrival.add_done_callback(functools.partial(self._continue, number))
                return
            if not self._acknowledge(number, arrival):
                return

    def _continue(self, number: int, arrival: Future) -> None:
        if self._acknowledge(number, arrival):
            self._dispatch(number)

    def _next_message(self, number: int) -> dict[int, np.ndarray]:
        """Return the next message for a route, by slice id, and mark it as in flight; empty if there is none."""
        with self._lock:
            changes = self._unsent[number]
            if self._error is not None or number in self._in_flight or not changes:
                return {}
            self._unsent[number] = {}
            self._in_flight.add(number)
            self._sent += 1
            return changes

    def _acknowledge(self, number: int, arrival: Future) -> bool:
        """Record that a message has arrived; return False, and close the shard, if it has failed."""
        try:
            arrival.result()
        except BaseException as error:  # a cancelled future raises a BaseException
            self._fail_route(number, error)
            return False
        with self._lock:
            self._in_flight.discard(number)
        self._end_flushes()
        return True

    def _fail_route(self, number: int, error: BaseException) -> None:
        group = self._routes[number].group
        if not isinstance(error, RunError):
            error = RunError(f"changes could not be sent to server group {group}: {error!r}")
        self._fail(error)

    def _end_flushes(self) -> None:
        """Resolve the futures of all flushes if every change has been sent and has arrived."""
        with self._lock:
            error, sent = self._error, self._sent
            if error is None and (self._in_flight or any(self._unsent.values())):
                return
            flushes, self._flushes = self._flushes, []
        for future in flushes:
            if error is None:
                future.set_result(sent)
            else:
                future.set_exception(error)
