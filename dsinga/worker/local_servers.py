"""The shards of parameter servers that live in this process, by server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dsinga.errors import RunError
from dsinga.server import Shard
from dsinga.transport.sharedroad import Counter


class ServerKey(NamedTuple):
    """Which server: the run, its generation, its server group, its number in the group."""

    run: str
    generation: int
    group: int
    server: int

    @property
    def name(self) -> str:
        """Return under which name the server is found on its host."""
        return f"{self.run}-{self.generation}-{self.group}-{self.server}"


# The shards that live in this process, so that partitions beside them need no Actor call.
SHARDS: dict[ServerKey, Shard] = {}
# What serves them to other processes of this host.
_counters: dict[ServerKey, Counter] = {}


def local_shard(key: ServerKey) -> Shard | None:
    """Return the shard if it lives in this process."""
    return SHARDS.get(key)


def close_shards(chosen: Callable[[ServerKey], bool], message: str | None = None) -> None:
    """Forget the chosen shards in this process; whoever waits at one gets RunError(``message``)."""
    for key in [key for key in list(SHARDS) if chosen(key)]:
        shard = SHARDS.pop(key, None)
        if shard is not None:
            shard.close(RunError(message or "the run has ended"))
            _close_counter(key)


def release_shard(key: ServerKey, shard: Shard) -> None:
    """Close a shard whose actor Dask has let go of."""
    if SHARDS.get(key) is shard:
        del SHARDS[key]
    shard.close(RunError("the driver of the run is gone"))
    _close_counter(key)


def open_counter(key: ServerKey, *arguments: Any) -> Counter | None:
    """Return what serves a shard to other processes of this host; None where the system has no such memory."""
    try:
        _counters[key] = Counter(key.name, *arguments)
    except (OSError, AttributeError):
        return None
    return _counters[key]


def _close_counter(key: ServerKey) -> None:
    counter = _counters.pop(key, None)
    if counter is not None:
        counter.close()
