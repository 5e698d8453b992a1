"""A run laid out on a Dask cluster: its servers, its partitions, and how to ask them for something."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask
import numpy as np
from distributed import Client, Future
from distributed.client import ClosedClientError

from dsinga.cluster import tasks
from dsinga.cluster.partition_actor import PartitionActor, end_run
from dsinga.cluster.placement import Placement, workers_at_hand
from dsinga.cluster.servers import Servers
from dsinga.cluster.supervision import TaskChain, TaskChains, gather
from dsinga.errors import RunError
from dsinga.job import Phase
from dsinga.worker.config import PartitionKey, WorkerConfig
from dsinga.worker.param_slices import Arrays, replica_values, whole_values
from dsinga.worker.processor import Processor

# That of all tasks: ahead of whatever else the user's cluster has to do.
PRIORITY = 10
# Seconds in which Dask workers must hear that a run has ended.
END_SECONDS = 3


def new_run() -> str:
    """Return a name for a run that no other run has."""
    return uuid.uuid4().hex[:8]


# Submits a task graph: (client, keys of the partitions, tasks that it must come after, end of the tasks' names).
Submit = Callable[[Client, Sequence[PartitionKey], Sequence[Future | None], str], list[Future]]


class ClusterRun:
    """Servers and partitions on their Dask workers.

    Everything a partition does is a task that depends on the one before it, so that no queue can bring two partitions
    that wait for each other into the wrong order. The tasks of one worker group do not depend on those of another.
    """

    def __init__(self, client: Client, config: WorkerConfig, placement: Placement):
        self._client = client
        self.config = config
        self._placement = placement
        self._run = config.run
        self._several = config.topology.groups > 1
        self._servers = Servers(client, config, placement)
        self.chains = TaskChains(client, placement.addresses)
        self._moments: tuple[int, int] = (-1, 0)  # the last step that tasks were named after, and how many were
        self._actors: list[Future] = []
        self._tokens: list[list[Future | None]] = [[None] * len(group) for group in placement.partitions]

    def start(self, values: Arrays, state: Mapping[str, Arrays] | None, step: int, warm: int) -> None:
        """Make the servers with these whole params, then the partitions, ready for ``step``.

        ``state`` is the updater's, by param and slot; None where it begins anew. If ``warm`` is a later step, group 0
        begins alone, and the others are ready for that step, once :meth:`join` says that it has come.
        """
        shape, alone = self.config.topology, warm > step
        self._servers.make(step)
        self._servers.put(range(1 if alone else shape.server_groups), values, state)
        if not alone:
            self._servers.link()
        for group in range(1, shape.groups) if alone else ():
            self._servers.call(group, "leave", group)
        self._actors = [
            self._submit(
                PartitionActor, group, p, "here", self.config, self._servers.of(group),
                Processor(threads, self._placement.device(group, p), self.config.precision), warm if group else step,
                actor=True,
            )
            for group, crew in enumerate(self._placement.threads)
            for p, threads in enumerate(crew)
        ]  # fmt: skip
        actors = self._gather(self._actors)
        self._connect_peers(actors)
        if self.config.replicated:
            self._set_replicas(values, state)

    def join(self, step: int) -> None:
        """End the warm-up: give the values to the other server groups and let the other worker groups begin."""
        shape = self.config.topology
        # Its last pushes may be on their way, and what it has may be the very arrays that others change from now on.
        self._refresh([0], "warm")
        self._servers.put(range(1, shape.server_groups), *self.snapshot(step))
        self._servers.link()
        for group in range(1, shape.groups):
            self._servers.call(group, "join", group, step)

    def leave(self, group: int) -> None:
        """Say that a worker group has ended, so that no other waits for it."""
        if self._several:
            self._servers.call(group, "leave", group)

    def send(self, task: Callable[..., Any], group: int, what: str, *arguments: Any) -> list[Future]:
        """Send off a task of every partition of a group, each after the one that was sent to it before."""
        futures = [self._submit(task, group, p, what, *arguments, token) for p, token in enumerate(self._tokens[group])]
        self._tokens[group] = [*futures]
        return futures

    def send_graph(self, group: int, submit: Submit) -> list[Future]:
        """Submit a task graph for a worker group, which runs after the tasks that were sent to the group before."""
        keys = [self._key(group, p) for p in range(len(self._tokens[group]))]
        with dask.annotate(priority=PRIORITY):
            futures = submit(self._client, keys, self._tokens[group], f"{self._suffix(group)}-{self._run}")
        self._tokens[group] = [*futures]
        return futures

    def evaluate(self, phase: Phase, batches: int, step: int) -> list[Future]:
        """Send off the first ``batches`` batches of ``phase`` to group 0, with its params after ``step`` steps."""
        return self.send(tasks.evaluate, 0, f"{phase.name}-{self._moment(step)}", phase, batches, step)

    def run_chains(self, chains: Sequence[TaskChain]) -> None:
        """Run chains of the tasks that this run has sent off, until all have ended."""
        for chain in chains:
            self.chains.add(chain)
        self.chains.finish()

    def synchronise(self) -> None:
        """Let all server groups agree, and group 0 have their values, when all worker groups have ended."""
        if self._several:
            self._refresh(range(self.config.topology.groups), "ended")  # their last pushes may be on their way
            self._servers.flush()
            self._refresh([0], "settled")

    def snapshot(self, step: int, state: bool = True) -> tuple[Arrays, dict[str, Arrays]]:
        """Return whole params and the updater's state, as server group 0 has them; without ``state`` none of servers'.

        With one worker group they are those after exactly ``step`` steps, with several as they stand.
        """
        pieces: dict[int, np.ndarray] = {}
        history: dict[int, Arrays] = {}
        version = None if self._several else step
        for values, slots in self._servers.call(0, "snapshot", version, state):
            pieces.update(values)
            history.update(slots)
        kept = self._gather(self.send(tasks.replica_state, 0, self._moment(step))) if self.config.replicated else ()
        return whole_values(self.config, pieces, history, kept)

    def set_rate_factors(self, step: int, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by ``factors`` wherever params are updated: from which step on, by how much.

        To be called when group 0 stands at ``step``, with no factor for an earlier step that was not there before.
        """
        self._servers.call_all("set_rate_factors", factors)
        if self.config.replicated:
            self._gather(self.send(tasks.set_rate_factors, 0, self._moment(step), factors))

    def close(self, message: str | None = None) -> None:
        """End the run on all Dask workers that are left; waits that go on there end with ``message``."""
        # A worker that has just died may still be listed; nobody should wait while Dask tries to reach it. Where the
        # scheduler is gone, or the client, the run ends with its actors.
        with contextlib.suppress(RunError, OSError):
            addresses = sorted(self._placement.addresses & workers_at_hand(self._client).keys())
            self._client.run(
                end_run,
                self.config.run,
                message,
                workers=addresses,
                on_error="ignore",
                callback_timeout=END_SECONDS,
            )
        # Dropping futures is not enough: where an error ends the run, its traceback holds them.
        with contextlib.suppress(ClosedClientError, OSError):
            tokens = [token for group in self._tokens for token in group if token]
            self._client.cancel([*tokens, *self._actors, *self._servers.futures], force=True)
        self._tokens, self._actors = [], []

    def _refresh(self, groups: Sequence[int], when: str) -> None:
        """Wait for the last updates of worker groups that stand still, and let them have the values as they then are.

        Once for each ``when``.
        """
        self._gather([future for group in groups for future in self.send(tasks.refresh, group, when)])
        for group in groups:
            self._servers.call(group, "refresh", group)

    def _connect_peers(self, actors: Sequence[Any]) -> None:
        """Make the partitions of each worker group known to each other, where they have mail for each other."""
        if not self.config.has_bridges:
            return
        known = iter(actors)
        waiting = []
        for group, crew in enumerate(self._placement.partitions):
            peers = {self._key(group, p): next(known) for p in range(len(crew))}
            waiting += [self._submit(tasks.connect_peers, group, p, "peers", peers) for p in range(len(crew))]
        self._gather(waiting)

    def _set_replicas(self, values: Arrays, state: Mapping[str, Arrays] | None) -> None:
        """Give every partition what it keeps itself. There is one worker group then."""
        (shared,) = self._client.scatter(
            [replica_values(self.config, values, state)], workers=list(self._placement.partitions[0]), broadcast=True,
            hash=False,
        )  # fmt: skip
        crew = range(len(self._placement.partitions[0]))
        self._gather([self._submit(tasks.set_replica, 0, p, "values", shared) for p in crew])

    def _moment(self, step: int) -> str:
        """Return "at-<step>" for the name of a task, numbered where there are several at one step."""
        last, count = self._moments
        self._moments = step, count + 1 if step == last else 0
        return f"at-{step}" + (f"-{self._moments[1]}" if self._moments[1] else "")

    def _key(self, group: int, partition: int) -> PartitionKey:
        address = self._placement.partitions[group][partition]
        return PartitionKey(self.config.run, self.config.generation, group, partition, address)

    def _submit(
        self, task: Callable[..., Any], group: int, partition: int, what: str, *arguments: Any, actor: bool = False
    ) -> Future:
        name = f"{task.__name__}-{what}-partition-{partition}{self._suffix(group)}-{self._run}"
        key = self._key(group, partition)
        with dask.annotate(priority=PRIORITY):
            return self._client.submit(
                task,
                key,
                *arguments,
                actor=actor,
                workers=[key.address],
                allow_other_workers=False,
                pure=False,
                key=name,
            )

    def _suffix(self, group: int) -> str:
        return f"-of-group-{group}" if self._several else ""

    def _gather(self, futures: Sequence[Future]) -> list[Any]:
        return gather(self._client, futures, self._placement.addresses)
