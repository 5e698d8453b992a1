"""What bridges send from one partition of a group to another: in process as it is, else from worker to worker.

Between processes of one host it goes in memory that is handed over, between hosts by Actor calls.

Mail never blocks its sender, and is read in any order. The partitions of a group go through the same iterations, so
mail says of which one it is by its number, and nobody gets far ahead: mail for an iteration that its reader has not
come near to is kept, but acknowledged later, and at the end of an iteration a sender waits until that of the one
before has been acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from dsinga.errors import RunError
from dsinga.ops import Array
from dsinga.transport.hostcalls import Caller, Guest, Listener
from dsinga.transport.roads import POLL_SECONDS, tell
from dsinga.worker.meter import Meter

# By so many iterations mail may be ahead of its reader and still be acknowledged at once.
AHEAD = 1


class Mailbox:
    """What has come for one partition and has not been taken yet. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived: dict[tuple[int, str], Array] = {}
        self._early: list[tuple[int, Future[None]]] = []
        self._turn = 0
        self._error: RunError | None = None

    def put(self, turn: int, key: str, array: Array) -> Future[None] | None:
        """Take in what was sent under ``key`` in iteration ``turn``; what comes a second time is dropped.

        Returns a future that resolves when the reader has come near to that iteration; None where it has already.
        Raises what :meth:`close` was given after that.
        """
        with self._changed:
            self.check()
            if turn >= self._turn:
                self._arrived.setdefault((turn, key), array)
                self._changed.notify_all()
            if turn <= self._turn + AHEAD:
                return None
            acknowledged: Future[None] = Future()
            acknowledged.set_running_or_notify_cancel()  # so that resolving it never meets a cancelled future
            self._early.append((turn, acknowledged))
            return acknowledged

    def begin(self, turn: int) -> None:
        """Go on to iteration ``turn``; what nobody has taken of those before is dropped."""
        with self._changed:
            self._turn = turn
            self._arrived = {place: array for place, array in self._arrived.items() if place[0] >= turn}
            near = [future for early, future in self._early if early <= turn + AHEAD]
            self._early = [(early, future) for early, future in self._early if early > turn + AHEAD]
        for future in near:
            future.set_result(None)

    def take(self, key: str, timeout: float) -> Array:
        """Return what was sent under ``key`` in this iteration; TimeoutError if it is not there in time."""
        place = (self._turn, key)
        with self._changed:
            if not self._changed.wait_for(lambda: place in self._arrived or self._error is not None, timeout):
                raise TimeoutError
            self.check()
            return self._arrived.pop(place)

    def check(self) -> None:
        """Raise what :meth:`close` was given, if it was."""
        if self._error is not None:
            raise self._error

    def close(self, error: RunError) -> None:
        """Fail whoever waits, and every later call, with ``error``; the first error stays."""
        with self._changed:
            self._error = self._error or error
            self._arrived.clear()
            early, self._early = self._early, []
            self._changed.notify_all()
        for _, future in early:
            future.set_exception(self._error)


class Acknowledgement(Protocol):
    """What a sender waits for: a concurrent future, or a reply from another process of this host."""

    def done(self) -> bool:
        """Whether it has come, or an error in its place."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, None if there is none; TimeoutError after ``timeout`` seconds."""


class Peer(Protocol):
    """The way to the mailbox of another partition of the group."""

    crosses: bool  # whether it leads to another process

    def put(self, turn: int, key: str, array: Array) -> Acknowledgement | None:
        """Send; return what is done when it has been acknowledged, None if it is already."""


class Neighbour:
    """A partition in the same process: it gets the array itself."""

    crosses = False

    def __init__(self, box: Mailbox):
        self.put = box.put


class Courier:
    """A partition in another process of this host, which ``caller`` reaches."""

    crosses = True

    def __init__(self, caller: Caller):
        self._caller = caller

    def put(self, turn: int, key: str, array: Array) -> Acknowledgement:
        """See :class:`Peer`."""
        return self._caller.call(turn, key, *pack(array))


class Correspondent:
    """A partition on another host, behind ``deliver`` of its actor; ``loop`` is the event loop of this worker."""

    crosses = True

    def __init__(self, actor: Any, loop: asyncio.AbstractEventLoop):
        self._actor, self._loop = actor, loop

    def put(self, turn: int, key: str, array: Array) -> Future[None]:
        """See :class:`Peer`."""
        packed, order = pack(array)
        sent = self._actor.deliver(tell(turn, key, order), packed)  # on its way: what follows is about the outcome
        return asyncio.run_coroutine_threadsafe(_outcome(sent), self._loop)


async def _outcome(sent: Awaitable[None]) -> None:
    await sent


class GroupPeers:
    """The mail of one partition (:class:`dsinga.layers.context.Peers`). What waits for mail counts into ``meter``."""

    def __init__(self, timeout: float, meter: Meter):
        self.box = Mailbox()
        self._timeout = timeout
        self._meter = meter
        self._peers: Sequence[Peer] = ()
        self._turn = 0
        self._iteration = ""
        self._sent: list[tuple[int, int, str, Acknowledgement]] = []
        self._listener: Listener | None = None

    def listen(self, name: str) -> None:
        """Let other processes of this host send mail to ``name``, until :meth:`close`, where the system can do that."""
        with contextlib.suppress(OSError, AttributeError):
            self._listener = Listener(name, self._deliver)

    def _deliver(
        self, guest: Guest, number: int | None, turn: int, key: str, array: Array, order: Sequence[int]
    ) -> None:
        acknowledged = self.box.put(turn, key, unpack(array, order))
        if acknowledged is None:
            guest.answer(number)
        else:
            acknowledged.add_done_callback(lambda done: guest.answer(number, error=done.exception()))

    def close(self) -> None:
        """Take no more mail from other processes."""
        if self._listener is not None:
            self._listener.close()

    def introduce(self, peers: Sequence[Peer]) -> None:
        """Learn the ways to the partitions of the group, by their numbers."""
        self._peers = peers

    def begin(self, iteration: str) -> None:
        """Begin the next iteration, which errors call ``iteration``."""
        self._turn += 1
        self._iteration = iteration
        self.box.begin(self._turn)

    def send(self, location: int, key: str, array: Array) -> None:
        """Send ``array``, which nobody changes any more, to partition ``location``."""
        started = time.perf_counter()
        peer = self._peers[location]
        self._meter.count(peer.crosses, array.nbytes)
        acknowledged = peer.put(self._turn, key, array)
        if acknowledged is not None:
            self._sent.append((self._turn, location, key, acknowledged))
        self._meter.waited += time.perf_counter() - started

    def receive(self, key: str) -> Array:
        """Return what was sent here under ``key`` in this iteration.

        Raises RunError, saying what was waited for, when the time is up, and soon after a partition that this one has
        sent something is lost, or the run ends.
        """
        started = time.perf_counter()
        while True:
            try:
                array = self.box.take(key, POLL_SECONDS)
                break
            except TimeoutError:
                self._look()
                if time.perf_counter() - started > self._timeout:
                    raise RunError(f"waited {self._timeout:g} s for {key!r} in {self._iteration}") from None
        self._meter.waited += time.perf_counter() - started
        return array

    def finish(self) -> None:
        """End the iteration: wait until what was sent in the one before has been acknowledged."""
        if not self._sent:
            return
        started = time.perf_counter()
        for turn, location, key, acknowledged in self._sent:
            while turn < self._turn and not acknowledged.done():
                try:
                    acknowledged.exception(POLL_SECONDS)
                except TimeoutError:
                    self.box.check()
                    if time.perf_counter() - started > self._timeout:
                        raise RunError(
                            f"waited {self._timeout:g} s for partition {location} to come near to {self._iteration}: "
                            f"it has not taken {key!r}"
                        ) from None
        self._look()
        self._meter.waited += time.perf_counter() - started

    def _look(self) -> None:
        """Raise RunError if something that was sent has not arrived; forget what has."""
        for _, location, key, acknowledged in self._sent:
            error = acknowledged.exception() if acknowledged.done() else None
            if error is not None:
                raise RunError(f"partition {location} was lost while {key!r} was sent to it: {error}") from error
        self._sent = [sent for sent in self._sent if not sent[-1].done()]


def pack(array: Array) -> tuple[Array, tuple[int, ...]]:
    """Return an array as Dask can send it without a copy or another order of its elements, and how to undo it.

    Dask makes C-contiguous what is not, but a channels-last image is to arrive as one: it travels as the view of it
    that is C-contiguous.
    """
    order = tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))  # stable: ties stay in order
    return np.ascontiguousarray(array.transpose(order)), order


def unpack(array: Array, order: Sequence[int]) -> Array:
    """Undo :func:`pack`."""
    return array.transpose(np.argsort(order))
