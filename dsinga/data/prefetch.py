"""Reading ahead on a thread, so that a step finds its batch ready."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from dsinga.errors import RunError

T = TypeVar("T")
TIMEOUT = 600.0


class Prefetch(Generic[T], Iterator[T]):
    """Iterate over ``read(step)`` for steps ``start``, ``start + 1``, ... in order, read ahead on a thread.

    The thread ends with :meth:`close`, with the last step, with an error, or when the iterator is garbage-collected
    (``read`` must not refer to it).

    Args:
        read: called on the thread, one step at a time.
        start: the first step.
        stop: the step to stop before; None goes on for ever.
        depth: how many results may wait to be taken.

    Raises:
        Exception: from ``next``, what ``read`` raised for that step, with its traceback; the iterator is closed then.
        RunError: from ``next``, after 600 s of waiting for one step, or when the iterator is closed.
    """

    def __init__(self, read: Callable[[int], T], start: int, stop: int | None = None, depth: int = 3):
        self._step = start
        self._stop = stop
        self._queue: _Queue[T] = _Queue(depth)
        self._thread = threading.Thread(
            target=_fill, args=(self._queue, read, start, stop), name="dsinga-prefetch", daemon=True
        )
        self._finalizer = weakref.finalize(self, self._queue.close)  # the thread holds the queue, never the iterator
        self._thread.start()

    def __next__(self) -> T:
        if self._stop is not None and self._step >= self._stop:
            raise StopIteration
        try:
            item = self._queue.get(self._step)
        except BaseException:
            self.close()
            raise
        self._step += 1
        return item

    def close(self) -> None:
        """End the thread, dropping what was read ahead; a ``read`` in progress is waited for at most a second."""
        if self._finalizer.alive:
            self._finalizer()
            self._thread.join(timeout=1.0)

    def __enter__(self) -> Prefetch[T]:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


class _Queue(Generic[T]):
    """What the reading thread and the consumer share."""

    def __init__(self, depth: int):
        self._depth = depth
        self._items: deque[T] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: T) -> None:
        with self._changed:
            if not self._closed:
                self._items.append(item)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let the consumer raise ``error`` when it has taken what was read before."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def wait_for_room(self) -> bool:
        """Wait until an item may be put; False when the queue has been closed instead."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._closed or len(self._items) < self._depth, timeout=1.0):
                pass
            return not self._closed

    def get(self, step: int) -> T:
        with self._changed:
            ready = self._changed.wait_for(lambda: self._items or self._error or self._closed, TIMEOUT)
            if self._items:
                self._changed.notify_all()
                return self._items.popleft()
        if self._error:
            raise self._error
        if not ready:
            raise RunError(f"waited {TIMEOUT:.0f} s for the batch of step {step} to be read")
        raise RunError(f"the batch of step {step} was asked of a reader that is closed")


def _fill(queue: _Queue[T], read: Callable[[int], T], start: int, stop: int | None) -> None:
    step = start
    try:
        while (stop is None or step < stop) and queue.wait_for_room():
            queue.put(read(step))
            step += 1
    except BaseException as error:  # also what a consumer would want to see of a KeyboardInterrupt in a test
        queue.fail(error)
