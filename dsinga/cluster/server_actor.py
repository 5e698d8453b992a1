"""The server as a Dask Actor: a shard, reachable from every worker of the cluster."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from dsinga.errors import RunError
from dsinga.ops import Array
from dsinga.server import BackgroundExecutor, Codec, CooperativeExecutor, InlineExecutor, Push, Shard, SliceSpec
from dsinga.training import Updater
from dsinga.transport.roads import cut, join, unpack
from dsinga.transport.rows import changed_rows
from dsinga.worker.local_servers import SHARDS, ServerKey, open_counter, release_shard

# Up to this many bytes of gradients the sum and the update are quicker than handing them to a thread; above it they
# would keep the event loop, and so the worker's heartbeat, waiting.
INLINE_BYTES = 1 << 18


class ServerActor:
    """One server of a server group. Its blocking methods are coroutines, so a wait holds no thread.

    Methods that workers call in every iteration take one string (:func:`dsinga.transport.roads.tell`) and an array.

    Args:
        key: which server it is.
        slices: what it keeps.
        updater: how its values are updated.
        groups: the worker groups that it serves.
        start: the step with which they begin.
        staleness: how many steps a group may be ahead of the slowest; None for no bound.
        timeout: seconds that a wait may last.
        codec: what decodes gradients, if they come encoded.
        visited: whether partitions of other processes come to it.
        alone: whether one worker group pushes to it, and it has no neighbours.
    """

    def __init__(
        self,
        key: ServerKey,
        slices: Sequence[SliceSpec],
        updater: Updater,
        groups: Sequence[int],
        start: int,
        staleness: int | None,
        timeout: float,
        codec: Codec | None = None,
        visited: bool = True,
        alone: bool = False,
    ):
        self._updater = updater
        self._timeout = timeout
        self._codec = codec
        self._sizes = {spec.slice.id: spec.slice.size for spec in slices}
        self._widths = {spec.slice.id: spec.slice.width for spec in slices if spec.slice.width}
        revisions = InlineExecutor if not alone else BackgroundExecutor if visited else CooperativeExecutor
        self._shard = Shard(slices, updater, groups, key.generation, start, staleness, revisions)
        SHARDS[key] = self._shard
        self._counter = open_counter(key, self._shard, self._sizes, self._widths, codec) if visited else None
        # Dask lets go of an actor when its client is gone, even if that was killed.
        weakref.finalize(self, release_shard, key, self._shard)

    def put(self, values: Mapping[int, Array], state: Mapping[int, Mapping[str, Array]] | None) -> None:
        """Set the values, and the updater's state where a run is resumed."""
        self._shard.put(values if self._counter is None else self._counter.settle(values), state)

    async def pull(self, told: str) -> Array:
        """Return the values of slices, joined, as soon as they have reached a version for a worker group."""
        return await self._pull(*json.loads(told))

    async def push(self, told: str, joined: Array) -> None:
        """Take the gradients of slices, packed (:func:`dsinga.transport.roads.pack`)."""
        push, ids, lengths = json.loads(told)
        await self._push(Push(*push), ids, joined, lengths)

    async def push_pull(self, told: str, joined: Array) -> Array:
        """Take the gradients of slices, packed; return their values once every partition has given its own."""
        said, ids, lengths, since = json.loads(told)
        push = Push(*said)
        await self._push(push, ids, joined, lengths)
        return await self._pull(ids, push.step + 1, push.group, since)

    async def total(self, told: str, array: Array) -> Array:
        """Return the sum of the arrays of some partitions of a worker group, in their order."""
        key, group, partition, contributors = json.loads(told)
        return await self._wait(self._shard.total(key, group, partition, array, contributors))

    async def gather(self, told: str, array: Array) -> Array:
        """Return the rows of some partitions of a worker group, joined in their order."""
        key, group, partition, contributors = json.loads(told)
        return await self._wait(self._shard.gather(key, group, partition, array, contributors))

    async def _pull(self, ids: Sequence[int], version: int, group: int, since: Sequence[tuple[int, int]] = ()) -> Array:
        values = await self._wait(self._shard.pull(ids, version, group))
        if since:
            values = changed_rows(values, self._shard.rows_changed(ids, dict(since), version))
        return join(values, ids, self._widths)

    async def _push(self, push: Push, ids: Sequence[int], joined: Array, lengths: Sequence[int] | None) -> None:
        gradients: dict[int, Array] = dict.fromkeys(ids, joined)  # in a step that is skipped nobody looks at them
        if not push.skip:
            gradients = unpack(joined, lengths, ids, self._sizes, self._codec, self._widths)
        try:
            if joined.nbytes > INLINE_BYTES:
                await asyncio.to_thread(self._shard.push, push, gradients)
            else:
                self._shard.push(push, gradients)
        except RunError:
            raise
        except (OSError, RuntimeError) as error:  # an updater's; a caller takes these two for the loss of this actor
            raise RunError(f"updating at step {push.step} failed: {error!r}") from error

    def snapshot(self, version: int | None, state: bool) -> tuple[dict[int, Array], dict[int, dict[str, Array]]]:
        """Return copies of values, and of the updater's ``state``, by slice id, at ``version``, or as they stand."""
        return self._shard.snapshot(version, self._timeout, state)

    async def receive(self, route: int, ids: Sequence[int], joined: Array) -> None:
        """Take what a neighbouring server group has changed slices ``ids`` by, joined, and pass it on."""
        changes = cut(joined, ids, self._sizes)
        if joined.nbytes > INLINE_BYTES:
            await asyncio.to_thread(self._shard.receive, route, changes)
        else:
            self._shard.receive(route, changes)

    async def flush(self) -> int:
        """Tell neighbouring server groups what they have not been told; return how many messages there ever were."""
        return await self._wait(self._shard.flush())

    async def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by these factors, each from a step on (:meth:`Updater.set_rate_factors`)."""
        self._updater.set_rate_factors(factors)

    async def renew(self, group: int) -> None:
        """Let a worker group that stands still have the values as they now are."""
        self._shard.renew(group)

    async def leave(self, group: int) -> None:
        """Wait no more for a worker group: it has ended, or it begins later."""
        self._shard.leave(group)

    async def join(self, group: int, step: int) -> None:
        """Let a worker group begin at ``step`` that has left before its first step."""
        self._shard.join(group, step)

    async def _wait(self, future: Any) -> Any:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout)
        except TimeoutError:
            raise RunError(f"waited {self._timeout:g} s at a server: {self._shard.pending()}") from None
