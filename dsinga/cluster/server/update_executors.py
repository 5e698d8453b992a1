"""Runs updates of slices in the thread that pushes last, in a background thread, or in all waiting threads."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from dsinga.cluster.serial_executor import SerialExecutor
from dsinga.cluster.server.served_slice import ServedSlice, UpdateBlock

# Smaller updates are done sooner by the calling thread than another thread can begin with them.
MIN_BACKGROUND_ELEMENTS = 1 << 16


class _ThreadUpdates(threading.local):
    """The seconds that this thread has spent in updates."""

    seconds = 0.0


thread_updates = _ThreadUpdates()


def _run(block: UpdateBlock) -> None:
    started = time.perf_counter()
    block.do()
    thread_updates.seconds += time.perf_counter() - started


class SliceUpdate:
    """The update of a slice to its next version, as ``blocks`` that may be computed in any order."""

    def __init__(
        self,
        served_slice: ServedSlice,
        blocks: list[UpdateBlock],
        end: Callable[[], None],
        fail: Callable[[BaseException], None],
    ):
        self.served_slice, self.blocks, self.end, self.fail = served_slice, blocks, end, fail
        self.running = 0

    def run(self) -> None:
        """Compute all blocks under the slice's lock and end the update; an updater's error fails it."""
        try:
            with self.served_slice.lock:
                for block in self.blocks:
                    _run(block)
        except BaseException as error:
            self.fail(error)
            raise
        self.end()


class InlineExecutor:
    """Runs updates at once, in the thread that pushes the last gradient. Thread-safe, like the other executors."""

    requires_single_group = False  # whether it requires a single worker group and a single server group

    def add(self, updates: Sequence[SliceUpdate], pushed: Iterable[ServedSlice]) -> None:
        """Run ``updates``, or schedule them; ``pushed`` are the slices of the caller's push."""
        for update in updates:
            update.run()

    def wait(self, future: Future[Any], timeout: float | None) -> Any:
        """Wait for ``future`` and return its outcome. Raises TimeoutError after ``timeout`` seconds."""
        return future.result(timeout)

    def close(self, message: str) -> None:
        """Run no more updates; ``message`` says why."""


class BackgroundExecutor(InlineExecutor):
    """Runs large updates in a background thread, so that they do not delay the slowest worker."""

    requires_single_group = True

    def __init__(self) -> None:
        self._thread = SerialExecutor("dsinga updates")

    def add(self, updates: Sequence[SliceUpdate], pushed: Iterable[ServedSlice]) -> None:
        """Run small updates at once, and hand large ones to the thread."""
        if sum(update.served_slice.value.size for update in updates) > MIN_BACKGROUND_ELEMENTS:
            self._thread.submit(super().add, updates, pushed)
        else:
            super().add(updates, pushed)

    def close(self, message: str) -> None:
        """End the thread; ``message`` says why."""
        self._thread.close(message)


class CooperativeExecutor(InlineExecutor):
    """Shares the blocks of updates among the workers of a group, which are threads of one process.

    A worker runs some blocks when it pushes, in proportion to the size of its push, and any remaining blocks while it
    waits. It must wait with :meth:`wait`, or blocks might be left.
    """

    requires_single_group = True

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: collections.deque[SliceUpdate] = collections.deque()  # updates with blocks that have not begun

    def add(self, updates: Sequence[SliceUpdate], pushed: Iterable[ServedSlice]) -> None:
        """Queue updates, and run the caller's share of the queued blocks, oldest updates first."""
        for update in updates:
            if not update.blocks:
                update.end()
                continue
            with self._changed:
                self._queue.append(update)
                self._changed.notify_all()
        share = sum(
            served_slice.spec.slice.size / len(served_slice.spec.contributors) for served_slice in pushed
        )  # elements
        while share > 0 and (item := self._take(0)):
            share -= item[1].elements
            self._run_block(*item)

    def close(self, message: str) -> None:
        """Drop all queued blocks, and wake waiting threads."""
        with self._changed:
            self._queue.clear()
            self._changed.notify_all()

    def wait(self, future: Future[Any], timeout: float | None) -> Any:
        """Wait for ``future``, running the newest update's blocks meanwhile; return its outcome."""
        deadline = None if timeout is None else time.monotonic() + timeout
        has_callback = False
        while not future.done():
            item = self._take(-1)
            if item:
                self._run_block(*item)
                continue
            if not has_callback:
                future.add_done_callback(self._wake)
                has_callback = True
            remaining = None if deadline is None else deadline - time.monotonic()
            with self._changed:
                if not self._changed.wait_for(lambda: self._queue or future.done(), remaining):
                    raise TimeoutError
        return future.result()

    def _wake(self, _: Future[Any]) -> None:
        with self._changed:
            self._changed.notify_all()

    def _take(self, index: int) -> tuple[SliceUpdate, UpdateBlock] | None:
        with self._changed:
            if not self._queue:
                return None
            update = self._queue[index]
            block = update.blocks.pop()
            update.running += 1
            if not update.blocks:
                del self._queue[index]
            return update, block

    def _run_block(self, update: SliceUpdate, block: UpdateBlock) -> None:
        try:
            _run(block)
        except BaseException as error:
            self.close(f"{error!r}")  # the failed update never ends, so other updates are of no use
            update.fail(error)
            raise
        with self._changed:
            update.running -= 1
            is_last = not update.blocks and not update.running
        if is_last:
            update.end()
