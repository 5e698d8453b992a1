"""Synchronisation of a shard with the same shards of other server groups, by sending the changes of its slices.

The change of a slice is its value minus its value when the last change was sent; changes that are received are added
to both. A change is to be sent on every route that begins at the group; received changes are to be forwarded on the
onward routes. The changes for a route are added up until its previous message has arrived, so that a slow peer gets
fewer messages, not a growing queue. Where a peer is lost they are added up until it has come back.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from dsinga.errors import RunError
from dsinga.server.routes import Routes
from dsinga.server.served_slice import ServedSlice

# Sends changes to the shard of a linked group: (group, route, slice ids, arrays). The shard there gets them by
# ``receive``, with the number of the route.
Send = Callable[[int, int, Sequence[int], Sequence[np.ndarray]], Future]
Changes = dict[int, np.ndarray]  # by slice id, float32 (size,)


class Synchronisation:
    """Sends the changes of a shard's slices to the same shards of other server groups, and adds theirs. Thread-safe.

    ``group`` is the server group of this shard, ``frequency`` the number of updates of a slice after which its change
    is sent. ``send(group, route, ids, arrays)`` is called without a lock, one message at a time on each route; it must
    not write to the arrays.

    If it fails, the group is lost: nothing is sent to it until :meth:`link`. When that is not called for ``patience``
    seconds, ``fail`` is called with the error at the next update.

    In the end the trainable slices of all groups have the updates of all groups. A slice that is not trainable (a
    running mean) is estimated by each group separately, and all groups get the average.
    """

    def __init__(
        self, group: int, routes: Routes, frequency: int, send: Send, fail: Callable[[BaseException], None],
        patience: float = 0.0,
    ):  # fmt: skip
        assert frequency > 0, frequency
        self._group, self._table = group, routes
        self._starts, self._routes = routes.starts[group], routes.routes
        self._groups = len(routes.starts)
        self._frequency = frequency
        self._send, self._fail, self._patience = send, fail, patience
        # By slice id, under the lock of the slice: its value at the last change, and the number of updates since then.
        self._last: dict[int, np.ndarray] = {}
        self._updates: dict[int, int] = {}
        self._lock = threading.Lock()
        # By route: changes that wait for the previous message to arrive, or for a lost group to come back.
        self._unsent: dict[int, Changes] = {number: {} for number in range(len(self._routes))}
        self._in_flight: dict[int, Changes] = {}  # by route: the message that has not arrived yet
        # By lost server group: when to give it up, in time.monotonic() seconds, and why.
        self._lost: dict[int, tuple[float, BaseException]] = {}
        self._sent = 0
        self._flushes: list[Future[int]] = []
        self._error: BaseException | None = None

    def begin(self, served_slice: ServedSlice) -> None:
        """Begin to track the changes of a slice from its present value; a repeated call changes nothing."""
        self._last.setdefault(served_slice.spec.slice.id, served_slice.value.copy())
        self._updates.setdefault(served_slice.spec.slice.id, 0)

    def updated(self, served_slices: Iterable[ServedSlice]) -> None:
        """Count an update of these slices, and send the changes of those that have had ``frequency`` updates."""
        for served_slice in served_slices:
            with served_slice.lock:
                self._updates[served_slice.spec.slice.id] += 1
                if self._updates[served_slice.spec.slice.id] >= self._frequency:
                    self._enqueue_change(served_slice)
        self._dispatch(self._starts)

    def receive(self, served_slices: Mapping[int, ServedSlice], route: int, changes: Mapping[int, np.ndarray]) -> None:
        """Add changes received on a route, float32 (size,) by slice id, and forward them."""
        onward = self._routes[route].onward
        for id, change in changes.items():
            with served_slices[id].lock:
                served_slices[id].value += change
                served_slices[id].changes += 1
                self._last[id] += change
                self._enqueue(onward, id, change)
        self._dispatch(onward)

    def flush(self, served_slices: Iterable[ServedSlice]) -> Future[int]:
        """Send all changes that have not been sent yet, for :meth:`dsinga.server.Shard.flush`."""
        for served_slice in served_slices:
            with served_slice.lock:
                if self._updates[served_slice.spec.slice.id]:
                    self._enqueue_change(served_slice)
        self._dispatch(self._starts)
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
            lost = [f"server group {group} was lost: {error}" for group, (_, error) in sorted(self._lost.items())]
        return lost + [f"server group {group} has not taken the changes sent to it" for group in groups]

    def values_for(
        self, group: int, source: int, served_slices: Mapping[int, ServedSlice]
    ) -> dict[int, tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Return this group's share of the values and states with which a lost group comes back, by slice id.

        All groups that are linked with it are asked, one after the other; the sum of what they return is the value.
        The group ``source`` returns all that it has sent and received. Changes that wait for the lost group are

        - on a route that reaches the source after the lost group: not part of that value, and sent after :meth:`link`;
        - on a route that ends at the lost group: part of it, or soon received by the source. They are dropped here;
        - on any other route: part of it, and still to be forwarded. So they are subtracted, and sent after `link`.

        So each group gets each change once, except for changes that were on their way at that moment: those that the
        lost group had received and not forwarded, and those that the source receives later by another route.
        """
        replaced = RunError(f"server group {group} is being replaced")
        with self._lock:
            self._lost[group] = time.monotonic() + self._patience, replaced
            for number in self._routes_to(group):
                self._take_back(number)
        shares = {}
        for id, served_slice in served_slices.items():
            with served_slice.lock:
                known = self._take_known(group, source, id)
                if self._group == source:
                    state = {name: array.copy() for name, array in served_slice.state.items()}
                    shares[id] = (self._last[id].copy() if known is None else self._last[id] - known), state
                elif known is not None:
                    shares[id] = -known, {}
        return shares

    def _take_known(self, group: int, source: int, id: int) -> np.ndarray | None:
        """Return the sum of the changes that wait for a lost group, and are to be forwarded, but that ``source`` has.

        Those that are not to be forwarded are dropped.
        """
        known: Changes = {}
        with self._lock:
            for number in self._routes_to(group):
                if id not in self._unsent[number] or self._table.reaches(number, source):
                    continue
                if self._routes[number].onward:
                    _add(known, id, self._unsent[number][id])
                else:
                    del self._unsent[number][id]
        return known.get(id)

    def link(self, group: int) -> None:
        """Send a group that was lost the changes that have waited for it, and all later ones."""
        with self._lock:
            self._lost.pop(group, None)
        self._dispatch(self._routes_to(group))
        self._end_flushes()

    def _routes_to(self, group: int) -> list[int]:
        return [number for number, route in enumerate(self._routes) if route.group == group]

    def _enqueue_change(self, served_slice: ServedSlice) -> None:
        """Enqueue the change of a slice since the last one, and track the next change; the caller holds its lock."""
        id = served_slice.spec.slice.id
        change = served_slice.value - self._last[id]
        if not served_slice.spec.trainable:
            change /= self._groups
            np.add(self._last[id], change, out=served_slice.value)
        np.copyto(self._last[id], served_slice.value)
        self._updates[id] = 0
        self._enqueue(self._starts, id, change)

    def _enqueue(self, routes: Sequence[int], id: int, change: np.ndarray) -> None:
        """Add the change of a slice to those to be sent on these routes; the caller holds the lock of the slice.

        So that nobody meets a change that is counted as sent and that waits on no route.
        """
        with self._lock:
            for number in routes:
                _add(self._unsent[number], id, change)

    def _dispatch(self, routes: Iterable[int]) -> None:
        """Send the changes that wait on these routes, where no message is in flight and no group is lost."""
        for number in routes:
            self._send_next(number)
        if self._lost:
            self._check_lost()

    def _send_next(self, number: int) -> None:
        while changes := self._next_message(number):
            try:
                arrival = self._send(self._routes[number].group, number, list(changes), list(changes.values()))
            except Exception as error:
                self._lose(number, changes, error)
                return
            if not arrival.done():
                arrival.add_done_callback(functools.partial(self._continue, number, changes))
                return
            if not self._acknowledge(number, changes, arrival):
                return

    def _continue(self, number: int, changes: Changes, arrival: Future) -> None:
        if self._acknowledge(number, changes, arrival):
            self._send_next(number)
        elif self._lost:
            self._check_lost()

    def _next_message(self, number: int) -> Changes:
        """Return the next message for a route, by slice id, and mark it as in flight; empty if there is none."""
        with self._lock:
            changes = self._unsent[number]
            is_lost = self._routes[number].group in self._lost
            if self._error is not None or number in self._in_flight or is_lost or not changes:
                return {}
            self._unsent[number] = {}
            self._in_flight[number] = changes
            self._sent += 1
            return changes

    def _acknowledge(self, number: int, changes: Changes, arrival: Future) -> bool:
        """Record that a message has arrived; return False if it has failed, or was taken back before."""
        try:
            arrival.result()
        except BaseException as error:  # a cancelled future raises a BaseException
            self._lose(number, changes, error)
            return False
        with self._lock:
            if self._in_flight.get(number) is not changes:
                return False
            del self._in_flight[number]
        self._end_flushes()
        return True

    def _lose(self, number: int, changes: Changes, error: BaseException) -> None:
        """Take back a message that could not be sent, and send nothing more to its group."""
        group = self._routes[number].group
        if not isinstance(error, RunError):
            error = RunError(f"changes could not be sent to server group {group}: {error!r}")
        with self._lock:
            if self._in_flight.get(number) is changes:  # else the group has come back since
                self._take_back(number)
                self._lost.setdefault(group, (time.monotonic() + self._patience, error))

    def _take_back(self, number: int) -> None:
        for id, change in self._in_flight.pop(number, {}).items():
            _add(self._unsent[number], id, change)

    def _check_lost(self) -> None:
        with self._lock:
            errors = [error for deadline, error in self._lost.values() if time.monotonic() >= deadline]
        if errors and self._error is None:
            self._fail(errors[0])

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


def _add(changes: Changes, id: int, change: np.ndarray) -> None:
    """Add the change of a slice to others. Routes share the arrays, so that none is changed in place."""
    changes[id] = changes[id] + change if id in changes else change
