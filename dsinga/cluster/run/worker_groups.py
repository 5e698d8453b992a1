"""Trains the worker groups of a run: the training loop drives group 0, the others run by themselves."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence

from dsinga.base.errors import WorkerLost
from dsinga.cluster.dask.supervision import TaskChain
from dsinga.cluster.placing.prepare import PreparedRun
from dsinga.cluster.run.cluster_run import ClusterRun
from dsinga.cluster.run.group_rounds import Grain, GroupRounds
from dsinga.cluster.run.recovery import RecoverableRun, RestartedGroups
from dsinga.cluster.run_events import RunEvents
from dsinga.cluster.worker.config import RoundReport
from dsinga.engine.engine import Loop, StepReport


class WorkerGroups(RestartedGroups):
    """Trains all worker groups of a run from ``begin``; they do not wait for each other.

    Synchronous groups are sent and read together, as group 0. Otherwise group 0 trains alone during the warm-up. After
    a restart, reports of group 0 that the loop has already seen are dropped.

    Args:
        loop: the training loop, at group 0's ``step``.
        show_restarts: a method of the engine for restarted groups that have caught up: (seconds since then, group).
    """

    def __init__(
        self,
        prepared: PreparedRun,
        run: RecoverableRun,
        grain: Grain,
        loop: Loop,
        events: RunEvents,
        show_restarts: Callable[[float, int], None],
        begin: int,
    ):
        self._run, self._grain, self._loop, self._events = run, grain, loop, events
        self._show = weakref.WeakMethod(show_restarts)  # weak, because the engine refers to this object
        self._last = prepared.job.train_steps
        self._count, self._together_only = prepared.topology.groups, prepared.topology.is_synchronous
        self._together = prepared.topology.common_start(begin, self._last)  # the step at which all groups train
        self._warms_up = False  # whether group 0 trains alone
        self._groups: list[GroupRounds] = []
        run.connect(self)
        try:
            self.restart(begin)
        except WorkerLost as loss:
            run.recover(loss)

    @property
    def first(self) -> GroupRounds:
        """The rounds of group 0."""
        return self._groups[0]

    @property
    def speed(self) -> float:
        """The steps a second of all groups together."""
        return sum(rounds.speed for rounds in self._groups) * (self._count if self._together_only else 1)

    def submit_ahead(self, stop: int) -> bool:
        """Send rounds of group 0, none beyond ``stop``; return whether reports are still to come."""
        while True:
            try:
                rounds, run = self.first, self._run.cluster_run
                if self._warms_up and rounds.read_to >= self._together:
                    self._join(run)
                if rounds.sent < stop:
                    drifts = self._count > 1 and not self._together_only
                    self._run.snapshots.request(run, rounds.read_to if drifts else rounds.sent)
                return rounds.submit_ahead(min(stop, self._together) if self._warms_up else stop)
            except WorkerLost as loss:
                self._run.recover(loss)

    def read(self) -> tuple[Sequence[RoundReport], list[StepReport]]:
        """Wait for a round of group 0; return its reports by worker, and of steps new to the loop."""
        rounds = self.first
        try:
            by_worker = self._run.cluster_run.workers.chains.wait(rounds.oldest)
        except WorkerLost as loss:
            self._run.recover(loss)
            return [], []
        seen = self._loop.step - rounds.read_to
        reports = rounds.read(by_worker)
        self._run.snapshots.reach(rounds.read_to)
        self._run.collect_snapshot()
        return by_worker, reports[max(0, seen) :]

    def finish(self, run: ClusterRun) -> None:
        """Let the other groups end after group 0, and give all server groups the same params."""
        if self._warms_up:  # group 0 was stopped before the others began
            self._join(run)
        run.leave(0)
        run.workers.chains.finish()
        if not (self._together_only and self._loop.resumable):
            run.synchronise()

    def restart(self, step: int) -> None:
        """Begin the rounds of all groups at ``step``, where a generation of the run has started."""
        run, lengths = self._run.cluster_run, [rounds.length for rounds in self._groups]
        if self._together_only:
            self._groups = [GroupRounds(run, self._grain, 0, step, self._count)]
        else:
            self._groups = [
                GroupRounds(run, self._grain, group, max(step, self._together) if group else step)
                for group in range(self._count)
            ]
        for rounds, length in zip(self._groups, lengths, strict=False):
            rounds.length = length
        self._warms_up = step < self._together
        if not self._warms_up:
            self.go_on(())

    def catch_up(self) -> None:
        """Train group 0 after a restart up to the step at which it stood."""
        while self.submit_ahead(self._loop.step):
            self.read()
        self._show_restarts(0.0, 0)

    def steps_read(self) -> list[int] | None:
        """Return the step after each group's last report that was read; None unless each trains by itself."""
        alone = self._warms_up or self._together_only or not self._groups
        return None if alone else [rounds.read_to for rounds in self._groups]

    def go_on(self, restarting: Collection[int]) -> None:
        """Let the groups that are not ``restarting`` go on with their rounds in flight."""
        for rounds in self._groups[1:]:
            if rounds.group not in restarting:
                self._run.cluster_run.workers.chains.add(self._train_alone(rounds))

    def restart_groups(self, steps: Mapping[int, int]) -> None:
        """Begin the rounds of some groups at their restarted steps."""
        for group, step in steps.items():
            rounds = GroupRounds(self._run.cluster_run, self._grain, group, step)
            rounds.length, self._groups[group] = self._groups[group].length, rounds
            if group:
                self._run.cluster_run.workers.chains.add(self._train_alone(rounds))

    def _show_restarts(self, seconds: float, group: int) -> None:
        show = self._show()
        if show is not None:
            show(seconds, group)

    def _join(self, run: ClusterRun) -> None:
        run.join(self._loop.step)
        self._warms_up = False
        self.go_on(())

    def _train_alone(self, rounds: GroupRounds) -> TaskChain:
        """Train a group that the training loop does not drive, until training ends."""
        while rounds.submit_ahead(rounds.sent if self._loop.stopped else self._last):
            by_worker = yield rounds.oldest
            seconds = sum(report.timing["total"] for report in rounds.read(by_worker)[1:])
            self._show_restarts(seconds, rounds.group)
            self._events.round(rounds.group, by_worker)
        rounds.speed = 0.0
        self._show_restarts(0.0, rounds.group)
        self._run.cluster_run.leave(rounds.group)
