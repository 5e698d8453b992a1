"""Params and gradients of a partition that computes on a device: copies beside the kernels, layer by layer.

What the servers send and take lies in host memory. Where they have the params, a thread of its own talks to them: it
sends each value up as soon as it has come, in the order in which layers want them, and waits for each gradient that is
on its way down to hand it over. So the thread that calls kernels waits for a value that is late, and for nothing else
(5.4.2 of the paper). Params that the partition updates itself, without servers, stay on the device: nothing is copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from dsinga.ops import Array, AsyncCopy, Ops, SparseRows
from dsinga.worker.exchange import Exchange
from dsinga.worker.meter import Meter

T = TypeVar("T")


class DeviceParams(Mapping[str, Array]):
    """An exchange whose params and gradients are arrays of a device. Used by one thread at a time, like the exchange.

    Args:
        exchange: where values come from and gradients go to, in host memory.
        own: the params that the partition updates itself, without servers.
        ops: the backend of the device.
        meter: where this thread's waiting is counted.
        inner: the meter of the exchange, another one, whose bytes are added to ``meter``.
        ahead: whether values are fetched when a step begins, not only when they are looked up.
    """

    def __init__(
        self, exchange: Exchange, own: Collection[str], ops: Ops, meter: Meter, inner: Meter, ahead: bool = True
    ):
        self._exchange, self._own, self._ops = exchange, frozenset(own), ops
        self._meter, self._inner, self._ahead = meter, inner, ahead
        self._thread = ThreadPoolExecutor(1, "dsinga-device", initializer=ops.enter)
        self._values: dict[str, Future[Any]] = {}
        self._pushes: list[Future[None]] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._exchange)

    def __len__(self) -> int:
        return len(self._exchange)

    def __getitem__(self, name: str) -> Array:
        """See :meth:`Exchange.__getitem__`; kernels that are called from now on find the value on the device."""
        if name in self._own:
            return self._exchange[name]
        self._fetch(name)
        value = self._wait(self._values[name])
        return value.result() if isinstance(value, AsyncCopy) else value

    def begin(self, step: int) -> None:
        """See :meth:`Exchange.begin`."""
        self._inner.start()
        self._exchange.begin(step)
        for name in self._exchange if self._ahead else ():
            if name not in self._own:
                self._fetch(name)

    def push(self, name: str, gradient: Array) -> None:
        """See :meth:`Exchange.push`; what is wrong with a gradient that has to come down first, ``finish`` raises."""
        if name in self._own:
            self._exchange.push(name, gradient)
            return
        self._values.pop(name, None)
        coming = gradient if isinstance(gradient, SparseRows) else self._ops.download(gradient)
        self._pushes.append(self._thread.submit(self._push, name, coming))

    def finish(self) -> None:
        """See :meth:`Exchange.finish`; all gradients have come down then."""
        pushes, self._pushes = self._pushes, []
        for push in pushes:
            self._wait(push)
        self._end(self._exchange.finish)

    def skip(self) -> None:
        """See :meth:`Exchange.skip`."""
        self._end(self._exchange.skip)

    def refresh(self) -> None:
        """See :meth:`Exchange.refresh`."""
        self._end(self._exchange.refresh)

    def wait_all(self) -> None:
        """See :meth:`Exchange.wait_all`."""
        self._in_turn(self._exchange.wait_all)

    def all_reduce(self, key: str, array: Array) -> Array:
        """See :meth:`Exchange.all_reduce`; arrays of the backend, or of the host."""
        return self._collective(self._exchange.all_reduce, key, array)

    def all_gather(self, key: str, array: Array) -> Array:
        """See :meth:`Exchange.all_gather`; arrays of the backend, or of the host."""
        return self._collective(self._exchange.all_gather, key, array)

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, name: str) -> None:
        if name not in self._values:
            self._values[name] = self._thread.submit(self._lift, name)

    def _lift(self, name: str) -> Array | AsyncCopy:
        value = self._exchange[name]
        return self._ops.upload(value) if type(value) is np.ndarray else value  # the partition's own is there

    def _push(self, name: str, coming: AsyncCopy | SparseRows) -> None:
        self._exchange.push(name, coming if isinstance(coming, SparseRows) else coming.result())

    def _collective(self, how: Callable[[str, Array], Array], key: str, array: Array) -> Array:
        given = self._ops.to_numpy(array)
        met = self._in_turn(how, key, given)
        return met if given is array else self._ops.asarray(met)

    def _end(self, how: Callable[[], None]) -> None:
        self._in_turn(how)
        self._values.clear()
        self._meter.crossing += self._inner.crossing
        self._meter.within += self._inner.within
        self._inner.start()

    def _in_turn(self, how: Callable[..., T], *arguments: Any) -> T:
        """Call the exchange in its thread; where all params are the partition's own there is no need for that."""
        if len(self._own) == len(self._exchange):
            return how(*arguments)
        return self._wait(self._thread.submit(how, *arguments))

    def _wait(self, future: Future[T]) -> T:
        started = time.perf_counter()
        try:
            return future.result()  # the exchange's own waits end in time
        finally:
            self._meter.waited += time.perf_counter() - started
