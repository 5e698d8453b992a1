"""Both roads of exchange between a partition and a server: a direct call in one process, an Actor call otherwise.

Both take gradients by slice id and answer with values by slice id. What they return has ``result(timeout)``.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dsinga.errors import RunError
from dsinga.ops import Array
from dsinga.server import Codec, Push, Shard

# How often a wait looks whether the run has been aborted, in seconds.
GLANCE = 0.5


class Answer(Protocol):
    """Something that will be there: a concurrent future, or Dask's ActorFuture."""

    def result(self, timeout: float | None = None) -> Any:
        """Return the outcome, or raise what went wrong; TimeoutError after ``timeout`` seconds."""


class Road(Protocol):
    """The way from one partition to one server of its server group."""

    crosses: bool  # whether it leads to another process

    def pull(self, ids: Sequence[int], version: int) -> Answer:
        """Ask for the values of slices ``ids`` at ``version``."""

    def push(self, push: Push, gradients: Mapping[int, Array]) -> Answer | None:
        """Give gradients (which the server may overwrite)."""

    def push_pull(self, push: Push, gradients: Mapping[int, Array]) -> Answer:
        """Give gradients (which the server may overwrite) and ask for the values that come of them."""

    def total(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Answer:
        """Give this partition's part of a sum over the partitions ``contributors`` and ask for the sum."""

    def gather(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Answer:
        """Give this partition's rows and ask for those of all the partitions ``contributors``, joined."""


class DirectRoad:
    """Both ends in one process: no socket, no event loop, no copy. ``group`` is the caller's worker group."""

    crosses = False

    def __init__(self, shard: Shard, group: int):
        self._shard = shard
        self._group = group

    def pull(self, ids: Sequence[int], version: int) -> concurrent.futures.Future:
        """See :class:`Road`."""
        return self._shard.pull(ids, version, self._group)

    def push(self, push: Push, gradients: Mapping[int, Array]) -> None:
        """See :class:`Road`. The last partition to push runs the update, in its own thread."""
        self._shard.push(push, gradients)

    def push_pull(self, push: Push, gradients: Mapping[int, Array]) -> concurrent.futures.Future:
        """See :class:`Road`."""
        self.push(push, gradients)
        return self.pull(list(gradients), push.step + 1)

    def total(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> concurrent.futures.Future:
        """See :class:`Road`."""
        return self._shard.total(key, self._group, partition, array, contributors)

    def gather(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> concurrent.futures.Future:
        """See :class:`Road`."""
        return self._shard.gather(key, self._group, partition, array, contributors)


class ActorRoad:
    """The server lives in another process: one message there, one back, each with one array.

    Gradients may also be a codec's payloads, bytes, which the server decodes. Dask serialises every value of a dict by
    itself, 0.1 ms each way; joining small slices and cutting them again costs a tenth of that. ``sizes`` are the
    numbers of values by slice id, ``group`` is the caller's worker group.
    """

    crosses = True

    def __init__(self, actor: Any, sizes: Mapping[int, int], group: int):
        self._actor = actor
        self._group = group
        self._sizes = sizes

    def pull(self, ids: Sequence[int], version: int) -> Answer:
        """See :class:`Road`."""
        return _Joined(self._actor.pull(tell(ids, version, self._group)), ids, self._sizes)

    def push(self, push: Push, gradients: Mapping[int, Array]) -> Answer:
        """See :class:`Road`."""
        joined, lengths = pack(gradients)
        return self._actor.push(tell(push, list(gradients), lengths), joined)

    def push_pull(self, push: Push, gradients: Mapping[int, Array]) -> Answer:
        """See :class:`Road`."""
        ids, (joined, lengths) = list(gradients), pack(gradients)
        return _Joined(self._actor.push_pull(tell(push, ids, lengths), joined), ids, self._sizes)

    def total(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Answer:
        """See :class:`Road`."""
        return self._actor.total(tell(key, self._group, partition, contributors), array)

    def gather(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Answer:
        """See :class:`Road`."""
        return self._actor.gather(tell(key, self._group, partition, contributors), array)


class _Joined:
    """The answer of an Actor that will be one array, to be cut into slices."""

    def __init__(self, answer: Answer, ids: Sequence[int], sizes: Mapping[int, int]):
        self._answer, self._ids, self._sizes = answer, ids, sizes

    def result(self, timeout: float | None = None) -> dict[int, Array]:
        return cut(self._answer.result(timeout), self._ids, self._sizes)


def tell(*values: Any) -> str:
    """Return plain values as one string (JSON) for an Actor's call.

    Dask serialises every argument by itself, and every item of a list: 0.1 ms each.
    """
    return json.dumps(values)


def join(slices: Mapping[int, Array], ids: Sequence[int]) -> Array:
    """Return the slices ``ids`` one behind the other, as one array; a single one as it is."""
    arrays = [slices[id] for id in ids]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def cut(joined: Array, ids: Sequence[int], sizes: Mapping[int, int]) -> dict[int, Array]:
    """Return what :func:`join` joined, as views."""
    ends = list(itertools.accumulate(sizes[id] for id in ids))
    return {id: joined[end - sizes[id] : end] for id, end in zip(ids, ends, strict=True)}


def pack(gradients: Mapping[int, Array]) -> tuple[Array, list[int] | None]:
    """Return gradients as one array; where some are payloads, as bytes, with the length of each, 0 for the others."""
    lengths = [gradient.size if gradient.dtype == np.uint8 else 0 for gradient in gradients.values()]
    if not any(lengths):
        return join(gradients, list(gradients)), None
    return np.concatenate([gradient.view(np.uint8) for gradient in gradients.values()]), lengths


def unpack(
    joined: Array, lengths: Sequence[int] | None, ids: Sequence[int], sizes: Mapping[int, int], codec: Codec | None
) -> dict[int, Array]:
    """Return the gradients of slices ``ids`` that :func:`pack` has packed, decoded."""
    if lengths is None:
        return cut(joined, ids, sizes)
    assert codec is not None
    payloads = cut(joined, ids, {id: length or 4 * sizes[id] for id, length in zip(ids, lengths, strict=True)})
    return {
        id: codec.decode(payloads[id], sizes[id]) if length else payloads[id].copy().view(np.float32)
        for id, length in zip(ids, lengths, strict=True)
    }


def wait_for(answer: Answer, timeout: float, what: str, aborted: Callable[[], str | None] = lambda: None) -> Any:
    """Return the outcome of ``answer``.

    Raises RunError, saying ``what`` was waited for, after ``timeout`` seconds and where the server is gone, and soon
    after ``aborted`` gives a reason, or raises it itself.
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
