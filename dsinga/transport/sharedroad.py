"""The road of exchange between two processes of one host: gradients and values lie in memory that both have mapped.

Gradients lie where a partition's products have written them (:mod:`dsinga.transport.send_buffer`), and the server adds
them up there. Its values lie in a segment of its own, and partitions compute with them there. Both ends map each
other's memory read-only: nobody copies, and nobody reads while somebody writes, by the same rule as within a process
(see :mod:`dsinga.server.shard`). Messages only say what is where; what lies elsewhere goes with them: gradients that
are small, encoded, or of no product, and of a server what is not its own values, such as copies for several groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from math import prod
from typing import Any

import numpy as np

from dsinga.ops import Array
from dsinga.ops.buffers import SMALLEST
from dsinga.server import Codec, Push, Shard, Slice
from dsinga.transport import rows
from dsinga.transport.hostcalls import Caller, Guest, Listener, connect
from dsinga.transport.hostcalls import Reply as CallReply
from dsinga.transport.roads import NEVER, Reply, Road, Since, pack, unpack
from dsinga.transport.send_buffer import SendBuffer
from dsinga.transport.shared_buffer import SharedBuffer, create_shared_buffer, offsets

Sizes = Mapping[int, int]


class SharedRoad:
    """The way to a server in another process of this host. See :class:`dsinga.transport.roads.Road`.

    ``sizes`` are the numbers of values by slice id, ``widths`` those of a row, of slices that have rows, ``group`` is
    the caller's worker group.
    """

    crosses = True

    def __init__(self, caller: Caller, values: SharedBuffer, sizes: Sizes, group: int, widths: Sizes = NEVER):
        self._caller, self._group, self._widths = caller, group, widths
        self._values = _laid_out(values, sizes)
        self._send_buffer: SendBuffer | None = None
        self._lent: dict[int, Array] = {}  # gradients in the send_buffer that the server has not done with

    def bring(self, send_buffer: SendBuffer) -> None:
        """Let the server see what lies in an send_buffer."""
        self._caller.bring(send_buffer.segment)
        self._send_buffer = send_buffer

    def pull(self, ids: Sequence[int], version: int, since: Since = NEVER) -> Reply:
        """See :class:`dsinga.transport.roads.Road`."""
        reply = self._caller.call("pull", ids, version, self._group, since)
        return _Values(reply, ids, self._values, self._lent)

    def push(self, push: Push, gradients: Mapping[int, Array]) -> None:
        """Send gradients, which the server holds until the values have been pulled."""
        self._caller.tell("push", push, self._put(push, gradients))

    def push_pull(self, push: Push, gradients: Mapping[int, Array], since: Since = NEVER) -> Reply:
        """See :class:`dsinga.transport.roads.Road`."""
        reply = self._caller.call("push_pull", push, self._put(push, gradients), self._group, since)
        return _Values(reply, list(gradients), self._values, self._lent)

    def total(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Reply:
        """See :class:`dsinga.transport.roads.Road`."""
        return self._caller.call("total", key, self._group, partition, array, contributors)

    def gather(self, key: str, partition: int, array: Array, contributors: Sequence[int]) -> Reply:
        """See :class:`dsinga.transport.roads.Road`."""
        return self._caller.call("gather", key, self._group, partition, array, contributors)

    def _put(self, push: Push, gradients: Mapping[int, Array]) -> dict[int, Any]:
        """Return for each gradient where it lies in the send_buffer, or itself, packed, and as what."""
        if push.skip:
            return dict.fromkeys(gradients)
        put: dict[int, Any] = {}
        for id, gradient in gradients.items():
            packed, lengths = pack({id: gradient}, self._widths)
            at = None if self._send_buffer is None else self._send_buffer.place(packed)
            if at is None:
                put[id] = packed, lengths
            else:
                put[id], self._lent[id] = at, packed
        return put


class _Values:
    """The answer of a server: what is not in its segment comes with it. Gradients that are ``lent`` come back by it."""

    def __init__(self, reply: CallReply, ids: Sequence[int], values: Mapping[int, Array], lent: dict[int, Array]):
        self._reply, self._ids, self._values, self._lent = reply, ids, values, lent

    def result(self, timeout: float | None = None) -> dict[int, Array]:
        apart = self._reply.result(timeout)
        for id in self._ids:
            self._lent.pop(id, None)
        return {id: apart[id] if id in apart else self._values[id] for id in self._ids}


class Counter:
    """Serves a shard to partitions in other processes of this host, in a thread of its own.

    ``name`` is under which they find it. ``sizes`` and ``widths`` are as in :class:`SharedRoad`, ``codec`` decodes
    gradients that come encoded. Raises OSError where memory cannot be shared.
    """

    def __init__(self, name: str, shard: Shard, sizes: Sizes, widths: Sizes, codec: Codec | None):
        self._shard, self._sizes, self._widths, self._codec = shard, sizes, widths, codec
        values = create_shared_buffer(offsets(_bytes(sizes))[1])
        self._values = _laid_out(values, sizes)
        self._bounds = values.array
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
        """Take gradients; those of a step that is skipped nobody looks at."""
        found = {id: np.empty(0, np.float32) if push.skip else self._found(guest, id, what) for id, what in put.items()}
        self._shard.push(push, found)

    def _found(self, guest: Guest, id: int, what: Any) -> Any:
        if not isinstance(what, int):
            packed, lengths = what
            return unpack(packed, lengths, [id], self._sizes, self._codec, self._widths)[id]
        assert guest.segment is not None
        return guest.segment.array[what : what + 4 * self._sizes[id]].view(np.float32)

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


def open_send_buffer(
    roads: Sequence[Road], slices: Iterable[Slice], shapes: Mapping[str, Sequence[int]]
) -> SendBuffer | None:
    """Return memory for the gradients of which ``roads``, by server, take slices through memory; they let it be seen.

    None if there is no such gradient: those of rows are not, nor small ones, which the pool does not make. Of a param
    whose slices are on several servers there is all, whoever sees it.
    """
    shared = {server: road for server, road in enumerate(roads) if isinstance(road, SharedRoad)}
    params = dict.fromkeys(piece.param for piece in slices if piece.server in shared and not piece.width)
    nbytes = [size for param in params if (size := 4 * prod(shapes[param])) >= SMALLEST]
    if not nbytes:
        return None
    send_buffer = SendBuffer(nbytes)
    for road in shared.values():
        road.bring(send_buffer)
    send_buffer.segment.close()
    return send_buffer


def _bytes(sizes: Sizes) -> dict[int, int]:
    return {id: 4 * size for id, size in sizes.items()}


def _laid_out(segment: SharedBuffer, sizes: Sizes) -> dict[int, Array]:
    """Return the arrays of so many numbers in a segment, by id."""
    places, _ = offsets(_bytes(sizes))
    return {id: segment.array[at : at + 4 * sizes[id]].view(np.float32) for id, at in places.items()}


def _answer(guest: Guest, number: int | None, done: Future[Any], made: Any) -> None:
    error = done.exception()
    guest.answer(number, None if error else made(done.result()), error)
