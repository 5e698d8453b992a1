"""Sends changes of slices (parts of params) to other server groups, one message at a time on each route.

Changes for a route are added up until its previous message has arrived, so that a slow or lost peer causes no growing
queue.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

import numpy as np

from dsinga.base.errors import RunError
from dsinga.cluster.server.group_sync import Routes, Send

# What an array is: the change of a slice, by its id, or the newest of something that a group makes, by (id, group).
# Changes that wait for one message are added up; of the others only the newest is sent.
Key = int | tuple[int, int]
Changes = dict[Key, np.ndarray]  # float32 (size,)


class ChangeSender:
    """Adds up the changes of a shard's slices for other server groups, and sends them. Thread-safe.

    ``send(group, route, ids, arrays)`` must not write to the arrays. If it fails, or a message takes more than
    ``patience`` seconds (0: no limit), the group is lost. Then nothing is sent to it until :meth:`link`. If
    ``patience`` seconds more pass without it, ``fail`` is called with the error.
    """

    def __init__(self, routes: Routes, send: Send, fail: Callable[[BaseException], None], patience: float = 0.0):
        self.routes = routes
        self._send, self._fail, self._patience = send, fail, patience
        self._lock = threading.Lock()
        # By route: changes that wait for the previous message to arrive, or for a lost group to come back.
        self._unsent: dict[int, Changes] = {number: {} for number in range(len(routes.routes))}
        self._in_flight: dict[int, Changes] = {}  # by route: the message that has not arrived yet
        self._late_at: dict[int, float] = {}  # by route: when that is late, in time.monotonic() seconds
        # By lost server group: when to give it up, in time.monotonic() seconds, and why.
        self._lost: dict[int, tuple[float, BaseException]] = {}
        self._sent = 0
        self._flushes: list[Future[int]] = []
        self._error: BaseException | None = None

    def enqueue(self, routes: Sequence[int], key: Key, change: np.ndarray) -> None:
        """Add the change of a slice to what waits on these routes; the caller holds the slice's lock."""
        with self._lock:
            for number in routes:
                _add(self._unsent[number], key, change)

    def dispatch(self, routes: Iterable[int]) -> None:
        """Send what waits on these routes, unless a message is in flight or the group is lost."""
        for number in routes:
            self._send_next(number)
        self._lose_late()
        if self._lost:
            self._check_lost()

    def flush(self) -> Future[int]:
        """Return a future that resolves when no change waits, to the number of messages ever sent."""
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

    def check_open(self) -> None:
        """Raise the error of :meth:`close`, if it has been called."""
        if self._error is not None:
            raise self._error

    def pending(self) -> list[str]:
        """Name the server groups that have not acknowledged a message, for errors."""
        with self._lock:
            groups = sorted({self.routes.routes[number].group for number in self._in_flight})
            lost = [f"server group {group} was lost: {error}" for group, (_, error) in sorted(self._lost.items())]
        return lost + [f"server group {group} has not taken the changes sent to it" for group in groups]

    def replace(self, group: int) -> None:
        """Send nothing to a server group that is being replaced, until :meth:`link`."""
        replaced = RunError(f"server group {group} is being replaced")
        with self._lock:
            self._lost[group] = time.monotonic() + self._patience, replaced
            for number in self._routes_to(group):
                self._take_back(number)

    def take_known(self, group: int, source: int, id: int) -> np.ndarray | None:
        """Return the sum of the changes that wait for a lost group to forward and that ``source`` already has."""
        known: Changes = {}
        with self._lock:
            for number in self._routes_to(group):
                if id not in self._unsent[number] or self.routes.reaches(number, source):
                    continue
                if self.routes.routes[number].onward:
                    _add(known, id, self._unsent[number][id])
                else:
                    del self._unsent[number][id]
        return known.get(id)

    def link(self, group: int) -> None:
        """Send a group that is back the changes that have waited for it, and all later ones."""
        with self._lock:
            self._lost.pop(group, None)
        self.dispatch(self._routes_to(group))
        self._end_flushes()

    def _routes_to(self, group: int) -> list[int]:
        return [number for number, route in enumerate(self.routes.routes) if route.group == group]

    def _send_next(self, number: int) -> None:
        while changes := self._next_message(number):
            try:
                arrival = self._send(self.routes.routes[number].group, number, list(changes), list(changes.values()))
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
        """Return a route's next message, by slice id, and mark it as in flight; empty for none."""
        with self._lock:
            changes = self._unsent[number]
            is_lost = self.routes.routes[number].group in self._lost
            if self._error is not None or number in self._in_flight or is_lost or not changes:
                return {}
            self._unsent[number] = {}
            self._in_flight[number] = changes
            self._late_at[number] = time.monotonic() + (self._patience or math.inf)
            self._sent += 1
            return changes

    def _acknowledge(self, number: int, changes: Changes, arrival: Future) -> bool:
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

    def _lose_late(self) -> None:
        """Take back messages that are late, because a peer may be silent without closing its connection."""
        with self._lock:
            now = time.monotonic()
            late = [(number, changes) for number, changes in self._in_flight.items() if now >= self._late_at[number]]
        for number, changes in late:
            group = self.routes.routes[number].group
            text = f"server group {group} has not taken the changes sent to it for {self._patience:g} s"
            self._lose(number, changes, RunError(text))

    def _lose(self, number: int, changes: Changes, error: BaseException) -> None:
        """Take back a message that could not be sent, and send nothing more to its group."""
        group = self.routes.routes[number].group
        if not isinstance(error, RunError):
            error = RunError(f"changes could not be sent to server group {group}: {error!r}")
        with self._lock:
            if self._in_flight.get(number) is changes:  # else the group has come back since
                self._take_back(number)
                self._lost.setdefault(group, (time.monotonic() + self._patience, error))

    def _take_back(self, number: int) -> None:
        for key, change in self._in_flight.pop(number, {}).items():
            if isinstance(key, int) or key not in self._unsent[number]:
                _add(self._unsent[number], key, change)

    def _check_lost(self) -> None:
        with self._lock:
            errors = [error for deadline, error in self._lost.values() if time.monotonic() >= deadline]
        if errors and self._error is None:
            self._fail(errors[0])

    def _end_flushes(self) -> None:
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


def _add(changes: Changes, key: Key, change: np.ndarray) -> None:
    """Add the change of a slice to others, without writing to arrays that routes share."""
    changes[key] = changes[key] + change if isinstance(key, int) and key in changes else change
