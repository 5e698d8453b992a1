"""What a shard tells the same shard of other server groups: by how much its own worker groups have changed each slice.

A slice's change is its value less what it was when the last change was sent, received changes being added to both. It
is owed on every route that begins at the group, and so is, on the routes onward, what is received. What is owed on one
route is added up until the message before it has arrived, so that a slow neighbour gets fewer messages, not a queue.
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

# Send changes, by slice id, to the shard of a neighbouring group, which shall ``receive`` them with the route's number.
Send = Callable[[int, int, Sequence[int], Sequence[np.ndarray]], Future]


class Synchronisation:
    """The part of a shard that keeps in step with its counterparts in other server groups. Thread-safe.

    ``group`` is the server group of this shard, ``frequency`` the number of updates of a slice between two of its
    changes. ``send(neighbour, route, ids, arrays)`` is called without a lock, one message at a time on each route; the
    arrays must not be written. Where it fails, ``fail`` is called with the reason.

    The trainable slices of all groups end up with all updates of all groups. One that is not trainable (a running mean)
    is an estimate that each group makes for itself; of these all groups get the average.
    """

    def __init__(self, group: int, routes: Routes, frequency: int, send: Send, fail: Callable[[BaseException], None]):
        assert frequency > 0, frequency
        self._own, self._routes = routes.own[group], routes.routes
        self._groups = len(routes.own)
        self._frequency = frequency
        self._send, self._fail = send, fail
        # By slice id, under the lock of its slot: the value at the last change, and the updates since then.
        self._last: dict[int, np.ndarray] = {}
        self._updates: dict[int, int] = {}
        self._lock = threading.Lock()
        self._owed: dict[int, dict[int, np.ndarray]] = {number: {} for number in range(len(self._routes))}
        self._under_way: set[int] = set()  # routes
        self._sent = 0
        self._flushes: list[Future[int]] = []
        self._error: BaseException | None = None

    def begin(self, slot: ServedSlice) -> None:
        """Take note of a slice's first value; a repeated call changes nothing."""
        self._last.setdefault(slot.spec.slice.id, slot.value.copy())
        self._updates.setdefault(slot.spec.slice.id, 0)

    def updated(self, slots: Iterable[ServedSlice]) -> None:
        """Count an update of these slices, and send the changes of those for which it is time."""
        changes = {}
        for slot in slots:
            id = slot.spec.slice.id
            with slot.lock:
                self._updates[id] += 1
                if self._updates[id] >= self._frequency:
                    changes[id] = self._change(slot)
        self._owe(self._own, changes)

    def receive(self, slots: Mapping[int, ServedSlice], route: int, changes: Mapping[int, np.ndarray]) -> None:
        """Add changes that have come on a route, by slice id, float32 (size,), and pass them on."""
        for id, change in changes.items():
            with slots[id].lock:
                slots[id].value += change
                self._last[id] += change
        self._owe(self._routes[route].onward, changes)

    def flush(self, slots: Iterable[ServedSlice]) -> Future[int]:
        """Send the changes that are left; see :meth:`dsinga.server.Shard.flush`."""
        changes = {}
        for slot in slots:
            with slot.lock:
                if self._updates[slot.spec.slice.id]:
                    changes[slot.spec.slice.id] = self._change(slot)
        self._owe(self._own, changes)
        flushed: Future[int] = Future()
        flushed.set_running_or_notify_cancel()
        with self._lock:
            self._flushes.append(flushed)
        self._end_flushes()
        return flushed

    def close(self, error: BaseException) -> None:
        """Send nothing more, and fail whoever waits for a flush."""
        with self._lock:
            self._error = error
        self._end_flushes()

    def pending(self) -> list[str]:
        """Say in words which neighbours have not taken what was sent to them."""
        with self._lock:
            groups = sorted({self._routes[number].group for number in self._under_way})
        return [f"server group {group} has not taken the changes sent to it" for group in groups]

    def _change(self, slot: ServedSlice) -> np.ndarray:
        """Return by how much a slice has changed, and begin anew from here; needs the slot's lock."""
        id = slot.spec.slice.id
        change = slot.value - self._last[id]
        if not slot.spec.trainable:
            change /= self._groups
            np.add(self._last[id], change, out=slot.value)
        np.copyto(self._last[id], slot.value)
        self._updates[id] = 0
        return change

    def _owe(self, routes: Sequence[int], changes: Mapping[int, np.ndarray]) -> None:
        with self._lock:
            for number in routes:
                owed = self._owed[number]
                for id, change in changes.items():  # arrays are shared among routes, and so never changed in place
                    owed[id] = owed[id] + change if id in owed else change
        for number in routes:
            self._dispatch(number)

    def _dispatch(self, number: int) -> None:
        """Send what is owed on a route, unless a message is under way there."""
        while owed := self._next(number):
            try:
                arrival = self._send(self._routes[number].group, number, list(owed), list(owed.values()))
            except Exception as error:
                self._lost(number, error)
                return
            if not arrival.done():
                arrival.add_done_callback(functools.partial(self._go_on, number))
                return
            if not self._arrived(number, arrival):
                return

    def _go_on(self, number: int, arrival: Future) -> None:
        if self._arrived(number, arrival):
            self._dispatch(number)

    def _next(self, number: int) -> dict[int, np.ndarray]:
        """Return the next message for a route, by slice id, which is under way from now on; empty if there is none."""
        with self._lock:
            owed = self._owed[number]
            if self._error is not None or number in self._under_way or not owed:
                return {}
            self._owed[number] = {}
            self._under_way.add(number)
            self._sent += 1
            return owed

    def _arrived(self, number: int, arrival: Future) -> bool:
        """Take note that a message has arrived; False if it has not."""
        try:
            arrival.result()
        except BaseException as error:  # a future may have been cancelled, too
            self._lost(number, error)
            return False
        with self._lock:
            self._under_way.discard(number)
        self._end_flushes()
        return True

    def _lost(self, number: int, error: BaseException) -> None:
        group = self._routes[number].group
        lost = error if isinstance(error, RunError) else RunError(f"server group {group} could not be told: {error!r}")
        self._fail(lost)

    def _end_flushes(self) -> None:
        with self._lock:
            error, sent = self._error, self._sent
            if error is None and (self._under_way or any(self._owed.values())):
                return
            flushes, self._flushes = self._flushes, []
        for flushed in flushes:
            if error is None:
                flushed.set_result(sent)
            else:
                flushed.set_exception(error)
