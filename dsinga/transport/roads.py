"""The roads of exchange between a partition and a server: a direct call in one process, an Actor call between hosts.

Between processes of one host there is a third one, :mod:`dsinga.transport.sharedroad`. All take gradients by slice id
and answer with values by slice id. What they return has ``result(timeout)``.
"""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dsinga.errors import RunError
from dsinga.ops import Array
from dsinga.server import Codec, Push, Shard
from dsinga.transport.rows import changed_rows, decode, encode

# How often a wait looks whether the run has been aborted, in seconds.
POLL_SECONDS = 0.5

# At which version the caller has slices, by id.
Since = Mapping[int, int]
NEVER: Since = {}


class Reply(Protocol):
    """Something that will be there: a concurrent future, or Dask's ActorFuture."""

    def result(self, timeout: float | None = None) -> Any:
        """Return the outcome, or raise what went wrong; TimeoutError after ``timeout`` seconds."""


class Road(Protocol):
    """The way from one partition to one server of its server group."""

    crosses: bool  # whether it leads to another process

    def pull(self, ids: Sequence[int], version: int, since: Since = NEVER) -> Reply:
        """Ask for the values of slices ``ids`` at ``version``.

        Those in ``since`` the caller has at that version: the answer may be the rows alone that have changed.
        """

    def push(self, push: Push, gradients: Mapping[int, Array]) -> Reply | None:
        """Give gradients (which the server may overwrite)."""

    def push_pull(self, push: Push, gradients: Mapping[int, Array], since: Since = NEVER) -> Reply:
        """Give gradients (which the server may overwrite) and ask for the values that come of them, as :meth:`pull`."""

    def total(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Reply:
        """Give this partition's part of a sum over the partitions ``contributors`` and ask for the sum."""

    def gather(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Reply:
        """Give this partition's rows and ask for those of all the partitions ``contributors``, joined."""


class DirectRoad:
    """Both ends in one process: no socket, no event loop, no copy. ``group`` is the caller's worker group."""

    crosses = False

    def __init__(self, shard: Shard, group: int):
        self._shard = shard
        self._group = group

    def pull(self, ids: Sequence[int], version: int, since: Since = NEVER) -> Reply:
        """See :class:`Road`."""
        return _Values(self._shard, self._shard.pull(ids, version, self._group), ids, version, since)

    def push(self, push: Push, gradients: Mapping[int, Array]) -> None:
        """See :class:`Road`. Those who push run the update, in their own threads: see :class:`dsinga.server.Shard`."""
        self._shard.push(push, gradients)

    def push_pull(self, push: Push, gradients: Mapping[int, Array], since: Since = NEVER) -> Reply:
        """See :class:`Road`."""
        self.push(push, gradients)
        return self.pull(list(gradients), push.step + 1, since)

    def total(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> concurrent.futures.Future:
        """See :class:`Road`."""
        return self._shard.total(key, self._group, partition, array, contributors)

    def gather(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> concurrent.futures.Future:
        """See :class:`Road`."""
        return self._shard.gather(key, self._group, partition, array, contributors)


class ActorRoad:
    """The server lives anywhere on the cluster: one message there, one back, each with one array.

    Gradients may also be a codec's payloads, bytes, which the server decodes. Dask serialises every value of a dict by
    itself, 0.1 ms each way; joining small slices and cutting them again costs a tenth of that. ``sizes`` are the
    numbers of values by slice id, ``widths`` those of a row, of slices that have rows, ``group`` is the caller's worker
    group.
    """

    crosses = True

    def __init__(self, actor: Any, sizes: Mapping[int, int], group: int, widths: Mapping[int, int] = NEVER):
        self._actor = actor
        self._group = group
        self._sizes, self._widths = sizes, widths

    def pull(self, ids: Sequence[int], version: int, since: Since = NEVER) -> Reply:
        """See :class:`Road`."""
        told = tell(ids, version, self._group, list(since.items()))
        return _Joined(self._actor.pull(told), ids, self._sizes, self._widths)

    def push(self, push: Push, gradients: Mapping[int, Array]) -> Reply:
        """See :class:`Road`."""
        joined, lengths = pack(gradients, self._widths)
        return self._actor.push(tell(push, list(gradients), lengths), joined)

    def push_pull(self, push: Push, gradients: Mapping[int, Array], since: Since = NEVER) -> Reply:
        """See :class:`Road`."""
        ids, (joined, lengths) = list(gradients), pack(gradients, self._widths)
        told = tell(push, ids, lengths, list(since.items()))
        return _Joined(self._actor.push_pull(told, joined), ids, self._sizes, self._widths)

    def total(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Reply:
        """See :class:`Road`."""
        return self._actor.total(tell(key, self._group, partition, contributors), array)

    def gather(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Reply:
        """See :class:`Road`."""
        return self._actor.gather(tell(key, self._group, partition, contributors), array)


class _Joined:
    """The answer of an Actor that will be one array, to be cut into slices."""

    def __init__(self, answer: Reply, ids: Sequence[int], sizes: Mapping[int, int], widths: Mapping[int, int]):
        self._answer, self._ids, self._sizes, self._widths = answer, ids, sizes, widths

    def result(self, timeout: float | None = None) -> dict[int, Array]:
        return cut(self._answer.result(timeout), self._ids, self._sizes, self._widths)


class _Values:
    """The answer of a shard in this process: of slices in ``since``, the rows that have changed."""

    def __init__(self, shard: Shard, answer: concurrent.futures.Future, ids: Sequence[int], version: int, since: Since):
        self._shard, self._answer = shard, answer
        self._ids, self._version, self._since = ids, version, since

    def result(self, timeout: float | None = None) -> dict[int, Array]:
        values = self._shard.wait(self._answer, timeout)
        if not self._since:
            return values
        return changed_rows(values, self._shard.rows_changed(self._ids, self._since, self._version))


def tell(*values: Any) -> str:
    """Return plain values as one string (JSON) for an Actor's call.

    Dask serialises every argument by itself, and every item of a list: 0.1 ms each.
    """
    return json.dumps(values)


def join(slices: Mapping[int, Array], ids: Sequence[int], widths: Mapping[int, int] = NEVER) -> Array:
    """Return the slices ``ids`` one behind the other, as one array; a single one as it is.

    Those that have a width may be rows alone (:mod:`dsinga.transport.rows`).
    """
    arrays = [array for id in ids for array in (encode(slices[id]) if id in widths else [slices[id]])]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def cut(
    joined: Array, ids: Sequence[int], sizes: Mapping[int, int], widths: Mapping[int, int] = NEVER
) -> dict[int, Array]:
    """Return what :func:`join` joined, as views."""
    found: dict[int, Array] = {}
    at = 0
    for id in ids:
        if id in widths:
            found[id], at = decode(joined, at, sizes[id], widths[id])
        else:
            found[id], at = joined[at : at + sizes[id]], at + sizes[id]
    return found


def pack(gradients: Mapping[int, Array], widths: Mapping[int, int] = NEVER) -> tuple[Array, list[int] | None]:
    """Return gradients as one array; where some are payloads, as bytes, with the length of each.

    It is 0 for those that are none; negative, if they have a width.
    """
    if not any(gradient.dtype == np.uint8 for gradient in gradients.values()):
        return join(gradients, list(gradients), widths), None
    packed = {
        id: join(gradients, [id], widths).view(np.uint8) if gradient.dtype != np.uint8 else gradient
        for id, gradient in gradients.items()
    }
    signs = {id: 1 if gradients[id].dtype == np.uint8 else -1 if id in widths else 0 for id in gradients}
    return np.concatenate(list(packed.values())), [signs[id] * packed[id].size for id in gradients]


def unpack(
    joined: Array,
    lengths: Sequence[int] | None,
    ids: Sequence[int],
    sizes: Mapping[int, int],
    codec: Codec | None,
    widths: Mapping[int, int] = NEVER,
) -> dict[int, Array]:
    """Return the gradients of slices ``ids`` that :func:`pack` has packed, decoded."""
    if lengths is None:
        return cut(joined, ids, sizes, widths)
    assert codec is not None
    pieces = cut(joined, ids, {id: abs(length) or 4 * sizes[id] for id, length in zip(ids, lengths, strict=True)})
    return {
        id: codec.decode(pieces[id], sizes[id])
        if length > 0
        else cut(pieces[id].copy().view(np.float32), [id], sizes, widths)[id]
        for id, length in zip(ids, lengths, strict=True)
    }


def wait_for(answer: Reply, timeout: float, what: str, aborted: Callable[[], str | None] = lambda: None) -> Any:
    """Return the outcome of ``answer``.

    Raises RunError, saying ``what`` was waited for, after ``timeout`` seconds and where the server is gone, and soon
    after ``aborted`` gives a reason, or raises it itself.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return answer.result(timeout=POLL_SECONDS)
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
