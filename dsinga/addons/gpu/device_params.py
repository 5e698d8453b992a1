"""The params of a worker on a GPU, copied to and from the device while kernels run.

Servers send values and receive gradients in host memory. A separate thread uploads values as they arrive, in the order
in which layers need them, and pushes downloaded gradients. So the thread that calls kernels waits only for late values
(5.4.2 of the paper).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dsinga.ops import Array, AsyncCopy, Ops, SparseRows
from dsinga.ops.types import FinishedCopy

if TYPE_CHECKING:
    from dsinga.cluster.worker.exchange import Exchange
    from dsinga.cluster.worker.exchange_options import Meter

T = TypeVar("T")
Block = tuple[str, ...]
"""Params that are copied together in one array."""


class DeviceParams(Mapping[str, Array]):
    """The params of a worker as arrays of a device: a mapping like :class:`Exchange`, with its methods.

    Used by one thread at a time.

    Args:
        local: params that the worker updates itself, without servers.
        replicated: params that it updates itself in fixed memory, also by sums from servers.
        inner: the exchange's meter; its bytes are added to ``meter``.
        ahead: fetch values when a step begins, not only on lookup.
        is_shared: servers keep other params on this device, so gradients stay there.
    """

    def __init__(
        self, exchange: Exchange, local: Collection[str], replicated: Collection[str], ops: Ops, meter: Meter,
        inner: Meter, ahead: bool = True, is_shared: bool = False,
    ):  # fmt: skip
        self._exchange, self._local, self._ops = exchange, frozenset(local), ops
        self._replicated, self.blocks = frozenset(replicated), list[Block]()  # fetched when a step begins
        self._take = ops.hand_over if is_shared else ops.download
        self._meter, self._inner, self._ahead = meter, inner, ahead
        self._thread = ThreadPoolExecutor(1, "dsinga-device", initializer=ops.enter)
        self._values: dict[str, Future[Any]] = {}
        self._pushes: list[Future[None]] = []
        self._of_blocks: dict[Block, Future[AsyncCopy | list[Array]]] = {}
        self._verdict: Future[bool] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._exchange)

    def __len__(self) -> int:
        return len(self._exchange)

    def __getitem__(self, name: str) -> Array:
        """Return a param's value on the device, for kernels called afterwards."""
        if name in self._local:
            return self._exchange[name]
        self._fetch(name)
        value = self._wait(self._values[name])
        return value.result() if isinstance(value, AsyncCopy) else value

    @property
    def is_local(self) -> bool:
        """Whether the worker updates all params itself."""
        return len(self._local) == len(self._exchange)

    def discard(self) -> None:
        """Drop the gradients pushed in this step; all params must be local."""
        assert self.is_local
        self._exchange.discard()

    def begin(self, step: int) -> None:
        """Begin ``step`` and start to fetch values; see :meth:`Exchange.begin`."""
        self._inner.start()
        self._exchange.begin(step)
        if not self._ahead:
            return
        for block in self.blocks:
            self._fetch_block(block)
        for name in () if self.blocks else self._exchange:
            if name not in self._local:
                self._fetch(name)

    def push(self, name: str, gradient: Array) -> None:
        """Push a gradient once computed, and downloaded if servers are in host memory."""
        if name in self._local:
            self._exchange.push(name, gradient)
            return
        self._values.pop(name, None)
        download = gradient if isinstance(gradient, SparseRows) else self._take(gradient)
        self._pushes.append(self._thread.submit(self._push, name, download))

    def is_served(self, name: str) -> bool:
        """Whether a param's gradients go to servers."""
        return name not in self._local

    def stays(self, name: str) -> bool:
        """Whether a param's values keep their address in all steps, as a captured pass requires."""
        return name in self._replicated

    def value_of(self, block: Block) -> AsyncCopy | list[Array]:
        """Wait for a block's values; return their joint copy to the device, or arrays already there."""
        self._fetch_block(block)
        return self._wait(self._of_blocks.pop(block))

    def split(self, block: Block, flat: Array) -> list[Array]:
        """Return views of a block's joint array, one for each param."""
        arrays, start = [], 0
        for name in block:
            shape = self._exchange.shape(name)
            stop = start + math.prod(shape)
            arrays.append(flat[start:stop].reshape(shape))
            start = stop
        return arrays

    def push_block(self, block: Block, gradients: Array) -> None:
        """Push a block's gradients, joined in one array, after :meth:`release`; see :meth:`push`."""
        assert self._verdict is not None
        download = self._take(gradients) if self.is_served(block[0]) else FinishedCopy(gradients)
        self._pushes.append(self._thread.submit(self._push_block, block, download, self._verdict))

    def hold(self) -> None:
        """Let :meth:`push_block` wait for :meth:`release`."""
        self._verdict = Future()

    def release(self, is_accepted: bool) -> None:
        """Push the held gradients of blocks, or drop them: then nothing has left the worker."""
        assert self._verdict is not None
        self._verdict.set_result(is_accepted)
        self._verdict = None
        if not is_accepted:
            pushes, self._pushes = self._pushes, []
            for push in pushes:
                self._wait(push)

    def finish(self) -> None:
        """End the step once all gradients are downloaded and pushed."""
        pushes, self._pushes = self._pushes, []
        for push in pushes:
            self._wait(push)
        self._end(self._exchange.finish)

    def skip(self) -> None:
        """End the step without changing params."""
        self._end(self._exchange.skip)

    def refresh(self) -> None:
        """Drop all values of the step and request them again."""
        self._end(self._exchange.refresh)

    def wait_all(self) -> None:
        """Wait for all values of the step."""
        self._call(self._exchange.wait_all)

    def all_reduce(self, key: str, array: Array) -> Array:
        """Sum the workers' arrays, on the device or host."""
        return self._collective(self._exchange.all_reduce, key, array)

    def all_gather(self, key: str, array: Array) -> Array:
        """Join all workers' rows, on the device or host."""
        return self._collective(self._exchange.all_gather, key, array)

    def close(self) -> None:
        """End the thread that exchanges params."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, name: str) -> None:
        if name not in self._values:
            self._values[name] = self._thread.submit(self._upload, name)

    def _upload(self, name: str) -> Array | AsyncCopy:
        value = self._exchange[name]
        # A replicated param is on the device already.
        return self._ops.upload(value) if type(value) is np.ndarray else value

    def _fetch_block(self, block: Block) -> None:
        if block not in self._of_blocks:
            self._of_blocks[block] = self._thread.submit(self._upload_block, block)

    def _upload_block(self, block: Block) -> AsyncCopy | list[Array]:
        values = [self._exchange[name] for name in block]
        if type(values[0]) is not np.ndarray:
            return values
        flat = [value.reshape(-1) for value in values]
        return self._ops.upload(np.concatenate(flat) if len(flat) > 1 else flat[0])

    def _push_block(self, block: Block, download: AsyncCopy, verdict: Future[bool]) -> None:
        if not verdict.result():
            return
        for name, gradient in zip(block, self.split(block, download.result()), strict=True):
            self._exchange.push(name, gradient)

    def _push(self, name: str, download: AsyncCopy | SparseRows) -> None:
        self._exchange.push(name, download if isinstance(download, SparseRows) else download.result())

    def _collective(self, method: Callable[[str, Array], Array], key: str, array: Array) -> Array:
        on_host = self._ops.to_numpy(array)
        result = self._call(method, key, on_host)
        return result if on_host is array else self._ops.asarray(result)

    def _end(self, method: Callable[[], None]) -> None:
        self._call(method)
        self._values.clear()
        self._of_blocks.clear()
        self._meter.crossing += self._inner.crossing
        self._meter.within += self._inner.within
        self._inner.start()

    def _call(self, method: Callable[..., T], *arguments: Any) -> T:
        """Call a method of the exchange in its thread; directly if all params are local."""
        if self.is_local:
            return method(*arguments)
        return self._wait(self._thread.submit(method, *arguments))

    def _wait(self, future: Future[T]) -> T:
        started = time.perf_counter()
        try:
            return future.result()  # ends in time, because all waits of the exchange have a limit
        finally:
            self._meter.waited += time.perf_counter() - started
