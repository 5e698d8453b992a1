"""The server as a Dask Actor: a shard, reachable from every worker of the cluster."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.cluster.roads import cut, join
from dsinga.errors import RunError
from dsinga.ops import Array
from dsinga.server import Push, Shard, SliceSpec
from dsinga.training import Updater

# Up to this many bytes of gradients the sum and the update are quicker than handing them to a thread; above it they
# would keep the event loop, and so the worker's heartbeat, waiting.
INLINE_BYTES = 1 << 18


class ServerKey(NamedTuple):
    """Which server: the run, its generation, the number of the server in its group."""

    run: str
    generation: int
    server: int


# The shards that live in this process, so that partitions beside them need no Actor call.
_shards: dict[ServerKey, Shard] = {}


def local_shard(key: ServerKey) -> Shard | None:
    """Return the shard if it lives in this process."""
    return _shards.get(key)


def close_shards(chosen: Callable[[ServerKey], bool], message: str | None = None) -> None:
    """Forget the chosen shards in this process; whoever waits at one gets RunError(``message``)."""
    for key in [key for key in list(_shards) if chosen(key)]:
        shard = _shards.pop(key, None)
        if shard is not None:
            shard.close(RunError(message or "the run has ended"))


def _release(key: ServerKey, shard: Shard) -> None:
    if _shards.get(key) is shard:
        del _shards[key]
    shard.close(RunError("the driver of the run is gone"))


class ServerActor:
    """One server of a server group. Its blocking methods are coroutines, so a wait holds no thread."""

    def __init__(
        self,
        key: ServerKey,
        slices: Sequence[SliceSpec],
        updater: Updater,
        contributors: int,
        start: int,
        timeout: float,
    ):
        self._timeout = timeout
        self._sizes = {spec.slice.id: spec.slice.size for spec in slices}
        self._everybody = tuple(range(contributors))
        slices = [spec._replace(contributors=self._everybody) for spec in slices]
        self._shard = Shard(slices, updater, (0,), key.generation, start)
        _shards[key] = self._shard
        # Dask lets go of an actor when its client is gone, even if that was killed.
        weakref.finalize(self, _release, key, self._shard)

    def put(self, values: Mapping[int, Array], state: Mapping[int, Mapping[str, Array]] | None) -> None:
        """Set the values, and the updater's state where a run is resumed."""
        self._shard.put(values, state)

    async def pull(self, ids: Sequence[int], version: int) -> Array:
        """Return the values of slices ``ids``, joined, as soon as they have reached ``version``."""
        return join(await self._wait(self._shard.pull(ids, version)), ids)

    async def push_pull(self, push: Push, ids: Sequence[int], joined: Array) -> Array:
        """Take the gradients of slices ``ids``, joined; return their values once every partition has given its own."""
        gradients = cut(joined, ids, self._sizes)
        try:
            if joined.nbytes > INLINE_BYTES:
                await asyncio.to_thread(self._shard.push, push, gradients)
            else:
                self._shard.push(push, gradients)
        except RunError:
            raise
        except (OSError, RuntimeError) as error:  # an updater's; a caller takes these two for the loss of this actor
            raise RunError(f"updating at step {push.step} failed: {error!r}") from error
        return await self.pull(ids, push.step + 1)

    async def total(self, key: str, partition: int, array: Array) -> Array:
        """Return the sum of the partitions' arrays, in the order of the partitions."""
        return await self._wait(self._shard.total(key, 0, partition, array, self._everybody))

    def snapshot(self, version: int) -> tuple[dict[int, Array], dict[int, dict[str, Array]]]:
        """Return copies of the values and of the updater's state, by slice id, at ``version``."""
        return self._shard.snapshot(version, self._timeout)

    async def _wait(self, future: Any) -> Any:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout)
        except TimeoutError:
            raise RunError(f"waited {self._timeout:g} s at a server: {self._shard.pending()}") from None
