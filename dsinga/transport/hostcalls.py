"""Calls between processes of one host, in a tenth of the time of an Actor call.

Who is called listens in a thread of its own at an address made of a name. Such a Unix-domain socket cannot be reached
from another host, from another network namespace, or, here, by another user: that it connects is the proof that both
ends can share memory. The address ends with the socket, so there is nothing to clean up.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from dsinga.errors import RunError
from dsinga.transport.channel import Channel
from dsinga.transport.shared_buffer import SharedBuffer

# Seconds in which whoever listens must welcome a caller.
WELCOME = 10.0


class Reply:
    """What a call will come back with; used by the thread that uses the caller."""

    def __init__(self, caller: Caller):
        self._caller = caller
        self.came: tuple[Any, BaseException | None] | None = None

    def done(self) -> bool:
        """Whether it has come, or never will."""
        if self.came is None:
            self._caller.take_in()
        return self.came is not None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what went wrong, None if nothing did; TimeoutError after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.came is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left < 0:
                raise TimeoutError
            self._caller.take_in(left)
        return self.came[1]

    def result(self, timeout: float | None = None) -> Any:
        """Return the outcome, or raise what went wrong; TimeoutError after ``timeout`` seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        assert self.came is not None
        return self.came[0]


class Caller:
    """The end that calls. Used by one thread at a time; answers are read by whoever waits for one."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._waiting: dict[int, Reply] = {}
        self._calls = 0
        self._lost: OSError | None = None

    def call(self, *said: Any) -> Reply:
        """Send something that is answered."""
        self.take_in()  # or the other end might wait for room for its answers, and this one for room for its calls
        self._calls += 1
        reply = self._waiting[self._calls] = Reply(self)
        self._send((self._calls, *said))
        return reply

    def tell(self, *said: Any) -> None:
        """Send something that is not answered. If it cannot arrive, the next call fails."""
        self.take_in()
        self._send((None, *said))

    def bring(self, segment: SharedBuffer) -> None:
        """Let the other end see a segment, which its :class:`Guest` keeps. If it cannot arrive, the next call fails."""
        self.take_in()
        self._send((), segment)

    def take_in(self, timeout: float | None = 0.0) -> None:
        """Take in what has come, waiting up to ``timeout`` seconds (None: for ever) for the first of it."""
        wait = timeout
        while self._lost is None and self._poll.poll(None if wait is None else 1e3 * wait):
            try:
                said = self._channel.receive().said
            except OSError as lost:
                self._fail(lost)
                return
            if said is not None:
                number, outcome, error = said
                self._waiting.pop(number).came = outcome, error
                wait = 0.0

    def _send(self, said: Any, segment: SharedBuffer | None = None) -> None:
        try:
            if self._lost is None:
                self._channel.send(said, segment)
        except OSError as lost:
            self._lost = lost
        if self._lost is not None:
            self._fail(self._lost)

    def _fail(self, lost: OSError) -> None:
        self._lost = lost
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            reply.came = None, lost


class Guest:
    """Who has called: a channel to answer through, and the segment that was brought, if any."""

    def __init__(self, channel: Channel):
        self.channel = channel
        self.segment: SharedBuffer | None = None

    def answer(self, number: int | None, outcome: Any = None, error: BaseException | None = None) -> None:
        """Answer a call. Nobody is told where the caller is gone; what cannot be pickled is said in words."""
        if number is None:
            return
        with contextlib.suppress(OSError):
            try:
                self.channel.send((number, outcome, error))
            except (pickle.PicklingError, TypeError, AttributeError):
                self.channel.send((number, None, RunError(f"cannot be sent: {error!r}" if error else "no answer")))


# What takes a message: who says it, the number for the answer (None: no answer is wanted), and what is said.
Take = Callable[..., None]


class Listener:
    """Listens under ``name`` until it is closed, in a thread of its own.

    ``take`` is called with each message in turn, (guest, number, *said); whoever calls is handed ``welcome`` first.
    Raises OSError where there is no such socket.
    """

    def __init__(self, name: str, take: Take, welcome: SharedBuffer | None = None):
        self._take, self._welcome = take, welcome
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._closed = False
        try:
            self._socket.bind(_address(name))
            self._socket.listen(socket.SOMAXCONN)
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._serve, name=f"dsinga-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and hang up on everybody. Called by any thread, and more than once."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        guests: dict[int, Guest] = {}
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not self._closed:
            for fd, _ in poll.poll():
                if fd == self._socket.fileno():
                    guest = self._admit()
                    if guest is not None:
                        guests[guest.channel.fileno()] = guest
                        poll.register(guest.channel, select.POLLIN)
                elif not self._hear(guests[fd]):
                    poll.unregister(fd)
                    guests.pop(fd).channel.close()
        for guest in guests.values():
            guest.channel.close()
        self._socket.close()
        if self._welcome is not None:
            self._welcome.close()

    def _admit(self) -> Guest | None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # closed, or gone again
            return None
        guest = Guest(Channel(connection))
        if not _same_user(connection):
            guest.channel.close()
            return None
        try:
            guest.channel.send("welcome", self._welcome)
        except OSError:
            guest.channel.close()
            return None
        return guest

    def _hear(self, guest: Guest) -> bool:
        """Take a guest's next message; False if there will be none."""
        try:
            message, segment = guest.channel.receive()
        except OSError:
            return False
        if message is None:
            return True
        if segment is not None:
            segment.close()
            guest.segment = segment
            return True
        number, *said = message
        try:
            self._take(guest, number, *said)
        except RunError as error:
            guest.answer(number, error=error)
        except Exception as error:
            guest.answer(number, error=RunError(f"{said[0]} failed: {error!r}"))
        return True


def connect(name: str) -> tuple[Caller, SharedBuffer | None] | None:
    """Return a caller of who listens under ``name`` on this host, and what it welcomes with; None if nobody does."""
    if not hasattr(os, "memfd_create"):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(connection)
    try:
        connection.settimeout(WELCOME)
        connection.connect(_address(name))
        if _same_user(connection):
            welcome = channel.receive().segment
            connection.settimeout(None)
            if welcome is not None:
                welcome.close()
            return Caller(channel), welcome
    except OSError:
        pass
    channel.close()
    return None


def _address(name: str) -> str:
    return f"\0dsinga-{name}"


def _same_user(connection: socket.socket) -> bool:
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user == os.geteuid()
