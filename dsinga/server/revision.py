"""The change of a slice from one version to the next, and who does which piece of it.

Where all partitions are threads of one process they share the work: each does a part, by what it has brought, whenever
it pushes, and any pieces that are left while it waits. Else the last one to push would do it all, be the last again
with the next slice, and let the others wait.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from dsinga.server.pieces import Piece
from dsinga.server.slot import Slot


class Revision:
    """What makes the next version of a slice, all contributions of a group having come: ``pieces``, in any order."""

    def __init__(self, slot: Slot, group: int, pieces: list[Piece]):
        self.slot, self.group, self.pieces = slot, group, pieces
        self.running = 0

    def run(self) -> None:
        """Do it all, while nobody copies the value."""
        with self.slot.lock:
            for piece in self.pieces:
                piece.do()


class Revisions:
    """The revisions that threads share. Thread-safe.

    Nobody looks at a value meanwhile but who waits for its next version. ``end`` is called with each revision that is
    done, ``fail`` with the slot and the group of one that cannot be done, and the reason, which is raised as well.
    """

    def __init__(self, end: Callable[[Revision], None], fail: Callable[[Slot, int, BaseException], None]):
        self._end, self._fail = end, fail
        self._changed = threading.Condition()
        self._due: collections.deque[Revision] = collections.deque()  # those of which there are pieces left to take

    def add(self, revisions: Iterable[Revision]) -> None:
        """Have revisions done that nobody has begun with."""
        for revision in revisions:
            if not revision.pieces:
                self._end(revision)
                continue
            with self._changed:
                self._due.append(revision)
                self._changed.notify_all()

    def work(self, elements: float) -> None:
        """Do pieces of about so many elements, of what was added first, as far as there are any."""
        while elements > 0 and (taken := self._take(0)):
            elements -= taken[1].elements
            self._do(*taken)

    def close(self) -> None:
        """Do nothing more."""
        with self._changed:
            self._due.clear()
            self._changed.notify_all()

    def wait(self, future: Future[Any], timeout: float | None) -> Any:
        """Return the outcome of ``future``; do pieces meanwhile, of what was added last, for it is needed first.

        Raises TimeoutError after ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        listens = False
        while not future.done():
            taken = self._take(-1)
            if taken:
                self._do(*taken)
                continue
            if not listens:
                future.add_done_callback(self._wake)
                listens = True
            left = None if deadline is None else deadline - time.monotonic()
            with self._changed:
                if not self._changed.wait_for(lambda: self._due or future.done(), left):
                    raise TimeoutError
        return future.result()

    def _wake(self, _: Future[Any]) -> None:
        with self._changed:
            self._changed.notify_all()

    def _take(self, at: int) -> tuple[Revision, Piece] | None:
        with self._changed:
            if not self._due:
                return None
            revision = self._due[at]
            piece = revision.pieces.pop()
            revision.running += 1
            if not revision.pieces:
                del self._due[at]
            return revision, piece

    def _do(self, revision: Revision, piece: Piece) -> None:
        try:
            piece.do()
        except BaseException as error:
            self.close()  # what has failed never ends, and nobody goes on
            self._fail(revision.slot, revision.group, error)
            raise
        with self._changed:
            revision.running -= 1
            last = not revision.pieces and not revision.running
        if last:
            self._end(revision)
