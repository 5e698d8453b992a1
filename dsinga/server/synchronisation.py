"""Synchronisation of a shard with the same shards of other server groups, by the changes of its slices.

The change of a slice is its value minus its value when the last change was sent; changes that are received are added
to both. A change is to be sent on every route that begins at the group; received changes are to be forwarded on the
onward routes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

import numpy as np

from dsinga.server.change_sender import ChangeSender
from dsinga.server.gradient_accumulator import Generations
from dsinga.server.routes import Routes
from dsinga.server.served_slice import ServedSlice, ShardCopy, join_copies


class Synchronisation:
    """Sends the changes of a shard's slices to the same shards of other server groups, and adds theirs. Thread-safe.

    ``group`` is the server group of this shard, ``frequency`` the number of updates of a slice after which its change
    is sent, ``generation`` that of all linked groups at first.

    In the end the trainable slices of all groups have the updates of all groups. A slice that is not trainable (a
    running mean) is estimated by each group separately, and all groups get the average.
    """

    def __init__(
        self, group: int, routes: Routes, frequency: int, slices: Mapping[int, ServedSlice], sender: ChangeSender,
        generation: int = 0,
    ):  # fmt: skip
        assert frequency > 0, frequency
        self._group, self._frequency, self._slices = group, frequency, slices
        self._starts, self._routes = routes.starts[group], routes.routes
        self._groups = len(routes.starts)
        self.sender = sender
        self._lock = threading.Lock()
        self._generations = Generations(generation)
        # By slice id, under the lock of the slice: its value at the last change, and the number of updates since then.
        self._last: dict[int, np.ndarray] = {}
        self._updates: dict[int, int] = {}
        for served_slice in slices.values():
            if served_slice.filled:
                self.begin(served_slice)

    def begin(self, served_slice: ServedSlice) -> None:
        """Begin to track the changes of a slice from its present value; a repeated call changes nothing."""
        self._last.setdefault(served_slice.spec.slice.id, served_slice.value.copy())
        self._updates.setdefault(served_slice.spec.slice.id, 0)

    def updated(self, served_slices: Iterable[ServedSlice]) -> None:
        """Count an update of these slices, and send the changes of those that have had ``frequency`` updates."""
        for served_slice in served_slices:
            with served_slice.lock:
                self._updates[served_slice.spec.slice.id] += 1
                if self._updates[served_slice.spec.slice.id] >= self._frequency:
                    self._enqueue_change(served_slice)
        self.sender.dispatch(self._starts)

    def receive(self, route: int, changes: Mapping[int, np.ndarray], sender: int, generation: int = 0) -> None:
        """Add the changes that the server group ``sender`` sends on a route, by slice id, and forward them.

        They are float32 (size,). Each message must be received once; the caller must not change its arrays afterwards.
        Raises RunError if they are of another generation of the sender, and the error with which the shard was closed.
        """
        self.sender.check_open()
        with self._lock:
            self._generations.check(sender, generation, f"a message of server group {sender}")
        onward = self._routes[route].onward
        for id, change in changes.items():
            with self._slices[id].lock:
                self._slices[id].value += change
                self._slices[id].changes += 1
                self._last[id] += change
                self.sender.enqueue(onward, id, change)
        self.sender.dispatch(onward)

    def flush(self) -> Future[int]:
        """Send all changes that other server groups have not got yet, even if fewer than ``frequency`` updates.

        The future resolves when this shard has nothing more to send, to the number of all messages that it has sent.
        When all worker groups have finished, flush all shards repeatedly until the numbers stay the same: then no
        message is in flight, and all server groups have the same values, to rounding.
        """
        for served_slice in self._slices.values():
            with served_slice.lock:
                if self._updates[served_slice.spec.slice.id]:
                    self._enqueue_change(served_slice)
        self.sender.dispatch(self._starts)
        return self.sender.flush()

    def values_for(self, group: int, generation: int, source: int) -> ShardCopy:
        """Return this shard's share of the values with which the lost shard of a linked server group comes back.

        The shard of the server group ``group`` begins with the sum of the values that all shards linked with it return,
        which are asked one after the other: that of the group ``source`` returns its values, without what it has not
        sent, and the updater's state, others at most corrections for some slices. It may begin any time later, as
        ``generation``: messages of earlier generations are refused from now on, and changes for it wait until
        :meth:`link`. These are

        - on a route that reaches the source after the lost group: not part of that value, and sent after :meth:`link`;
        - on a route that ends at the lost group: part of it, or soon received by the source. They are dropped here;
        - on any other route: part of it, and still to be forwarded. So they are subtracted, and sent after `link`.

        So each group gets each change once, except for changes that were on their way at that moment: those that the
        lost group had received and not forwarded, and those that the source receives later by another route.
        """
        self._accept(group, generation)
        self.sender.replace(group)
        shares = {}
        for id, served_slice in self._slices.items():
            with served_slice.lock:
                known = self.sender.take_known(group, source, id)
                if self._group == source:
                    state = {name: array.copy() for name, array in served_slice.state.items()}
                    shares[id] = (self._last[id].copy() if known is None else self._last[id] - known), state
                elif known is not None:
                    shares[id] = -known, {}
        return join_copies(shares)

    def link(self, group: int, generation: int) -> None:
        """Send changes to the shard of a linked server group that has come back, and accept those that it sends."""
        self._accept(group, generation)
        self.sender.link(group)

    def _accept(self, group: int, generation: int) -> None:
        self.sender.check_open()
        with self._lock:
            self._generations.set(group, generation)

    def _enqueue_change(self, served_slice: ServedSlice) -> None:
        """Enqueue the change of a slice since the last one, and track the next change; the caller holds its lock."""
        id = served_slice.spec.slice.id
        change = served_slice.value - self._last[id]
        if not served_slice.spec.trainable:
            change /= self._groups
            np.add(self._last[id], change, out=served_slice.value)
        np.copyto(self._last[id], served_slice.value)
        self._updates[id] = 0
        self.sender.enqueue(self._starts, id, change)
