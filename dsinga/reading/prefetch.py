"""Reads batches ahead in a thread, so that training does not wait for them."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from dsinga.base.errors import RunError

T = TypeVar("T")
TIMEOUT_SECONDS = 600.0
_END: Any = object()  # an item that wakes the consumer when the queue is closed or a read has failed


class Prefetch(Generic[T], Iterator[T]):
    """Reads ahead in a thread: an iterator over ``read(step)`` for steps ``start``, ``start + 1``, ...

    The thread also ends when the iterator is deleted, so ``read`` must not refer to it.

    Args:
        read: called on the thread, one step at a time.
        start: the first step.
        stop: the step to stop before; None means no end.
        depth: how many results may be read ahead.

    Raises:
        Exception: from ``next``: the error that ``read`` raised for that step, with its traceback.
        RunError: from ``next``: after waiting 600 s for one step, or if the iterator is closed.
    """

    def __init__(self, read: Callable[[int], T], start: int, stop: int | None = None, depth: int = 3):
        self._step = start
        self._stop = stop
        self._queue: _Queue[T] = _Queue(depth)
        self._thread = threading.Thread(
            target=_read_ahead, args=(self._queue, read, start, stop), name="dsinga-prefetch", daemon=True
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
        """End the thread; wait at most a second for a running ``read``."""
        if self._finalizer.alive:
            self._finalizer()
            self._thread.join(timeout=1.0)

    def __enter__(self) -> Prefetch[T]:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


class _Queue(Generic[T]):
    """Hands items from the reading thread to the consumer, a limited number ahead.

    Both use C queues: a Condition would take the interpreter lock from the computing thread several times a batch.
    """

    def __init__(self, depth: int):
        self._tickets: SimpleQueue[None] = SimpleQueue()
        self._items: SimpleQueue[T] = SimpleQueue()
        self._error: BaseException | None = None
        self._closed = False
        for _ in range(depth):
            self._tickets.put(None)

    def put(self, item: T) -> None:
        self._items.put(item)
        if self._closed:  # close() may have run before the item was put
            self._discard_items()

    def fail(self, error: BaseException) -> None:
        """Let the consumer raise an error, after the items that were read before."""
        self._error = error
        self._items.put(_END)

    def close(self) -> None:
        self._closed = True
        self._tickets.put(None)
        self._discard_items()

    def _discard_items(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._items.get_nowait()
        self._items.put(_END)

    def wait_for_room(self) -> bool:
        """Wait until another item may be read ahead; return False if the queue is closed."""
        self._tickets.get()
        return not self._closed

    def get(self, step: int) -> T:
        try:
            item = _END if self._closed else self._items.get(timeout=TIMEOUT_SECONDS)
        except Empty:
            raise RunError(f"waited {TIMEOUT_SECONDS:.0f} s for the batch of step {step} to be read") from None
        if item is _END or self._closed:
            raise self._error or RunError(f"cannot read the batch of step {step} after the end of prefetching")
        self._tickets.put(None)
        return item


def _read_ahead(queue: _Queue[T], read: Callable[[int], T], start: int, stop: int | None) -> None:
    step = start
    try:
        while (stop is None or step < stop) and queue.wait_for_room():
            queue.put(read(step))
            step += 1
    except BaseException as error:  # the consumer raises it, a KeyboardInterrupt included
        queue.fail(error)
