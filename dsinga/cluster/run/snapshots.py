"""Snapshots of a run in the driver's memory, made while training goes on, from which it restarts after a loss."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from typing import Any

from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import RunError
from dsinga.cluster.run.cluster_run import ClusterRun
from dsinga.engine.engine import Snapshot
from dsinga.net.layer_cost import in_gib

_log = logging.getLogger(__name__)

# The assumed bytes a second of a snapshot if its time was not measured, or seems to be 0.
BYTES_PER_SECOND = 1e9
# The least seconds between two snapshots, which are made at the ends of rounds of about a second.
LEAST_SECONDS = 0.5

# What copies fail with where Dask workers are lost: Dask's errors are of many kinds.
LOST = (RunError, RuntimeError, OSError, TimeoutError, CancelledError)


class PendingSnapshot:
    """Copies of params and updater state that are on their way to the driver."""

    def __init__(self, run: ClusterRun, step: int):
        self._run, self.step = run, step
        self._replies, self._replicas = run.request_snapshot(step)
        self._futures: list[Any] = [*self._replies, *self._replicas]
        self._times = times = [time.monotonic()]
        for future in self._futures:
            # Futures keep their callbacks: one with self would keep all of the run until garbage is collected.
            future.add_done_callback(lambda _: times.append(time.monotonic()))

    @property
    def done_at(self) -> float:
        """The time when the last copy came, by ``time.monotonic()``."""
        return self._times[-1]

    def done(self) -> bool:
        """Whether all copies, or errors instead, have come."""
        return all(future.done() for future in self._futures)

    def result(self) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Return whole params and updater state from copies that have come."""
        return self._run.join_copies([reply.result(0) for reply in self._replies], self._replicas)

    def cancel(self) -> None:
        """Stop waiting for the copies."""
        for reply in self._replies:
            reply.cancel()


class Snapshots:
    """Requests snapshots of a run from time to time, and keeps the newest.

    Args:
        share: the share of time for making snapshots; 0 for none but ``first``.
    """

    def __init__(self, first: Snapshot, share: float):
        self.newest = first
        self._share = share
        self._pending: PendingSnapshot | None = None
        self._pending_loop: Mapping[str, Any] | None = None
        self._reached_at: float | None = None
        self._due_at = time.monotonic() + self._interval(first.nbytes / BYTES_PER_SECOND) if share else math.inf

    def request(self, run: ClusterRun, step: int) -> None:
        """Request a snapshot after ``step`` steps if one is due and none is pending."""
        if self._pending is not None or step <= self.newest.step or time.monotonic() < self._due_at:
            return
        self._pending = PendingSnapshot(run, step)
        self._pending_loop = self._reached_at = None

    def reach(self, step: int) -> None:
        """Record that the reports of all steps before this one have arrived."""
        if self._pending is not None and self._reached_at is None and step >= self._pending.step:
            self._reached_at = time.monotonic()

    def add_loop(self, step: int, loop: Callable[[], Mapping[str, Any]]) -> None:
        """Add the training loop's state at ``step`` to the snapshot of that step."""
        if self._pending is not None and self._pending.step == step:
            self._pending_loop = loop()
        if self.newest.step == step and self.newest.loop is None:
            self.newest.loop = loop()

    def collect(self) -> bool:
        """Store the pending snapshot as the newest if all its copies have come; return whether they have."""
        pending = self._pending
        if pending is None or self._reached_at is None or not pending.done():
            return False
        self._pending = None
        try:
            params, state = pending.result()
        except LOST as error:  # which is noticed elsewhere; or training has been faster than the request
            _log.debug("no snapshot of step %d: %s", pending.step, error)
            self._due_at = time.monotonic() + LEAST_SECONDS
            return False
        except MemoryError:
            _log.warning(
                "this process has too little memory for snapshots, some %s: a run that loses Dask workers goes back to "
                "step %d; give it more memory, or write checkpoints more often",
                in_gib(3 * self.newest.nbytes), self.newest.step,
            )  # fmt: skip
            self._due_at = math.inf
            return False
        self.newest = Snapshot(pending.step, params, state, self._pending_loop)
        seconds = pending.done_at - self._reached_at
        _log.debug("snapshot of step %d: %d bytes in %.3f s", pending.step, self.newest.nbytes, seconds)
        self._due_at = time.monotonic() + self._interval(max(seconds, self.newest.nbytes / BYTES_PER_SECOND))
        return True

    def replace(self, snapshot: Snapshot) -> None:
        """Store ``snapshot`` as the newest, and drop a pending one."""
        self.newest = snapshot
        self.drop()

    def drop(self) -> None:
        """Stop waiting for the pending snapshot."""
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None

    def _interval(self, cost: float) -> float:
        return max(LEAST_SECONDS, cost / self._share)
