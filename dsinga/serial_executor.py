"""A thread of somebody's own: a partition computes in one as long as it lives, and a server may update in one.

A task of Dask runs in whichever thread of its worker is free. But kernels, their scratch memory and the OpenMP threads
that help them belong to the thread that calls them: with two such threads taking turns all of this is there twice, and
as soon as there are more OpenMP threads than cores they no longer stay awake between kernels, each of which then waits
for them to wake up. The CIFAR-10 net on two cores: 47 ms an iteration by two threads in turn, 33 ms by one.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from dsinga.errors import RunError

T = TypeVar("T")
P = ParamSpec("P")


class SerialExecutor:
    """Runs calls one after the other, in a thread that begins with the first call and ends with :meth:`close`."""

    def __init__(self, name: str):
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed: str | None = None
        # A daemon, because a call that waits must not keep a process that ends.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def submit(self, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> Future[T]:
        """Run ``call`` in the thread, in the caller's context: ``distributed.get_worker`` finds the same Dask worker.

        Raises RunError with what :meth:`close` was given, if it has been called.
        """
        context = contextvars.copy_context()
        future: Future[T] = Future()
        with self._lock:
            if self._closed is not None:
                raise RunError(self._closed)
            if self._thread.ident is None:
                self._thread.start()
            self._calls.put((future, lambda: context.run(call, *arguments, **keywords)))
        return future

    def run(self, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Run ``call`` in the thread; return what it returns, and raise what it raises. See :meth:`submit`."""
        return self.submit(call, *arguments, **keywords).result()

    def close(self, message: str) -> None:
        """Let the thread end with the calls that it was given before; nobody waits for that. Later ones fail."""
        with self._lock:
            if self._closed is None:
                self._closed = message
                self._calls.put(None)

    def _serve(self) -> None:
        while (given := self._calls.get()) is not None:
            future, call = given
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
            del given, future, call  # or what the call held would live until the next
