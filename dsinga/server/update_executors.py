"""The change of a slice from one version to the next, and who does it: the last to push, a thread, or all together."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from dsinga.serial_executor import SerialExecutor
from dsinga.server.served_slice import ServedSlice
from dsinga.server.update_blocks import UpdateBlock

# Elements; an update of fewer is done before another thread has begun with it.
ASIDE = 1 << 16


class SliceUpdate:
    """What makes the next version of a slice, all contributions of a group having come: ``blocks``, in any order.

    ``end`` is to be called when it is done, ``fail`` with the reason where it cannot be done.
    """

    def __init__(
        self,
        slot: ServedSlice,
        blocks: list[UpdateBlock],
        end: Callable[[], None],
        fail: Callable[[BaseException], None],
    ):
        self.slot, self.blocks, self.end, self.fail = slot, blocks, end, fail
        self.running = 0

    def run(self) -> None:
        """Do it all, while nobody copies the value, and end it. Raises what the updater raises, having failed it."""
        try:
            with self.slot.lock:
                for block in self.blocks:
                    block.do()
        except BaseException as error:
            self.fail(error)
            raise
        self.end()


class InlineExecutor:
    """Has revisions done by whoever has brought the last contribution. Thread-safe, as are the other ways."""

    one_group = False  # whether it is for one worker group, and for servers without neighbours

    def add(self, revisions: Sequence[SliceUpdate], brought: Iterable[ServedSlice]) -> None:
        """Have revisions done that nobody has begun with; the caller has ``brought`` a contribution to these slots."""
        for revision in revisions:
            revision.run()

    def wait(self, future: Future[Any], timeout: float | None) -> Any:
        """Return the outcome of ``future``. Raises TimeoutError after ``timeout`` seconds."""
        return future.result(timeout)

    def close(self, message: str) -> None:
        """Do nothing more, because of ``message``."""


class BackgroundExecutor(InlineExecutor):
    """Has revisions worth it done in a thread of their own, where partitions of several processes push.

    Else the last to push would do them all, be the last again with the next slice, and leave the others' cores idle.
    """

    one_group = True

    def __init__(self) -> None:
        self._thread = SerialExecutor("dsinga updates")

    def add(self, revisions: Sequence[SliceUpdate], brought: Iterable[ServedSlice]) -> None:
        """See :meth:`InlineExecutor.add`."""
        if sum(revision.slot.value.size for revision in revisions) > ASIDE:
            self._thread.start(super().add, revisions, brought)
        else:
            super().add(revisions, brought)

    def close(self, message: str) -> None:
        """See :meth:`InlineExecutor.close`; the thread ends."""
        self._thread.close(message)


class CooperativeExecutor(InlineExecutor):
    """Has all partitions do revisions, where they are threads of one process.

    Each does a part, by what it has brought, whenever it pushes, and any blocks that are left while it waits: by
    :meth:`wait` alone, or nobody might do them. Nobody looks at a value meanwhile but who waits for its next version.
    """

    one_group = True

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: collections.deque[SliceUpdate] = collections.deque()  # those of which there are blocks left to take

    def add(self, revisions: Sequence[SliceUpdate], brought: Iterable[ServedSlice]) -> None:
        """See :meth:`InlineExecutor.add`; the caller does its share at once, of what was added first."""
        for revision in revisions:
            if not revision.blocks:
                revision.end()
                continue
            with self._changed:
                self._due.append(revision)
                self._changed.notify_all()
        share = sum(slot.spec.slice.size / len(slot.spec.contributors) for slot in brought)  # elements
        while share > 0 and (taken := self._take(0)):
            share -= taken[1].elements
            self._do(*taken)

    def close(self, message: str) -> None:
        """See :meth:`InlineExecutor.close`."""
        with self._changed:
            self._due.clear()
            self._changed.notify_all()

    def wait(self, future: Future[Any], timeout: float | None) -> Any:
        """See :meth:`InlineExecutor.wait`; do blocks meanwhile, of what was added last, for it is needed first."""
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

    def _take(self, at: int) -> tuple[SliceUpdate, UpdateBlock] | None:
        with self._changed:
            if not self._due:
                return None
            revision = self._due[at]
            block = revision.blocks.pop()
            revision.running += 1
            if not revision.blocks:
                del self._due[at]
            return revision, block

    def _do(self, revision: SliceUpdate, block: UpdateBlock) -> None:
        try:
            block.do()
        except BaseException as error:
            self.close(f"{error!r}")  # what has failed never ends, and nobody goes on
            revision.fail(error)
            raise
        with self._changed:
            revision.running -= 1
            last = not revision.blocks and not revision.running
        if last:
            revision.end()
