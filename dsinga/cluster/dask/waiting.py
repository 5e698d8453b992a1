"""Waits for other runs, Dask workers or schedulers: announces the reason, and fails after too long a wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

# Seconds after which a wait is announced, and between two announcements after the first one.
FIRST_ANNOUNCEMENT_SECONDS = 1.0
ANNOUNCEMENT_SECONDS = 300.0
# The same where what is waited for has changed, as it does often where many Dask workers come one after another.
CHANGE_SECONDS = 10.0
# Seconds between two checks whether a wait is over.
CHECK_SECONDS = 0.2

T = TypeVar("T")


class StillWaiting(NamedTuple):
    """The reason for a wait that goes on, and the error if it lasts too long.

    Attributes:
        topic: the sentence's part that stays the same over time; a new topic is announced soon.
    """

    sentence: str
    failure: Exception
    topic: object = None


class Announcements:
    """Announces the reason for a wait after a second, every five minutes, and after changes."""

    def __init__(self, announce: Callable[[str], None]):
        self._announce = announce
        self._next = time.monotonic() + FIRST_ANNOUNCEMENT_SECONDS
        self._last, self._topic = 0.0, object()
        self.count = 0

    def seconds_left(self) -> float:
        """Return the seconds until the next announcement."""
        return max(0.0, self._next - time.monotonic())

    def give(self, sentence: str, topic: object = None) -> None:
        """Announce a sentence if an announcement is due."""
        now = time.monotonic()
        has_changed = self.count and topic != self._topic and now >= self._last + CHANGE_SECONDS
        if now >= self._next or has_changed:
            self._last, self._next, self._topic = now, now + ANNOUNCEMENT_SECONDS, topic
            self.count += 1
            self._announce(sentence)


def wait_until(
    condition: Callable[[float], T | StillWaiting],
    seconds: float,
    announcements: Announcements,
    check: Callable[[], None] = lambda: None,
    pause: float = CHECK_SECONDS,
) -> T:
    """Call ``condition`` every ``pause`` seconds until its result is not StillWaiting; return the result.

    ``condition`` receives the seconds since the wait began. Between two calls, the wait is announced and ``check`` is
    called. Raises the last StillWaiting's failure after ``seconds``.
    """
    began = time.monotonic()
    while isinstance(result := condition(time.monotonic() - began), StillWaiting):
        if time.monotonic() - began >= seconds:
            raise result.failure
        announcements.give(result.sentence, result.topic)
        check()
        threading.Event().wait(pause)
    return result


def how_to_give_up() -> str:
    """Return advice for messages: how to end a wait of this thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return "Ctrl-C gives up" if is_main else "cancel() gives up"
