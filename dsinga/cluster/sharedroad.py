"""The road of exchange between two processes of one host: gradients and values lie in memory that both have mapped.

A partition copies each gradient into a segment of its own, once; the server adds up what lies there. The values of a
server lie in a segment that partitions map read-only and compute with as they are: nobody copies them, and nobody
reads while somebody writes, by the same rule as within a process (see :mod:`dsinga.server.shard`). Messages only say
what is where; what a server hands out that is not its own values, such as copies for several groups, goes with them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from dsinga.cluster import rows
from dsinga.cluster.hostcalls import Caller, Guest, Listener, Reply, connect
from dsinga.cluster.roads import NEVER, Answer, Since, pack, unpack
from dsinga.cluster.sharedmemory import Segment, create_segment, offsets
from dsinga.ops import Array
from dsinga.server import Codec, Push, Shard

Sizes = Mapping[int, int]


class SharedRoad:
    """The way to a server in another process of this host. See :class:`dsinga.cluster.roads.Road`.

    ``sizes`` are the numbers of values by slice id, ``widths`` those of a row, of slices that have rows, ``group`` is
    the caller's worker group.
    """

    crosses = True

    def __init__(self, caller: Caller, values: Segment, sizes: Sizes, group: int, widths: Sizes = NEVER):
        self._caller, self._group, self._widths = caller, group, widths
        self._values = _laid_out(values, sizes)
        room = gradient_room(sizes, widths)
        outbox = create_segment(offsets(room)[1])
        self._room = _laid_out(outbox, room, np.uint8)
        caller.tell("bring", segment=outbox)
        outbox.close()

    def pull(self, ids: Sequence[int], version: int, since: Since = NEVER) -> Answer:
        """See :class:`dsinga.cluster.roads.Road`."""
        return _Values(self._caller.call("pull", ids, version, self._group, since), ids, self._values)

    def push(self, push: Push, gradients: Mapping[int, Array]) -> None:
        """See :class:`dsinga.cluster.roads.Road`. The server holds the gradients until the values have been pulled."""
        self._caller.tell("push", push, self._put(push, gradients))

    def push_pull(self, push: Push, gradients: Mapping[int, Array], since: Since = NEVER) -> Answer:
        """See :class:`dsinga.cluster.roads.Road`."""
        reply = self._caller.call("push_pull", push, self._put(push, gradients), self._group, since)
        return _Values(reply, list(gradients), self._values)

    def total(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Answer:
        """See :class:`dsinga.cluster.roads.Road`."""
        return self._caller.call("total", key, self._group, partition, array, contributors)

    def gather(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Answer:
        """See :class:`dsinga.cluster.roads.Road`."""
        return self._caller.call("gather", key, self._group, partition, array, contributors)

    def _put(self, push: Push, gradients: Mapping[int, Array]) -> dict[int, tuple[int, list[int] | None] | Array]:
        """Lay gradients where the server finds them; return of each how many bytes it takes there, and as what.

        A payload that is longer than what it stands for travels itself.
        """
        if push.skip:
            return dict.fromkeys(gradients, (0, None))
        put: dict[int, Any] = {}
        for id, gradient in gradients.items():
            packed, lengths = pack({id: gradient}, self._widths)
            if packed.nbytes > self._room[id].size:
                put[id] = packed
            else:
                self._room[id][: packed.nbytes].view(packed.dtype)[:] = packed
                put[id] = packed.nbytes, lengths
        return put


class _Values:
    """The answer of a server: what is not in its segment comes with it."""

    def __init__(self, reply: Reply, ids: Sequence[int], values: Mapping[int, Array]):
        self._reply, self._ids, self._values = reply, ids, values

    def result(self, timeout: float | None = None) -> dict[int, Array]:
        apart = self._reply.result(timeout)
        return {id: apart[id] if id in apart else self._values[id] for id in self._ids}


class Counter:
    """Serves a shard to partitions in other processes of this host, in a thread of its own.

    ``name`` is under which they find it. ``sizes`` and ``widths`` are as in :class:`SharedRoad`, ``codec`` decodes
    gradients that come encoded. Raises OSError where memory cannot be shared.
    """

    def __init__(self, name: str, shard: Shard, sizes: Sizes, widths: Sizes, codec: Codec | None):
        self._shard, self._sizes, self._widths, self._codec = shard, sizes, widths, codec
        values = create_segment(offsets(_bytes(sizes))[1])
        self._values = _laid_out(values, sizes)
        self._bounds = values.array
        self._room = gradient_room(sizes, widths)
        self._rooms: weakref.WeakKeyDictionary[Guest, dict[int, Array]] = weakref.WeakKeyDictionary()
        self._settled: set[int] = set()
        self._listener = Listener(name, self._take, values)

    def settle(self, values: Mapping[int, Array]) -> dict[int, Array]:
        """Return first values as copies in the segment, for the shard to keep; what has been settled stays."""
        for id in values.keys() - self._settled:
            self._values[id][:] = values[id]
            self._settled.add(id)
        return {id: self._values[id] for id in values}

    def close(self) -> None:
        """Serve nobody any more."""
        self._listener.close()

    def _take(self, guest: Guest, number: int | None, what: str, *said: Any) -> None:
        match what, said:
            case "bring", ():
                assert guest.segment is not None
                self._rooms[guest] = _laid_out(guest.segment, self._room, np.uint8)
            case "pull", (ids, version, group, since):
                self._pull(guest, number, ids, version, group, since)
            case "push", (push, put):
                self._push(guest, push, put)
            case "push_pull", (push, put, group, since):
                self._push(guest, push, put)
                self._pull(guest, number, list(put), push.step + 1, group, since)
            case (("total" | "gather"), (key, group, partition, array, contributors)):
                future = getattr(self._shard, what)(key, group, partition, array, contributors)
                future.add_done_callback(lambda done: _answer(guest, number, done, lambda found: found))

    def _push(self, guest: Guest, push: Push, put: Mapping[int, Any]) -> None:
        gradients = {}
        for id, what in put.items():
            if push.skip:
                gradients[id] = np.empty(0, np.float32)  # nobody looks at it
                continue
            there, lengths = (what, [what.size]) if isinstance(what, np.ndarray) else self._found(guest, id, *what)
            gradients[id] = unpack(there, lengths, [id], self._sizes, self._codec, self._widths)[id]
        self._shard.push(push, gradients)

    def _found(self, guest: Guest, id: int, nbytes: int, lengths: list[int] | None) -> tuple[Array, list[int] | None]:
        there = self._rooms[guest][id][:nbytes]
        if id in self._widths:
            there = there.copy()  # rows may be kept as they came
        return there.view(np.float32 if lengths is None else np.uint8), lengths

    def _pull(
        self, guest: Guest, number: int | None, ids: Sequence[int], version: int, group: int, since: Since
    ) -> None:
        def apart(values: Mapping[int, Array]) -> Mapping[int, Array]:
            if since:
                values = rows.changed_rows(values, self._shard.rows_changed(ids, since, version))
            return {id: value for id, value in values.items() if not self._holds(value)}

        self._shard.pull(ids, version, group).add_done_callback(lambda done: _answer(guest, number, done, apart))

    def _holds(self, value: Any) -> bool:
        """Whether a value lies in the segment."""
        return isinstance(value, np.ndarray) and np.may_share_memory(value, self._bounds)


def open_road(name: str, sizes: Sizes, group: int, widths: Sizes = NEVER) -> SharedRoad | None:
    """Return the road to the server that is served under ``name`` on this host, None if there is none."""
    found = connect(name)
    if found is None:
        return None
    caller, values = found
    assert values is not None
    return SharedRoad(caller, values, sizes, group, widths)


def gradient_room(sizes: Sizes, widths: Sizes) -> dict[int, int]:
    """Return how many bytes a partition has for the gradient of each slice: for all of it, whole or by rows."""
    heads = {id: 1 + sizes[id] // widths[id] if id in widths else 0 for id in sizes}
    return {id: 4 * (size + heads[id]) for id, size in sizes.items()}


def _bytes(sizes: Sizes) -> dict[int, int]:
    return {id: 4 * size for id, size in sizes.items()}


def _laid_out(segment: Segment, sizes: Sizes, dtype: Any = np.float32) -> dict[int, Array]:
    """Return the arrays of so many elements in a segment, by id."""
    of = np.dtype(dtype).itemsize
    places, _ = offsets({id: of * size for id, size in sizes.items()})
    return {id: segment.array[at : at + of * sizes[id]].view(dtype) for id, at in places.items()}


def _answer(guest: Guest, number: int | None, done: Future[Any], made: Any) -> None:
    error = done.exception()
    guest.answer(number, None if error else made(done.result()), error)
