"""Averages the params of server groups synchronously, with bitwise equal averages in all groups.

A slice sends its outer gradient, and waits for all groups' outer gradients at once, or later: the overlap of Streaming
DiLoCo (Douillard et al. 2025, arXiv 2501.18512, algorithm 2). Each shard adds them in group order and applies the outer
optimizer to its own copy, so all copies have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from dsinga.addons.sites.averaging_rule import AveragingRule
from dsinga.base.arrays import EMA_SLOT
from dsinga.base.errors import RunError
from dsinga.cluster.server.compression import Codec, FeedbackCodec, create_codec
from dsinga.cluster.server.group_sync import GroupSync, LinkedShard
from dsinga.cluster.server.served_slice import IN_FLIGHT, OUTER_PARAMS, RESIDUAL, ServedSlice

SliceVersion = tuple[int, int]  # a slice id, and the version at which its outer gradient is sent


class SynchronousAveraging(GroupSync):
    """Averages the slices of a shard with other server groups, of one worker group each. Thread-safe.

    A group calls :meth:`flush` after all groups have ended, because others wait for its outer gradients.
    """

    def __init__(self, shard: LinkedShard, rule: AveragingRule):
        super().__init__(shard)
        self.rule, self._send = rule, shard.send
        self._codec: Codec | None = create_codec(rule.conf.compression, 1.0)
        self._gradients: dict[SliceVersion, dict[int, np.ndarray]] = {}  # by server group: those that have come
        self._on_complete: dict[SliceVersion, Callable[[], None]] = {}  # called when all have come
        self._averaged: dict[int, int] = {}  # by slice id: the version of its last averaging, or its start
        self._unsent: dict[
            int, int
        ] = {}  # by slice id: the version of an outer gradient in flight that is to be sent again
        self._sent = 0
        self._lost: dict[int, BaseException] = {}  # by server group: why an outer gradient could not be sent
        self._error: BaseException | None = None
        self._flush: Future[int] | None = None

    def begin(self, served_slice: ServedSlice) -> None:
        """Begin with a slice's value as its outer params, unless it has some; repeated calls do nothing."""
        id = served_slice.spec.slice.id
        if id not in self._averaged:
            self.rule.outer_params(served_slice)
            if isinstance(self._codec, FeedbackCodec) and served_slice.spec.trainable:
                residual = served_slice.outer.setdefault(RESIDUAL, np.zeros_like(served_slice.value))
                self._codec.residuals[id] = residual
            self._averaged[id] = version = self._version(served_slice)
            if self.rule.conf.delay and IN_FLIGHT not in served_slice.outer:
                served_slice.outer[IN_FLIGHT] = self._outer_gradient(served_slice)
            if (sent := self.rule.in_flight_at(id, version)) is not None:
                self._unsent[id] = sent

    def _version(self, served_slice: ServedSlice) -> int:
        (accumulator,) = served_slice.accumulators.values()
        return accumulator.version

    def slice_updated(self, served_slice: ServedSlice, version: int, on_averaged: Callable[[], None]) -> None:
        """Call ``on_averaged`` when a slice updated to ``version`` may continue: immediately, or when averaged."""
        id = served_slice.spec.slice.id
        self._send_again(served_slice)
        if self.rule.is_due(id, version):
            self._send_gradient(served_slice, version)
        sent = self.rule.applied_at(id, version)
        if sent is None:
            on_averaged()
        else:
            self._wait(served_slice, sent, on_averaged)

    def receive(
        self, route: int, keys: Sequence[int], arrays: Sequence[np.ndarray], sender: int, generation: int = 0
    ) -> None:
        """Store the outer gradient that server group ``sender`` sends on a route, and forward it."""
        self.check_message(sender, generation)
        id, version, origin = keys
        self._send_on(self._routes[route].onward, keys, arrays)
        self._add((id, version), origin, self._decoded(id, arrays[0]))

    def flush(self) -> Future[int]:
        """Average all slices that had steps since their last averaging, at the end; all groups are at the same step.

        The future resolves to the number of outer gradients that this shard has sent.
        """
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._flush = future
        steps = [each for each in self._slices.values() if self._version(each) > self._averaged[each.spec.slice.id]]
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
            sent = self.rule.in_flight_at(served_slice.spec.slice.id, version)
            if sent is None:
                finish()
            else:
                self._wait(served_slice, sent, finish)
        if not steps:
            end()
        return future

    def _finish(self, served_slice: ServedSlice, version: int, end: Callable[[], None]) -> None:
        """Average a slice for the last time, unless the outer gradient in flight is its last version's."""
        settle = partial(self._settle, served_slice, end)
        if self._averaged[served_slice.spec.slice.id] == version:
            settle()
        else:
            self._send_gradient(served_slice, version)
            self._wait(served_slice, version, settle)

    def _settle(self, served_slice: ServedSlice, end: Callable[[], None]) -> None:
        with served_slice.lock:
            np.copyto(served_slice.value, served_slice.outer[OUTER_PARAMS])
        end()

    def close(self, error: BaseException) -> None:
        """Refuse later messages, and fail the future of :meth:`flush`, with ``error``."""
        with self._lock:
            self._error, flush = error, self._flush
            self._on_complete.clear()
            self._gradients.clear()
        if flush is not None and not flush.done():
            flush.set_exception(error)

    def check_open(self) -> None:
        """Raise the error of :meth:`close`, if closed."""
        if self._error is not None:
            raise self._error

    def pending(self) -> list[str]:
        """Describe, for messages, the server groups with missing outer gradients."""
        with self._lock:
            lines = [
                f"no outer gradient reaches server group {group}: {error}"
                for group, error in sorted(self._lost.items())
            ]
            for id, version in self._on_complete:
                arrived = self._gradients.get((id, version), {})
                missing = [str(group) for group in range(self.rule.groups) if group not in arrived]
                slice_ = self._slices[id].spec.slice
                lines.append(
                    f"slice {slice_} waits after step {version} for the outer gradient of server group "
                    f"{', '.join(missing)}"
                )
        return lines

    def age(self, id: int, version: int) -> int:
        """Return the age, in steps at ``version``, of the outer gradients that a slice applied last."""
        return self.rule.age(id, version)

    def _outer_gradient(self, served_slice: ServedSlice) -> np.ndarray:
        """Return a slice's outer gradient, or its value if it is not trainable, float32 (size,)."""
        if served_slice.spec.trainable:
            return served_slice.outer[OUTER_PARAMS] - served_slice.value
        return served_slice.value.copy()

    def _send_gradient(self, served_slice: ServedSlice, version: int) -> None:
        id = served_slice.spec.slice.id
        with served_slice.lock:
            gradient = self._outer_gradient(served_slice)
            if served_slice.spec.trainable and self._codec is not None:
                gradient = self._codec.encode(id, gradient)
            decoded = self._decoded(id, gradient)
            if self.rule.conf.delay:
                np.copyto(served_slice.outer[IN_FLIGHT], decoded)
        self._send_message((id, version), gradient, decoded)

    def _send_again(self, served_slice: ServedSlice) -> None:
        id = served_slice.spec.slice.id
        with self._lock:
            version = self._unsent.pop(id, None)
        if version is not None:
            gradient = served_slice.outer[IN_FLIGHT].copy()
            self._send_message((id, version), gradient, gradient)

    def _send_message(self, key: SliceVersion, payload: np.ndarray, decoded: np.ndarray) -> None:
        with self._lock:
            self._sent += 1
        self._send_on(self._starts, [*key, self._group], [payload])
        self._add(key, self._group, decoded)

    def _decoded(self, id: int, payload: np.ndarray) -> np.ndarray:
        if self._codec is None or payload.dtype != np.uint8:
            return payload
        return self._codec.decode(payload, self._slices[id].spec.slice.size)

    def _wait(self, served_slice: ServedSlice, version: int, on_averaged: Callable[[], None]) -> None:
        key = (served_slice.spec.slice.id, version)
        average = partial(self._average, served_slice, version, on_averaged)
        with self._lock:
            self._on_complete[key] = average
            complete = self._is_complete(key)
        if complete:
            average()

    def _is_complete(self, key: SliceVersion) -> bool:
        return key in self._on_complete and len(self._gradients.get(key, ())) == self.rule.groups

    def _add(self, key: SliceVersion, group: int, gradient: np.ndarray) -> None:
        with self._lock:
            self._gradients.setdefault(key, {})[group] = gradient
            average = self._on_complete[key] if self._is_complete(key) else None
        if average is not None:
            average()

    def _average(self, served_slice: ServedSlice, version: int, on_averaged: Callable[[], None]) -> None:
        id = served_slice.spec.slice.id
        with self._lock:
            gradients = self._gradients.pop((id, version))
            del self._on_complete[id, version]
            self._averaged[id] = version
        mean = self.rule.mean([gradients[group] for group in range(self.rule.groups)])
        with served_slice.lock:
            outer = served_slice.outer[OUTER_PARAMS]
            if served_slice.spec.trainable:
                round, average = self.rule.rounds(id, version - 1), served_slice.state.get(EMA_SLOT)
                self.rule.update(served_slice.spec, round, mean, served_slice.outer, average)
                self.rule.mix(served_slice.value, outer)
                mean.fill(0)
            else:
                np.copyto(outer, mean)
                np.copyto(served_slice.value, mean)
            if self.rule.conf.delay:  # a run that goes on from its end must not apply it twice
                np.copyto(served_slice.outer[IN_FLIGHT], mean)
            served_slice.changes += 1
        on_averaged()

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
        """Keep the error of an undelivered message, to raise it later."""
        error = CANCELLED if arrival.cancelled() else arrival.exception()
        if error is not None:
            self._lost[group] = error


CANCELLED = RunError("the link was closed")
