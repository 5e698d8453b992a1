"""Restarts a run that has lost Dask workers from its last snapshot, with bitwise equal results.

Each *generation* of a run places it on the Dask workers at hand, several workers on one if necessary. It starts from a
snapshot and computes the later steps again.

Asynchronous worker groups that have lost nothing go on. The others restart with their servers' values, at the step that
these have reached. A lost server gets the values of a linked server group.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from distributed import Client

from dsinga.base.errors import RunError, UserError, WorkerLost
from dsinga.base.settings import read_setting
from dsinga.cluster.dask.dask_workers import process
from dsinga.cluster.dask.heartbeats import heartbeats
from dsinga.cluster.dask.placement import Placement
from dsinga.cluster.dask.supervision import Check
from dsinga.cluster.placing.prepare import PreparedRun
from dsinga.cluster.run.cluster_run import ClusterRun
from dsinga.cluster.run.snapshots import Snapshots
from dsinga.cluster.run.workers_at_hand import WorkersAtHand
from dsinga.engine.engine import Restart, Snapshot
from dsinga.job import ClusterConf

_log = logging.getLogger(__name__)

T = TypeVar("T")

# How often a run starts again from one snapshot, unless the job says how often it may at all.
RESTARTS_FROM_SNAPSHOT = 3
# Seconds between two checks whether Dask workers leave or have come.
CHECK_SECONDS = 1.0
# How many times the time of a start a move must save.
MOVE_FACTOR = 2.0


class RestartedGroups:
    """Interface of a run's worker groups for their restart after a loss; this base class has none."""

    def restart(self, step: int) -> None:
        """Train again, beginning with ``step``, after a new start (generation) of the run."""

    def catch_up(self) -> None:
        """Train again up to the step at which the run stood."""

    def steps_read(self) -> list[int] | None:
        """Return the step after each group's last report that was read; None while not all groups train."""
        return None

    def go_on(self, restarting: Collection[int]) -> None:
        """Let the groups that are not ``restarting`` go on."""

    def restart_groups(self, steps: Mapping[int, int]) -> None:
        """Let restarted groups train from their ``steps``."""


class RecoverableRun:
    """A run on a Dask cluster that survives the loss of Dask workers, by starting again from snapshots.

    Args:
        make_check: returns the check that waits call, for a generation's placement.

    Attributes:
        cluster_run: the present generation.
        is_within: whether the run is on a single Dask worker in this process; it then keeps no snapshots.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        client: Client,
        first: Snapshot,
        make_check: Callable[[Placement], Check],
        announce: Callable[[str], None],
    ):
        self._prepared, self._client, self._make_check = prepared, client, make_check
        self._cluster = prepared.job.cluster or ClusterConf()
        self._placement = prepared.placement
        self._check = make_check(self._placement)
        self._workers = WorkersAtHand(prepared, client, announce)
        self._restarts = self._restarts_from_snapshot = 0
        self._start_seconds = self._next_check = 0.0
        self._generation = prepared.config.generation
        # What a single Dask worker in this process has is lost only with this process.
        self.is_within = [process(address) for address in self._placement.addresses] == ["inproc"]
        self.snapshots = Snapshots(first, 0.0 if self.is_within else read_setting("snapshot_share"))
        self.cluster_run = ClusterRun(client, prepared.config, self._placement, self._check)
        self.restarts: list[Restart] = []
        self._groups: Callable[[], RestartedGroups | None] = RestartedGroups

    @property
    def client(self) -> Client:
        """The cluster's client."""
        return self._client

    def connect(self, groups: RestartedGroups) -> None:
        """Connect the worker groups once they train, to restart them after a loss."""
        self._groups = weakref.ref(groups)  # they refer to the run

    def start(self) -> None:
        """Start the run, and again if Dask workers are lost meanwhile."""
        try:
            self._start_generation()
        except WorkerLost as loss:
            self.recover(loss)

    def do(self, operation: Callable[[ClusterRun], T]) -> T:
        """Call an operation on the run and return its result; after a loss, recover and repeat it."""
        pending: WorkerLost | None = None
        while True:
            try:
                if pending is not None:
                    self.recover(pending)
                    self._connected().catch_up()
                return operation(self.cluster_run)
            except WorkerLost as loss:
                pending = loss

    def recover(self, loss: WorkerLost) -> None:
        """Start the run again (a new generation) from the last snapshot, on the Dask workers at hand.

        If some worker groups have lost nothing, only the others restart, without the snapshot. Raises RunError after
        too many restarts, or if the Dask workers do not suffice.
        """
        noticed = time.perf_counter()
        if self._recover_groups(loss, noticed):
            return
        if self.is_within:
            raise RunError(f"{loss}; a run within one process keeps no snapshot to go on from") from loss
        lost = self._lose(loss)
        while True:
            self._count_restart(lost)
            try:
                self._place_again()
                self._start_generation()
                step, generation = self.snapshots.newest.step, self.cluster_run.config.generation
                self._connected().restart(step)
                break
            except WorkerLost as again:
                lost = self._lose(again)
            except UserError as error:  # too little memory, or a store that only the lost Dask worker could read
                raise RunError(f"{lost}; the Dask workers at hand cannot go on: {error}") from error
        self.restarts.append(Restart(str(loss), noticed, step, generation))

    def wants_to_move(self, seconds_left: float) -> str:
        """Return why the run should be placed on other Dask workers, or "".

        Reasons are Dask workers that are about to leave, and new ones that would save more of ``seconds_left`` than a
        start costs.
        """
        if self.is_within or time.monotonic() < self._next_check:
            return ""
        self._next_check = time.monotonic() + CHECK_SECONDS
        leaving = sorted(self._workers.leaving() & self._placement.addresses)
        if leaving:
            return f"the run leaves the Dask worker{'s' if len(leaving) > 1 else ''} {', '.join(leaving)}"
        most = self._placement.most_workers
        least_saving = 1 / most  # by moving a single worker to a process of its own
        if most > 1 and seconds_left * least_saving > MOVE_FACTOR * self._start_seconds:
            offered = self._workers.most_workers()
            if offered < most and seconds_left * (1 - offered / most) > MOVE_FACTOR * self._start_seconds:
                return "the run moves to Dask workers that have come"
        return ""

    def move(self, reason: str, step: int, loop: Mapping[str, Any]) -> None:
        """Place the run, which stands at ``step``, again on the Dask workers at hand, as a new generation."""
        began = time.perf_counter()
        try:
            snapshot = Snapshot(step, *self.cluster_run.snapshot(step), loop)
        except WorkerLost as loss:
            self.recover(loss)
            return
        if self.start_again(reason, snapshot, moves=True):
            self.restarts.append(Restart(reason, began, step, self.cluster_run.config.generation))

    def start_again(self, reason: str, snapshot: Snapshot, moves: bool = False) -> bool:
        """Start the run again from a snapshot of the present step; return False after a loss."""
        self.snapshots.replace(snapshot)
        self._note_snapshot()
        try:
            self.cluster_run.close(reason, last=False)
            if moves:
                self._place_again()
            self._start_generation()
            self._connected().restart(snapshot.step)
        except WorkerLost as loss:
            self.recover(loss)
            return False
        return True

    def set_rate_factors(self, run: ClusterRun, step: int, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by factors, also after later restarts."""
        run.config.updater.set_rate_factors(factors)
        run.set_rate_factors(step, factors)

    def collect_snapshot(self) -> None:
        """Store the requested snapshot if all its copies have arrived."""
        if self.snapshots.collect():
            self._note_snapshot()

    def keep(self, snapshot: Snapshot) -> None:
        """Store a snapshot, made while the run stood, as the newest."""
        if not self.is_within:
            self.snapshots.replace(snapshot)
        self._note_snapshot()

    def _note_snapshot(self) -> None:
        self._restarts_from_snapshot = 0
        self._workers.forgive(self._placement.addresses)

    def close(self, message: str | None = None) -> None:
        """End the run on all Dask workers that are left; its waits there end with ``message``."""
        self.snapshots.drop()
        self.cluster_run.close(message, heartbeats(self._client).silent())

    def _connected(self) -> RestartedGroups:
        return self._groups() or RestartedGroups()

    def _recover_groups(self, loss: WorkerLost, noticed: float) -> bool:
        """Restart only the worker groups that have lost something; return whether others go on meanwhile."""
        if not self.cluster_run.complete:
            return False
        lost = self._workers.lost(self._placement.addresses)
        steps = self._connected().steps_read()
        groups = {} if steps is None else {group: steps[group] for group in self._groups_on(lost)}
        is_part = 0 < len(groups) < self._prepared.topology.groups
        if not (is_part and self._placement.on_cores and self._has_copies(lost)):
            return False
        placement = self._workers.place_lost(self._placement)
        if placement is None:
            return False
        self._count_restart(str(loss))
        _log.warning("%s; worker group %s starts again", loss, ", ".join(map(str, groups)))
        self.snapshots.drop()
        self._generation += 1
        self._placement, self._check = placement, self._make_check(placement)
        try:
            self.cluster_run.workers.end(groups, str(loss), lost)
            self.cluster_run.move(placement, self._check, self._generation)
            self._connected().go_on(groups)
            reached = self.cluster_run.restart_groups(groups, self._generation)
        except WorkerLost as again:
            _log.warning("%s", again)
            return False
        # Only the first group's reports are shown: it computes steps again if their reports were lost.
        begins = {group: step if group else groups[0] for group, step in reached.items()}
        for group, step in begins.items():
            steps_again = reached[group] - step
            self.restarts.append(Restart(str(loss), noticed, step, self._generation, group, steps_again))
        self._workers.blame(lost)
        self._connected().restart_groups(begins)
        return True

    def _groups_on(self, addresses: Collection[str]) -> list[int]:
        topology, placement = self._prepared.topology, self._placement
        return [
            group
            for group, workers in enumerate(placement.workers)
            if {*workers, *placement.servers[topology.server_group(group)]} & {*addresses}
        ]

    def _has_copies(self, lost: Collection[str]) -> bool:
        """Whether a linked server is left for each server on lost Dask workers."""
        topology, servers = self._prepared.topology, self._placement.servers
        return all(
            any(servers[linked][number] not in lost for linked in topology.linked_groups(group))
            for group, addresses in enumerate(servers)
            for number, address in enumerate(addresses)
            if address in lost
        )

    def _lose(self, loss: WorkerLost) -> str:
        """End the present generation on the Dask workers that are left; describe the loss in words."""
        _log.warning("%s; the run starts again from step %d", loss, self.snapshots.newest.step)
        self.snapshots.drop()
        self._workers.blame(self._placement.addresses)
        self.cluster_run.close(str(loss), heartbeats(self._client).silent(), last=False)
        return str(loss)

    def _count_restart(self, lost: str) -> None:
        limit, step = self._cluster.max_restarts, self.snapshots.newest.step
        if limit is None and self._restarts_from_snapshot >= RESTARTS_FROM_SNAPSHOT:
            raise RunError(f"{lost}; the run has started again {RESTARTS_FROM_SNAPSHOT} times from step {step}")
        if limit is not None and self._restarts >= limit:
            times = "once" if limit == 1 else f"{limit} times"
            again = f"; the run has started again {times}, as max_restarts says" if limit else ""
            raise RunError(f"{lost}{again}")
        self._restarts += 1
        self._restarts_from_snapshot += 1

    def _place_again(self) -> None:
        self._placement = self._workers.place(self._check)
        self._check = self._make_check(self._placement)

    def _start_generation(self) -> None:
        newest, prepared = self.snapshots.newest, self._prepared
        if self.cluster_run.started:
            self._generation += 1
            config = replace(self.cluster_run.config, generation=self._generation)
            self.cluster_run = ClusterRun(self._client, config, self._placement, self._check)
        if self.is_within:
            params, state = newest.release()
        elif any(process(address) == "inproc" for address in self._placement.addresses):
            params, state = newest.copy()
        else:
            params, state = newest.params, newest.state
        warm = prepared.topology.common_start(newest.step, prepared.job.train_steps)
        began = time.monotonic()
        self.cluster_run.start(params, state, newest.step, warm)
        self._start_seconds = time.monotonic() - began
