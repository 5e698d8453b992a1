"""Both roads of exchange between a partition and a server: a direct call in one process, an Actor call otherwise.

Both take gradients by slice id and answer with values by slice id. What they return has ``result(timeout)``.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dsinga.errors import RunError
from dsinga.ops import Array
from dsinga.server import Push, Shard

# How often a wait looks whether the run has been aborted, in seconds.
GLANCE = 0.5


class Answer(Protocol):
    """Something that will be there: a concurrent future, or Dask's ActorFuture."""

    def result(self, timeout: float | None = None) -> Any:
        """Return the outcome, or raise what went wrong; TimeoutError after ``timeout`` seconds."""


class Road(Protocol):
    """The way from one partition to one server."""

    def pull(self, ids: Sequence[int], version: int) -> Answer:
        """Ask for the values of slices ``ids`` at ``version``."""

    def push_pull(self, push: Push, gradients: Mapping[int, Array]) -> Answer:
        """Give gradients (which the server may overwrite) and ask for the values that come of them."""

    def total(self, key: str, partition: int, array: Array) -> Answer:
        """Give this partition's part of a sum over partitions and ask for the sum."""


class DirectRoad:
    """Both ends in one process: no socket, no event loop, no copy."""

    def __init__(self, shard: Shard):
        self._shard = shard

    def pull(self, ids: Sequence[int], version: int) -> concurrent.futures.Future:
        """See :class:`Road`."""
        return self._shard.pull(ids, version)

    def push_pull(self, push: Push, gradients: Mapping[int, Array]) -> concurrent.futures.Future:
        """See :class:`Road`. The last partition to push runs the update, in its own thread."""
        self._shard.push(push, gradients)
        return self._shard.pull(list(gradients), push.step + 1)

    def total(self, key: str, partition: int, array: Array) -> concurrent.futures.Future:
        """See :class:`Road`."""
        return self._shard.total(key, partition, array)


class ActorRoad:
    """The server lives in another process: one message there, one back."""

    def __init__(self, actor: Any):
        self._actor = actor

    def pull(self, ids: Sequence[int], version: int) -> Answer:
        """See :class:`Road`."""
        return self._actor.pull(ids, version)

    def push_pull(self, push: Push, gradients: Mapping[int, Array]) -> Answer:
        """See :class:`Road`."""
        return self._actor.push_pull(push, gradients)

    def total(self, key: str, partition: int, array: Array) -> Answer:
        """See :class:`Road`."""
        return self._actor.total(key, partition, array)


def wait_for(answer: Answer, timeout: float, what: str, aborted: Callable[[], str | None] = lambda: None) -> Any:
    """Return the outcome of ``answer``.

    Raises RunError, saying ``what`` was waited for, after ``timeout`` seconds and where the server is gone, and soon
    after ``aborted`` gives a reason.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return answer.result(timeout=GLANCE)
        except TimeoutError:
            reason = aborted()
            if reason:
                raise RunError(reason) from None
            if time.monotonic() > deadline:
                raise RunError(f"waited {timeout:g} s for {what}") from None
        except RunError:
            raise
        except (OSError, RuntimeError) as lost:  # the two ways in which Dask reports an Actor that is gone
            raise RunError(f"a server was lost while waiting for {what}: {lost}") from lost
