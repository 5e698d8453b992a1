"""Both roads of exchange between a partition and a server: a direct call in one process, an Actor call otherwise.

Both take gradients by slice id and answer with values by slice id. What they return has ``result(timeout)``.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

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
        return self._shard.total(key, 0, partition, array, self._shard.contributors)


class ActorRoad:
    """The server lives in another process: one message there, one back, each with one array.

    Dask serialises every value of a dict by itself, 0.1 ms each way; joining small slices and cutting them again costs
    a tenth of that. ``sizes`` are the numbers of values by slice id.
    """

    def __init__(self, actor: Any, sizes: Mapping[int, int]):
        self._actor = actor
        self._sizes = sizes

    def pull(self, ids: Sequence[int], version: int) -> Answer:
        """See :class:`Road`."""
        return _Joined(self._actor.pull(list(ids), version), ids, self._sizes)

    def push_pull(self, push: Push, gradients: Mapping[int, Array]) -> Answer:
        """See :class:`Road`."""
        ids = list(gradients)
        return _Joined(self._actor.push_pull(push, ids, join(gradients, ids)), ids, self._sizes)

    def total(self, key: str, partition: int, array: Array) -> Answer:
        """See :class:`Road`."""
        return self._actor.total(key, partition, array)


class _Joined:
    """The answer of an Actor that will be one array, to be cut into slices."""

    def __init__(self, answer: Answer, ids: Sequence[int], sizes: Mapping[int, int]):
        self._answer, self._ids, self._sizes = answer, ids, sizes

    def result(self, timeout: float | None = None) -> dict[int, Array]:
        return cut(self._answer.result(timeout), self._ids, self._sizes)


def join(slices: Mapping[int, Array], ids: Sequence[int]) -> Array:
    """Return the slices ``ids`` one behind the other, as one array; a single one as it is."""
    arrays = [slices[id] for id in ids]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def cut(joined: Array, ids: Sequence[int], sizes: Mapping[int, int]) -> dict[int, Array]:
    """Return what :func:`join` joined, as views."""
    ends = list(itertools.accumulate(sizes[id] for id in ids))
    return {id: joined[end - sizes[id] : end] for id, end in zip(ids, ends, strict=True)}


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
