"""Synchronous agreement of a shard with the same shards of other server groups, by the mean of their changes.

At the versions that the policy names, a slice sends its change, and waits for the changes of all groups before it goes
on, or some steps later: that is the overlap of Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512, algorithm 2).
Each shard adds them up in the order of the groups and applies the outer updater to its own copy of the outer value, so
that all have the same bits, in every run. A snapshot has the change of its group that is in flight, and a shard that
begins with it sends the change again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from dsinga.addons.sites.mean_policy import MeanPolicy
from dsinga.base.errors import RunError
from dsinga.base.param_arrays import EMA_SLOT
from dsinga.cluster.server.agreement import Agreement, LinkedShard
from dsinga.cluster.server.compression import Codec, FeedbackCodec, create_codec
from dsinga.cluster.server.served_slice import IN_FLIGHT, OUTER_VALUE, RESIDUAL, ServedSlice

SliceVersion = tuple[int, int]  # a slice id, and the version at which its change is sent


class SynchronousMean(Agreement):
    """Lets the slices of a shard agree with those of other server groups, of one worker group each. Thread-safe.

    A shard that other groups wait for must send its change, so a group that ends calls :meth:`flush` when all have
    ended. The keys of a message are (slice id, version, the group that made the change).
    """

    def __init__(self, shard: LinkedShard, policy: MeanPolicy):
        super().__init__(shard)
        self.policy, self._send = policy, shard.send
        self._codec: Codec | None = create_codec(policy.conf.compression, 1.0)
        self._changes: dict[SliceVersion, dict[int, np.ndarray]] = {}  # by server group: those that have come
        self._proceed: dict[SliceVersion, Callable[[], None]] = {}  # what goes on when all have come
        self._agreed: dict[int, int] = {}  # by slice id: the version of the last agreement, or of the start
        self._unsent: dict[int, int] = {}  # by slice id: the version of a change in flight that is to be sent again
        self._sent = 0
        self._lost: dict[int, BaseException] = {}  # by server group: why a change could not be sent
        self._error: BaseException | None = None
        self._flush: Future[int] | None = None

    def begin(self, served_slice: ServedSlice) -> None:
        """Begin with the value of a slice as the outer one, unless it has outer state; a repeated call does nothing."""
        id = served_slice.spec.slice.id
        if id not in self._agreed:
            self.policy.outer_value(served_slice)
            if isinstance(self._codec, FeedbackCodec) and served_slice.spec.trainable:
                residual = served_slice.outer.setdefault(RESIDUAL, np.zeros_like(served_slice.value))
                self._codec.residuals[id] = residual
            self._agreed[id] = version = self._version(served_slice)
            if self.policy.conf.delay and IN_FLIGHT not in served_slice.outer:
                served_slice.outer[IN_FLIGHT] = self._change(served_slice)
            if (sent := self.policy.in_flight_at(id, version)) is not None:
                self._unsent[id] = sent

    def _version(self, served_slice: ServedSlice) -> int:
        (accumulator,) = served_slice.accumulators.values()
        return accumulator.version

    def slice_updated(self, served_slice: ServedSlice, version: int, proceed: Callable[[], None]) -> None:
        """Call ``proceed`` when a slice may go on that was updated to ``version``: at once, or after an agreement."""
        id = served_slice.spec.slice.id
        self._send_again(served_slice)
        if self.policy.is_due(id, version):
            self._contribute(served_slice, version)
        sent = self.policy.applied_at(id, version)
        if sent is None:
            proceed()
        else:
            self._wait(served_slice, sent, proceed)

    def receive(
        self, route: int, keys: Sequence[int], arrays: Sequence[np.ndarray], sender: int, generation: int = 0
    ) -> None:
        """Take the change of a slice that the server group ``sender`` sends on a route, and forward it."""
        self.check_message(sender, generation)
        id, version, origin = keys
        self._send_on(self._routes[route].onward, keys, arrays)
        self._add((id, version), origin, self._decoded(id, arrays[0]))

    def flush(self) -> Future[int]:
        """Let all slices agree that have had steps since they last did; all groups must have done the same steps.

        The future resolves, when they have agreed, to the number of changes that this shard has ever sent.
        """
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._flush = future
        steps = [each for each in self._slices.values() if self._version(each) > self._agreed[each.spec.slice.id]]
        left = [len(steps)]

        def end() -> None:
            with self._lock:
                left[0] -= bool(left[0])
                done = not left[0] and not future.done()
            if done:
                future.set_result(self._sent)

        for served_slice in steps:
            version = self._version(served_slice)
            finish = partial(self._finish, served_slice, version, end)
            self._send_again(served_slice)
            sent = self.policy.in_flight_at(served_slice.spec.slice.id, version)
            if sent is None:
                finish()
            else:
                self._wait(served_slice, sent, finish)
        if not steps:
            end()
        return future

    def _finish(self, served_slice: ServedSlice, version: int, end: Callable[[], None]) -> None:
        """Let a slice agree for the last time, unless the agreement that was in flight is of its last version."""
        settle = partial(self._settle, served_slice, end)
        if self._agreed[served_slice.spec.slice.id] == version:
            settle()
        else:
            self._contribute(served_slice, version)
            self._wait(served_slice, version, settle)

    def _settle(self, served_slice: ServedSlice, end: Callable[[], None]) -> None:
        """Set a value that has agreed for the last time to the outer one."""
        with served_slice.lock:
            np.copyto(served_slice.value, served_slice.outer[OUTER_VALUE])
        end()

    def close(self, error: BaseException) -> None:
        """Refuse later changes, and fail the future of a flush, with ``error``."""
        with self._lock:
            self._error, flush = error, self._flush
            self._proceed.clear()
            self._changes.clear()
        if flush is not None and not flush.done():
            flush.set_exception(error)

    def check_open(self) -> None:
        """Raise the error of :meth:`close`, if it has been called."""
        if self._error is not None:
            raise self._error

    def pending(self) -> list[str]:
        """Return texts that say which server groups' changes are missing."""
        with self._lock:
            lines = [f"no change reaches server group {group}: {error}" for group, error in sorted(self._lost.items())]
            for id, version in self._proceed:
                changes = self._changes.get((id, version), {})
                missing = [str(group) for group in range(self.policy.groups) if group not in changes]
                slice_ = self._slices[id].spec.slice
                lines.append(
                    f"slice {slice_} waits after step {version} for the change of server group {', '.join(missing)}"
                )
        return lines

    def age(self, id: int, version: int) -> int:
        """Return how many steps before ``version`` the changes were made by which a slice has last agreed."""
        return self.policy.age(id, version)

    def _change(self, served_slice: ServedSlice) -> np.ndarray:
        """Return the change of a slice since it last agreed, or its value if it is not trainable, float32 (size,)."""
        if served_slice.spec.trainable:
            return served_slice.outer[OUTER_VALUE] - served_slice.value
        return served_slice.value.copy()

    def _contribute(self, served_slice: ServedSlice, version: int) -> None:
        """Send the change of a slice since it last agreed."""
        id = served_slice.spec.slice.id
        with served_slice.lock:
            change = self._change(served_slice)
            if served_slice.spec.trainable and self._codec is not None:
                change = self._codec.encode(id, change)
            decoded = self._decoded(id, change)
            if self.policy.conf.delay:
                np.copyto(served_slice.outer[IN_FLIGHT], decoded)
        self._send_change((id, version), change, decoded)

    def _send_again(self, served_slice: ServedSlice) -> None:
        """Send the change that was in flight when the snapshot was made with which the slice began."""
        id = served_slice.spec.slice.id
        with self._lock:
            version = self._unsent.pop(id, None)
        if version is not None:
            change = served_slice.outer[IN_FLIGHT].copy()
            self._send_change((id, version), change, change)

    def _send_change(self, key: SliceVersion, change: np.ndarray, decoded: np.ndarray) -> None:
        with self._lock:
            self._sent += 1
        self._send_on(self._starts, [*key, self._group], [change])
        self._add(key, self._group, decoded)

    def _decoded(self, id: int, change: np.ndarray) -> np.ndarray:
        if self._codec is None or change.dtype != np.uint8:
            return change
        return self._codec.decode(change, self._slices[id].spec.slice.size)

    def _wait(self, served_slice: ServedSlice, version: int, proceed: Callable[[], None]) -> None:
        """Let a slice agree by the changes that were sent at a version, when all have come, and call ``proceed``."""
        key = (served_slice.spec.slice.id, version)
        agree = partial(self._agree, served_slice, version, proceed)
        with self._lock:
            self._proceed[key] = agree
            complete = self._is_complete(key)
        if complete:
            agree()

    def _is_complete(self, key: SliceVersion) -> bool:
        return key in self._proceed and len(self._changes.get(key, ())) == self.policy.groups

    def _add(self, key: SliceVersion, group: int, change: np.ndarray) -> None:
        """Take the change of a group, and let the slice agree if it is the last one that the slice waits for."""
        with self._lock:
            self._changes.setdefault(key, {})[group] = change
            agree = self._proceed[key] if self._is_complete(key) else None
        if agree is not None:
            agree()

    def _agree(self, served_slice: ServedSlice, version: int, proceed: Callable[[], None]) -> None:
        """Set the outer value and the group's value from the changes of all groups, and go on."""
        id = served_slice.spec.slice.id
        with self._lock:
            changes = self._changes.pop((id, version))
            del self._proceed[id, version]
            self._agreed[id] = version
        mean = self.policy.mean([changes[group] for group in range(self.policy.groups)])
        with served_slice.lock:
            outer = served_slice.outer[OUTER_VALUE]
            if served_slice.spec.trainable:
                round, average = self.policy.rounds(id, version - 1), served_slice.state.get(EMA_SLOT)
                self.policy.update(served_slice.spec, round, mean, served_slice.outer, average)
                self.policy.mix(served_slice.value, outer)
                mean.fill(0)
            else:
                np.copyto(outer, mean)
                np.copyto(served_slice.value, mean)
            if self.policy.conf.delay:  # a run that goes on from its end must not apply the change twice
                np.copyto(served_slice.outer[IN_FLIGHT], mean)
            served_slice.changes += 1
        proceed()

    def _send_on(self, routes: Sequence[int], keys: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        for number in routes:
            group = self._routes[number].group
            try:
                arrival = self._send(group, number, keys, arrays)
            except Exception as error:
                self._lost[group] = error
                continue
            arrival.add_done_callback(partial(self._note, group))

    def _note(self, group: int, arrival: Future) -> None:
        """Keep the error of a change that has not arrived: the run notices itself that a group is lost."""
        error = CANCELLED if arrival.cancelled() else arrival.exception()
        if error is not None:
            self._lost[group] = error


CANCELLED = RunError("the link was closed")
