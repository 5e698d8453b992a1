"""Reading ahead on a thread, so that a step finds its batch ready."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from dsinga.errors import RunError

T = TypeVar("T")
TIMEOUT = 600.0
_END: Any = object()  # in place of an item: there is none, look why


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
    """What the reading thread and the consumer share.

    Each read costs a ticket, and each item taken gives one back. Both go through queues written in C: a Condition
    would wake the threads several times a batch, and each time take the interpreter from the one that computes.
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
        if self._closed:  # meanwhile: whoever closed has perhaps not seen the item
            self._drop()

    def fail(self, error: BaseException) -> None:
        """Let the consumer raise ``error`` when it has taken what was read before."""
        self._error = error
        self._items.put(_END)

    def close(self) -> None:
        self._closed = True
        self._tickets.put(None)
        self._drop()

    def _drop(self) -> None:
        """Let go of what was read, and wake a consumer that waits."""
        with contextlib.suppress(Empty):
            while True:
                self._items.get_nowait()
        self._items.put(_END)

    def wait_for_room(self) -> bool:
        """Wait until an item may be put; False when the queue has been closed instead."""
        self._tickets.get()
        return not self._closed

    def get(self, step: int) -> T:
        try:
            item = _END if self._closed else self._items.get(timeout=TIMEOUT)
        except Empty:
            raise RunError(f"waited {TIMEOUT:.0f} s for the batch of step {step} to be read") from None
        if item is _END or self._closed:
            raise self._error or RunError(f"the batch of step {step} was asked of a reader that is closed")
        self._tickets.put(None)
        return item


def _fill(queue: _Queue[T], read: Callable[[int], T], start: int, stop: int | None) -> None:
    step = start
    try:
        while (stop is None or step < stop) and queue.wait_for_room():
            queue.put(read(step))
            step += 1
    except BaseException as error:  # also what a consumer would want to see of a KeyboardInterrupt in a test
        queue.fail(error)
