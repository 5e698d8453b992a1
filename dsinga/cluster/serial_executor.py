"""An executor with one thread, because kernels keep scratch memory and OpenMP threads for each calling thread."""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from dsinga.base.errors import RunError

T = TypeVar("T")
P = ParamSpec("P")


class SerialExecutor:
    """Runs calls in one thread, in order, as a worker's or server's computations require."""

    def __init__(self, name: str):
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed: str | None = None
        # A daemon thread, so that a waiting call does not keep the process from ending.
        self._thread = threading.Thread(target=_serve, args=[self._calls], name=name, daemon=True)

    def submit(self, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> Future[T]:
        """Schedule ``call`` in the thread and return a future of its result.

        It runs in a copy of the caller's context, with the same ``distributed.get_worker``. Raises RunError once the
        executor is closed.
        """
        context = contextvars.copy_context()
        future: Future[T] = Future()
        with self._lock:
            if self._closed is not None:
                raise RunError(self._closed)
            if self._thread.ident is None:
                self._thread.start()
            # Not a lambda, which its frame in the traceback of an error would keep, with all that it refers to.
            self._calls.put((future, functools.partial(context.run, call, *arguments, **keywords)))
        return future

    def run(self, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Run ``call`` in the thread; return its result or raise its error."""
        return self.submit(call, *arguments, **keywords).result()

    def close(self, message: str) -> None:
        """Close the executor: later calls fail with RunError(``message``), scheduled calls still run."""
        with self._lock:
            if self._closed is None:
                self._closed = message
                self._calls.put(None)


def _serve(calls: SimpleQueue[Any]) -> None:
    """Run an executor's calls up to a None, without a reference to the executor."""
    while (entry := calls.get()) is not None:
        future, call = entry
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
            del result
        del entry, future, call  # else their arguments would stay in memory until the next call
