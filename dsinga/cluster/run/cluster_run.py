"""The driver's handle of a run on a Dask cluster: starts servers and workers, and coordinates them."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from distributed import Client, Future

from dsinga.base.arrays import ParamArrays
from dsinga.cluster.dask.placement import Placement
from dsinga.cluster.dask.supervision import Check, no_check
from dsinga.cluster.dask.worker_memory import give_back_soon
from dsinga.cluster.on_workers import tasks
from dsinga.cluster.run.servers import Servers
from dsinga.cluster.run.worker_tasks import WorkerTasks
from dsinga.cluster.worker.config import WorkerConfig
from dsinga.cluster.worker.param_slices import of_group, replica_values, whole_values
from dsinga.cutting.partitioned import split_params
from dsinga.job import Phase


class ClusterRun:
    """Starts, coordinates and ends the servers and workers of a run on their Dask workers.

    Attributes:
        started: whether :meth:`start` was called.
        complete: whether :meth:`start` has created everything, and :meth:`close` has ended nothing.
    """

    def __init__(self, client: Client, config: WorkerConfig, placement: Placement, check: Check = no_check):
        self.config = config
        self._several = config.topology.groups > 1
        self._drifts = self._several and not config.topology.is_synchronous  # whether groups are at different steps
        self.servers = Servers(client, config, placement, check)
        self.workers = WorkerTasks(client, config, placement, check)
        self._refreshes = 0
        self.started = self.complete = False

    def start(self, values: ParamArrays, state: Mapping[str, ParamArrays] | None, step: int, warm: int) -> None:
        """Create the servers with these whole params, then the workers, ready for ``step``.

        If ``warm`` is a later step, group 0 begins alone; the others are ready for that step, and :meth:`join` starts
        them.
        """
        self.started = True
        shape, warms_up = self.config.topology, warm > step
        self.servers.create(step)
        self.servers.put(range(1 if warms_up else shape.server_groups), values, state)
        if not warms_up:
            self.servers.link()
        for group in range(1, shape.groups) if warms_up else ():
            self.servers.call(group, "leave", group)
        self._create_workers({group: warm if group else step for group in range(shape.groups)})
        if self.config.replicated:  # there is one worker group then
            replicas = self._share(replica_values(self.config, values, state), tasks.set_replica)
            self.workers.gather(self.workers.submit(tasks.set_replica, 0, "", replicas))
        self.complete = True

    def _create_workers(self, steps: Mapping[int, int]) -> None:
        self.workers.create(steps, {group: self.servers.addresses(group) for group in steps})

    def move(self, placement: Placement, check: Check, generation: int) -> None:
        """Move the run to another placement; moved servers are created again (:meth:`Servers.replace_lost`)."""
        self.workers.move(placement, check)
        self.servers.replace_lost(placement, check, generation)

    def restart_groups(self, steps: Mapping[int, int], generation: int) -> dict[int, int]:
        """Create the workers of some worker groups again, ready for the given steps; return the groups' steps.

        A group's step is the first one that its servers have not applied. Its workers may begin earlier, since servers
        drop repeated gradients.
        """
        reached = {group: self.servers.restart(group, generation, step) for group, step in steps.items()}
        self.workers.generations.update(dict.fromkeys(steps, generation))
        # The steps of other groups than the first are not reported.
        self._create_workers({group: step if group else steps[0] for group, step in reached.items()})
        return reached

    def join(self, step: int) -> None:
        """End the warm-up of group 0: give its values to the other server groups, and start the other workers."""
        shape = self.config.topology
        # Group 0's last pushes may be on their way, and its values may be the arrays that other groups now change.
        self._refresh([0], "warm")
        self.servers.put(range(1, shape.server_groups), *self.snapshot(step))
        self.servers.link()
        for group in range(1, shape.groups):
            self.servers.call(group, "join", group, step)

    def leave(self, group: int) -> None:
        """Tell the servers that a worker group has ended, so that no other waits for it."""
        if self._several:
            self.servers.call(group, "leave", group)

    def evaluate(self, phase: Phase, batches: int, step: int, params: ParamArrays | None = None) -> list[Future]:
        """Let group 0 evaluate ``batches`` batches of ``phase`` (0: all records) with params after ``step`` steps."""
        shared = None
        if params is not None:
            shared = self._share(split_params(self.config.parts, params), tasks.evaluate)
        what = f"{phase.name} {self.workers.moment(step)}"
        return self.workers.submit(tasks.evaluate, 0, what, phase, batches, step, shared)

    def synchronise(self) -> None:
        """Give all server groups, and worker group 0, the same params once all worker groups have ended."""
        if self._several:
            self._refresh(range(self.config.topology.groups), "ended")  # the last pushes may be on their way
            self.servers.flush()
            self._refresh([0], "settled")

    def snapshot(
        self, step: int, state: bool = True, copied: bool = True
    ) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Return whole params from server group 0, and the updater's state unless ``state`` is False.

        With one worker group, or synchronous ones, they are exact after ``step`` steps; otherwise as they stand. Unless
        ``copied``, servers of this process give away their arrays: then no step may follow.
        """
        arguments = None if self._drifts else step, state, copied
        if state and self.config.topology.is_synchronous:
            copies = self.servers.call_all("snapshot", *arguments)
        else:
            copies = self.servers.call(0, "snapshot", *arguments)
        return self.join_copies(copies, self._request_replicas(step))

    def join_copies(
        self, copies: Sequence[tuple[dict[int, np.ndarray], dict[int, ParamArrays]]], replicas: Sequence[Future]
    ) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Join the slices that all servers have copied to whole params and updater state."""
        pieces: dict[int, np.ndarray] = {}
        history: dict[int, ParamArrays] = {}
        for number, (values, slots) in enumerate(copies):
            group = number // self.config.topology.servers
            if group:
                for id, arrays in of_group(group, values, slots).items():
                    history[id] = history[id] | arrays
            else:
                pieces.update(values)
                history.update(slots)
        return whole_values(self.config, pieces, history, self.workers.gather(replicas) if replicas else ())

    def request_snapshot(self, step: int) -> tuple[list[concurrent.futures.Future[Any]], list[Future]]:
        """Request copies of params and updater state, while training goes on (:meth:`join_copies`).

        They are as in :meth:`snapshot`; no sent task may go beyond ``step``.
        """
        if self.config.topology.is_synchronous:
            self.servers.call_all("request_snapshot", step)
            return self.servers.ask_all("requested_snapshot"), []
        self.servers.call(0, "request_snapshot", None if self._drifts else step)
        return self.servers.ask(0, "requested_snapshot"), self._request_replicas(step)

    def _request_replicas(self, step: int) -> list[Future]:
        if not self.config.replicated:
            return []
        return self.workers.submit(tasks.replica_state, 0, self.workers.moment(step))

    def set_rate_factors(self, step: int, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by ``factors``, each from its step, wherever params are updated."""
        self.servers.call_all("set_rate_factors", factors)
        if self.config.replicated:
            self.workers.gather(self.workers.submit(tasks.set_rate_factors, 0, self.workers.moment(step), factors))

    def close(self, message: str | None = None, lost: Collection[str] = (), last: bool = True) -> None:
        """End the run, or only its present generation unless ``last``, on all Dask workers that are left.

        Waits there end with ``message``. ``lost`` are Dask workers that do not answer.
        """
        self.complete = False
        self.workers.close(message, lost, last)
        self.workers.forget(self.servers.futures)
        give_back_soon()

    def _refresh(self, groups: Sequence[int], when: str) -> None:
        """Wait for the last updates of standing worker groups, then let them pull the values again."""
        self._refreshes += 1  # another call may have the same name, where a loss came between
        what = f"{when}, {self._refreshes}"
        self.workers.gather([future for group in groups for future in self.workers.submit(tasks.refresh, group, what)])
        for group in groups:
            self.servers.call(group, "refresh", group)

    def _share(self, value: Any, task: Callable[..., Any]) -> Any:
        return self.workers.share(value, [0], task)
