"""Synchronous agreement of a shard with the same shards of other server groups, by the mean of their changes.

At the versions that the policy names, a slice sends its change, and waits for the changes of all groups before it goes
on, or some steps later: that is the overlap of Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512, algorithm 2).
Each shard adds them up in the order of the groups and applies the outer updater to its own copy of the outer value, so
that all have the same bits, in every run. A snapshot has the change of its group that is in flight, and a shard that
begins with it sends the change again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from dsinga.base.errors import RunError
from dsinga.cluster.server.compression import Codec, FeedbackCodec, create_codec
from dsinga.cluster.server.gradient_accumulator import Generations
from dsinga.cluster.server.mean_policy import IN_FLIGHT, OUTER_VALUE, RESIDUAL, MeanPolicy
from dsinga.cluster.server.routes import Routes
from dsinga.cluster.server.served_slice import ServedSlice
from dsinga.training.ema import SLOT

# Sends the change of a slice to the shard of a linked group: (group, route, [slice id, version, origin], array). The
# shard there gets it by ``receive``, with the number of the route.
SendChange = Callable[[int, int, Sequence[int], np.ndarray], Future]
Moment = tuple[int, int]  # a slice id, and the version at which its change is sent


class SynchronousMean:
    """Lets the slices of a shard agree with those of other server groups, of one worker group each. Thread-safe.

    ``group`` is the server group of this shard, ``generation`` that of all groups. A shard that other groups wait for
    must send its change, so a group that ends calls :meth:`flush` when all have ended.
    """

    def __init__(
        self, group: int, routes: Routes, policy: MeanPolicy, slices: Mapping[int, ServedSlice], send: SendChange,
        generation: int = 0,
    ):  # fmt: skip
        self._group, self.policy, self._slices, self._send = group, policy, slices, send
        self._starts, self._routes = routes.starts[group], routes.routes
        self._codec: Codec | None = create_codec(policy.conf.compression, 1.0)
        self._generations = Generations(generation)
        self._lock = threading.Lock()
        self._changes: dict[Moment, dict[int, np.ndarray]] = {}  # by server group: those that have come
        self._proceed: dict[Moment, Callable[[], None]] = {}  # what goes on when all have come
        self._agreed: dict[int, int] = {}  # by slice id: the version of the last agreement, or of the start
        self._unsent: dict[int, int] = {}  # by slice id: the version of a change in flight that is to be sent again
        self._sent = 0
        self._lost: dict[int, BaseException] = {}  # by server group: why a change could not be sent
        self._error: BaseException | None = None
        self._flush: Future[int] | None = None
        for served_slice in slices.values():
            if served_slice.filled:
                self.begin(served_slice)

    def begin(self, served_slice: ServedSlice) -> None:
        """Begin with the value of a slice as the outer one, unless it has outer state; a repeated call does nothing."""
        id = served_slice.spec.slice.id
        if id not in self._agreed:
            if OUTER_VALUE not in served_slice.outer:
                served_slice.outer |= self.policy.first_state(served_slice.spec, served_slice.value)
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

    def reached(self, served_slice: ServedSlice, version: int, proceed: Callable[[], None]) -> None:
        """Call ``proceed`` when a slice that was updated to ``version`` may go on: at once, or when all groups agree.

        No thread may change the value meanwhile.
        """
        id = served_slice.spec.slice.id
        self._send_again(served_slice)
        if self.policy.is_due(id, version):
            self._contribute(served_slice, version)
        sent = self.policy.applied_at(id, version)
        if sent is None:
            proceed()
        else:
            self._wait(served_slice, sent, proceed)

    def receive(self, route: int, key: Sequence[int], change: np.ndarray, sender: int, generation: int = 0) -> None:
        """Take the change of a slice that the server group ``sender`` sends on a route, and forward it.

        ``key`` is (slice id, version, the group that made the change). Raises RunError if it is of another generation
        of the sender, and the error with which the shard was closed.
        """
        self.check_open()
        with self._lock:
            self._generations.check(sender, generation, f"a message of server group {sender}")
        id, version, origin = key
        self._send_on(self._routes[route].onward, key, change)
        self._add((id, version), origin, self._decoded(id, change))

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

    def link(self, group: int, generation: int) -> None:
        """Accept messages of this generation of a linked server group."""
        self.check_open()
        with self._lock:
            self._generations.set(group, generation)

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

    def _send_change(self, moment: Moment, change: np.ndarray, decoded: np.ndarray) -> None:
        with self._lock:
            self._sent += 1
        self._send_on(self._starts, [*moment, self._group], change)
        self._add(moment, self._group, decoded)

    def _decoded(self, id: int, change: np.ndarray) -> np.ndarray:
        if self._codec is None or change.dtype != np.uint8:
            return change
        return self._codec.decode(change, self._slices[id].spec.slice.size)

    def _wait(self, served_slice: ServedSlice, version: int, proceed: Callable[[], None]) -> None:
        """Let a slice agree by the changes that were sent at a version, when all have come, and call ``proceed``."""
        moment = (served_slice.spec.slice.id, version)
        agree = partial(self._agree, served_slice, version, proceed)
        with self._lock:
            self._proceed[moment] = agree
            complete = self._is_complete(moment)
        if complete:
            agree()

    def _is_complete(self, moment: Moment) -> bool:
        return moment in self._proceed and len(self._changes.get(moment, ())) == self.policy.groups

    def _add(self, moment: Moment, group: int, change: np.ndarray) -> None:
        """Take the change of a group, and let the slice agree if it is the last one that the slice waits for."""
        with self._lock:
            self._changes.setdefault(moment, {})[group] = change
            agree = self._proceed[moment] if self._is_complete(moment) else None
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
                round, average = self.policy.rounds(id, version - 1), served_slice.state.get(SLOT)
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

    def _send_on(self, routes: Sequence[int], key: Sequence[int], change: np.ndarray) -> None:
        for number in routes:
            group = self._routes[number].group
            try:
                arrival = self._send(group, number, key, change)
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
