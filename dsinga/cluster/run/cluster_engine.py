"""Trains worker groups on a Dask cluster in rounds of several steps, and goes on after a loss of Dask workers."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence

from dsinga.base.arrays import ParamArrays, averaged
from dsinga.cluster.dask.dask_workers import host
from dsinga.cluster.inference import forward_on_cluster
from dsinga.cluster.placing.prepare import PreparedRun
from dsinga.cluster.run.group_rounds import ROUNDS, ROUNDS_AHEAD, Grain, reports_by_group
from dsinga.cluster.run.recovery import RecoverableRun
from dsinga.cluster.run.snapshots import LOST
from dsinga.cluster.run.worker_groups import WorkerGroups
from dsinga.cluster.run_events import RunEvents
from dsinga.engine.engine import Engine, Loop, Places, Snapshot, StepReport
from dsinga.job import Phase
from dsinga.passes.inference import outputs_to_write, write_outputs
from dsinga.training import Metrics, add_metrics
from dsinga.training.metrics import add_blocks


class ClusterEngine(Engine):
    """Lets the training loop train the worker groups of a run on a Dask cluster.

    Worker groups do not wait for each other; the training loop sees group 0. After a loss of Dask workers, the run goes
    on from its last snapshot (:mod:`dsinga.cluster.run.recovery`).
    """

    def __init__(self, prepared: PreparedRun, run: RecoverableRun, grain: Grain, events: RunEvents):
        self.job, self.epochs, self.groups = prepared.job, prepared.epochs, prepared.topology.groups
        self.nets = {phase: net.whole for phase, net in prepared.config.nets.items()}
        self.cuts = {name: cut[:2] for name, cut in prepared.config.nets[Phase.kTrain].cuts.items()}
        placement = prepared.placement
        hosts = len({host(address) for address in placement.workers[0]})
        used_gpus = not placement.on_cores
        unpredicted = "sent iterations as task graphs" if grain is not ROUNDS else "used GPUs" if used_gpus else ""
        self.places = Places(*placement.processes, hosts, placement.threads[0][0], self.groups, unpredicted)
        self._rows = prepared.config.readers[Phase.kTrain].batchsize
        self.batchsize = self._rows * self.groups
        self._prepared, self._run, self._grain, self._events = prepared, run, grain, events
        self._begin = run.snapshots.newest.step
        self._loop: Loop | None = None
        self._groups: WorkerGroups | None = None  # from the beginning of training on
        self._move_reason = ""  # why the run moves to other Dask workers when it stands

    def open(self) -> None:
        """Start the servers and workers of the run on their Dask workers."""
        self._run.start()

    def start(self, step: int, loop: Loop) -> None:
        """Begin the rounds of all worker groups."""
        self._loop = loop
        self._groups = WorkerGroups(
            self._prepared, self._run, self._grain, loop, self._events, self._show_restarts, step
        )

    @property
    def step(self) -> int:
        """The step after group 0's last round that was read."""
        return self._groups.first.read_to if self._groups else self._begin

    @property
    def sent(self) -> int:
        """The step after group 0's last round that was sent."""
        return self._groups.first.sent if self._groups else self._begin

    @property
    def samples_per_second(self) -> float:
        """How many records a second all worker groups together trained on in their last rounds."""
        return self._rows * (self._groups.speed if self._groups else 0.0)

    def train(self, stop: int) -> Sequence[StepReport]:
        """Read the oldest round of group 0, send others ahead, and move the run if due."""
        groups, loop = self._groups, self._loop
        assert groups is not None
        assert loop is not None
        self._consider_move(groups, loop, stop)
        if not groups.submit_ahead(0 if self._move_reason else stop):
            if not self._move_reason:
                return []
            self._move(loop)
            groups.submit_ahead(stop)
        if loop.step < stop:
            self._run.snapshots.add_loop(loop.step, loop.state)
        first = groups.first
        by_worker, reports = groups.read()
        if groups.first is not first:  # the run was started again, perhaps elsewhere
            self._move_reason = ""
        if reports:
            self._show_restarts(sum(report.timing["total"] for report in reports[1:]), 0)
            for group, of_group in enumerate(reports_by_group(by_worker, self._prepared.topology.workers)):
                self._events.round(group, of_group)
        return reports

    def _consider_move(self, groups: WorkerGroups, loop: Loop, stop: int) -> None:
        """Send no further rounds if the run should move to other Dask workers."""
        if groups.first.read_to > self._begin and loop.step < stop and not self._move_reason:
            seconds_left = (self.job.train_steps - loop.step) / (groups.first.speed or math.inf)
            self._move_reason = self._run.wants_to_move(seconds_left)

    def _move(self, loop: Loop) -> None:
        reason, self._move_reason = self._move_reason, ""
        self._run.move(reason, loop.step, loop.state())
        self._show_restarts(0.0, 0)

    def _show_restarts(self, since: float, group: int) -> None:
        """Report restarts to the loop once a group is again at the step where it stood, ``since`` seconds ago."""
        for restart in [restart for restart in self._run.restarts if (restart.group or 0) == group]:
            self._run.restarts.remove(restart)
            self.places = self.places._replace(unpredicted="was started again on other Dask workers")
            if self._loop is not None:
                self._loop.show_restart(restart, time.perf_counter() - since - restart.noticed_at)

    def finish(self) -> None:
        """Let the other groups end, and give all server groups the same params."""
        assert self._groups is not None, "training has not begun"
        self._run.do(self._groups.finish)

    def evaluate(self, phase: Phase, batches: int) -> Metrics:
        """Let the workers of group 0 evaluate their parts of each batch."""
        step = self._reached
        averages = self.params() if self._averages else None
        firsts, by_worker = self._run.do(
            lambda run: (
                [team.start for team in run.workers.teams(0)],
                run.workers.chains.wait(run.evaluate(phase, batches, step, averages)),
            )
        )
        of_batches = [dict(zip(firsts, batch, strict=True)) for batch in zip(*by_worker, strict=True)]
        in_tree = self._prepared.topology.threads is not None
        return add_metrics([add_blocks(parts) if in_tree else add_metrics(parts.values()) for parts in of_batches])

    def write_outputs(self, phase: Phase, batches: int) -> None:
        """Write the files of a phase's output layers; a validation writes the files that no test writes."""
        layers = outputs_to_write(self.nets, phase)
        if layers:
            net, reader = self.nets[phase], self._prepared.config.readers[phase]
            write_outputs(net, reader, forward_on_cluster(self.job, self._run.client, self.params()), batches, layers)

    def params(self) -> ParamArrays:
        """Return copies of server group 0's params, or of their averages."""
        step = self._reached
        if self._averages:
            return averaged(*self.snapshot())
        return self._run.do(lambda run: run.snapshot(step, False)[0])

    def last_params(self) -> ParamArrays:
        """Return server group 0's params, without a copy if they are in this process."""
        if self._averages:
            return self.params()
        step, copied = self._reached, not self._run.is_within
        return self._run.do(lambda run: run.snapshot(step, False, copied)[0])

    def snapshot(self) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Return copies of server group 0's params and updater state."""
        step = self._reached
        return self._run.do(lambda run: run.snapshot(step, True))

    def set_params(self, params: ParamArrays, state: Mapping[str, ParamArrays] | None) -> None:
        """Restart workers and servers with other params, on the same Dask workers."""
        slots = self.snapshot()[1] if state is None else state
        loop = None if self._loop is None else self._loop.state()
        self._run.start_again("the params were set", Snapshot(self._reached, params, slots, loop))

    @property
    def _averages(self) -> bool:
        return self.job.updater.ema_conf is not None

    @property
    def _reached(self) -> int:
        """The step at which the loop stands; after a loss the run computes up to it again."""
        return self._begin if self._loop is None else self._loop.step

    def keep(self, snapshot: Snapshot) -> None:
        """Store a snapshot as the newest, from which the run restarts after a loss."""
        self._run.keep(snapshot)

    @property
    def newest(self) -> Snapshot:
        """The newest complete snapshot of the run."""
        return self._run.snapshots.newest

    def rescue(self, waits: bool) -> Snapshot | None:
        """Return the params of an interrupted run: the servers' if its rounds can end, else the last snapshot's."""
        groups, end = self._groups, self._run.snapshots.newest
        if groups is not None and (waits or groups.first.read_to == groups.first.sent):
            with contextlib.suppress(*LOST):
                while groups.first.read_to < groups.first.sent:
                    groups.read()
                step = groups.first.sent
                end = Snapshot(step, *self._run.cluster_run.snapshot(step))
        if end.step <= self._begin or end.state is None:
            return None
        return Snapshot(end.step, averaged(end.params, end.state) if self._averages else end.params, end.state)

    def reach(self) -> tuple[int, float]:
        """Estimate the step at which the rounds in flight and one more end, and their seconds."""
        assert self._groups is not None, "training has not begun"
        coming, length = ROUNDS_AHEAD + 1, self._groups.first.length
        return self.sent + coming * length.steps, coming * length.seconds

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of the updater's schedule at a step."""
        return self._prepared.config.updater.rate(step)

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by factors wherever params are updated."""
        step = self._reached
        self._run.do(lambda run: self._run.set_rate_factors(run, step, factors))

    def use_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by factors in the updater that each start of the run uses."""
        self._prepared.config.updater.set_rate_factors(factors)

    def close(self, message: str | None = None) -> None:
        """End the run on all Dask workers that are left."""
        self._run.close(message)
        self._loop = self._groups = None  # they refer to this object
