"""A run laid out on a Dask cluster: its servers, its partitions, and how to ask them for something."""

from __future__ import annotations

import contextlib
import copy
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask
import numpy as np
from distributed import Client, Future
from distributed.client import ClosedClientError

from dsinga.cluster import partition as tasks
from dsinga.cluster.neighbours import meet
from dsinga.cluster.placement import Placement, workers_at_hand
from dsinga.cluster.roads import wait_for
from dsinga.cluster.server import ServerActor, ServerKey
from dsinga.cluster.setup import PartitionKey, Setup
from dsinga.cluster.slices import Arrays, held_values, slice_specs, sliced_values, whole_values
from dsinga.cluster.watch import Steps, drive, gather
from dsinga.errors import RunError
from dsinga.job import Phase
from dsinga.server import routes
from dsinga.training import Metrics

# Seconds in which Dask workers must hear that a run has ended.
FAREWELL = 3


def new_run() -> str:
    """Return a name for a run that no other run has."""
    return uuid.uuid4().hex[:8]


def add_metrics(parts: Sequence[Metrics]) -> Metrics:
    """Return the sums and counts of several parts, added in their order."""
    sums: Metrics = {}
    for name, (total, count) in itertools.chain.from_iterable(part.items() for part in parts):
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + total, before[1] + count)
    return sums


class Session:
    """Servers and partitions on their Dask workers.

    Everything a partition does is a task that depends on the one before it, so that no queue can bring two partitions
    that wait for each other into the wrong order. The tasks of one worker group do not depend on those of another.
    """

    def __init__(self, client: Client, setup: Setup, placement: Placement):
        self._client = client
        self._setup = setup
        self._placement = placement
        self._several = setup.topology.groups > 1
        self._actors: dict[ServerKey, Any] = {}
        self._actor_futures: list[Future] = []
        self._tenants: list[Future] = []
        self._tokens: list[list[Future | None]] = [[None] * len(group) for group in placement.partitions]

    def start(self, values: Arrays, state: Mapping[str, Arrays] | None, step: int, warm: int) -> None:
        """Make the servers with these whole params, then the partitions, ready for ``step``.

        ``state`` is the updater's, by param and slot; None where it begins anew. If ``warm`` is a later step, group 0
        begins alone, and the others are ready for that step, once :meth:`join` says that it has come.
        """
        self._make_servers(step)
        alone = warm > step
        for group in range(1 if alone else self._setup.topology.server_groups):
            self._put(group, values, state)
        if not alone:
            self._introduce()
        for group in range(1, self._setup.topology.groups) if alone else ():
            self._tell_servers(group, "leave", group)
        self._tenants = [
            self._submit(
                tasks.Tenant, group, p, "here", self._setup, self._servers(group), threads, warm if group else step,
                actor=True,
            )
            for group, crew in enumerate(self._placement.threads)
            for p, threads in enumerate(crew)
        ]  # fmt: skip
        tenants = self._gather(self._tenants)
        self._acquaint(tenants)
        if self._setup.kept:
            self._hold(values, state)

    def join(self, step: int) -> None:
        """End the warm-up: give the values to the other server groups and let the other worker groups begin."""
        values, state = self.snapshot(step)
        for group in range(1, self._setup.topology.server_groups):
            self._put(group, values, state)
        self._introduce()
        for group in range(1, self._setup.topology.groups):
            self._tell_servers(group, "join", group, step)

    def leave(self, group: int) -> None:
        """Say that a worker group has ended, so that no other waits for it."""
        if self._several:
            self._tell_servers(group, "leave", group)

    def round(self, group: int, start: int, stop: int) -> list[Future]:
        """Send off the iterations ``start`` to ``stop`` - 1 of a worker group; return the tasks, one a partition."""
        return self._chain(tasks.train_round, group, f"steps-{start}-{stop}", start, stop)

    def evaluate(self, phase: Phase, batches: int, step: int) -> list[Future]:
        """Send off the first ``batches`` batches of ``phase`` to group 0, with its params after ``step`` steps."""
        return self._chain(tasks.evaluate, 0, f"{phase.name}-at-{step}", phase, batches, step)

    def drive(self, chains: Sequence[Steps]) -> None:
        """Run chains of the tasks that this session has sent off, until all have ended."""
        drive(self._client, chains, self._placement.addresses)

    def settle(self) -> None:
        """Let the server groups synchronise until they agree, and group 0 see that, all worker groups having ended."""
        if not self._several:
            return
        if self._setup.topology.edges:
            self._flush()
        self._gather(self._chain(tasks.renew, 0, "values"))
        self._tell_servers(0, "renew", 0)

    def snapshot(self, step: int) -> tuple[Arrays, dict[str, Arrays]]:
        """Return whole params and the updater's state, as server group 0 has them.

        With one worker group they are those after exactly ``step`` steps, with several as they stand.
        """
        pieces: dict[int, np.ndarray] = {}
        history: dict[int, Arrays] = {}
        version = None if self._several else step
        for values, slots in self._ask_all(self._servers(0), "snapshot", lambda key: (version,)):
            pieces.update(values)
            history.update(slots)
        kept = self._gather(self._chain(tasks.held, 0, f"at-{step}")) if self._setup.kept else ()
        return whole_values(self._setup, pieces, history, kept)

    def close(self, message: str | None = None) -> None:
        """End the run on all Dask workers that are left; waits that go on there end with ``message``."""
        # A worker that has just died may still be listed; nobody should wait while Dask tries to reach it. Where the
        # scheduler is gone, or the client, the run ends with its tenants.
        with contextlib.suppress(RunError, OSError):
            addresses = sorted(self._placement.addresses & workers_at_hand(self._client).keys())
            self._client.run(
                tasks.abandon,
                self._setup.run,
                message,
                workers=addresses,
                on_error="ignore",
                callback_timeout=FAREWELL,
            )
        # Dropping futures is not enough: where an error ends the run, its traceback holds them.
        with contextlib.suppress(ClosedClientError, OSError):
            tokens = [token for group in self._tokens for token in group if token]
            self._client.cancel([*tokens, *self._tenants, *self._actor_futures], force=True)
        self._tokens, self._tenants, self._actors, self._actor_futures = [], [], {}, []

    def _make_servers(self, step: int) -> None:
        shape, specs = self._setup.topology, slice_specs(self._setup)
        for group, addresses in enumerate(self._placement.servers):
            for server, address in enumerate(addresses):
                key = ServerKey(self._setup.run, self._setup.generation, group, server)
                mine = [spec for spec in specs if spec.slice.server == server]
                self._actors[key] = self._client.submit(
                    ServerActor, key, mine, self._setup.updater, shape.served(group), step, shape.staleness,
                    self._setup.timeout, self._setup.manner.codec(),
                    actor=True, workers=[address], key=f"server-{server}-of-group-{group}-{self._setup.run}",
                )  # fmt: skip
        self._actor_futures = list(self._actors.values())
        self._actors = dict(zip(self._actors, self._gather(self._actor_futures), strict=True))

    def _put(self, group: int, values: Arrays, state: Mapping[str, Arrays] | None) -> None:
        """Give whole params, and the updater's state, to a server group."""
        pieces, history = sliced_values(self._setup, values, state)

        def of(key: ServerKey) -> tuple[Any, ...]:
            ids = [piece.id for piece in self._setup.slices if piece.server == key.server]
            mine = {id: pieces[id] for id in ids}, None if history is None else {id: history[id] for id in ids}
            # Servers take what they are given for their own; in one process that is no copy.
            return mine if self._setup.topology.server_groups == 1 else copy.deepcopy(mine)

        self._ask_all(self._server_group(group), "put", of)

    def _acquaint(self, tenants: Sequence[Any]) -> None:
        """Make the partitions of each worker group known to each other, where they have mail for each other."""
        if not self._setup.bridged:
            return
        known = iter(tenants)
        waiting = []
        for group, crew in enumerate(self._placement.partitions):
            peers = {self._key(group, p): next(known) for p in range(len(crew))}
            waiting += [self._submit(tasks.introduce, group, p, "peers", peers) for p in range(len(crew))]
        self._gather(waiting)

    def _hold(self, values: Arrays, state: Mapping[str, Arrays] | None) -> None:
        """Give every partition what it keeps itself. There is one worker group then."""
        (shared,) = self._client.scatter(
            [held_values(self._setup, values, state)], workers=list(self._placement.partitions[0]), broadcast=True,
            hash=False,
        )  # fmt: skip
        crew = range(len(self._placement.partitions[0]))
        self._gather([self._submit(tasks.hold, 0, p, "values", shared) for p in crew])

    def _introduce(self) -> None:
        """Make neighbouring server groups known to each other: they keep in step from now on."""
        shape = self._setup.topology
        if not shape.edges:
            return
        ways = routes(shape.edges, shape.server_groups)
        meetings = []
        for key in self._actors:
            neighbours = {sum(edge) - key.group for edge in shape.edges if key.group in edge}
            there = {key._replace(group=group) for group in neighbours}
            actors = {other: self._actors[other] for other in there}
            meetings.append(
                self._client.submit(
                    meet, key, actors, ways, shape.sync_freq,
                    workers=[self._placement.servers[key.group][key.server]], allow_other_workers=False, pure=False,
                    key=f"meet-server-{key.server}-of-group-{key.group}-{self._setup.run}",
                )
            )  # fmt: skip
        self._gather(meetings)

    def _flush(self) -> None:
        """Let the server groups pass on what they have to, until nothing is under way between them."""
        before, sent = None, self._ask_all(self._actors, "flush", lambda key: ())
        while sent != before:
            before, sent = sent, self._ask_all(self._actors, "flush", lambda key: ())

    def _server_group(self, group: int) -> dict[ServerKey, Any]:
        return {key: actor for key, actor in self._actors.items() if key.group == group}

    def _servers(self, group: int) -> dict[ServerKey, Any]:
        """Return the servers of a worker group."""
        return self._server_group(self._setup.topology.server_group(group))

    def _tell_servers(self, group: int, method: str, *arguments: Any) -> None:
        self._ask_all(self._servers(group), method, lambda key: arguments)

    def _ask_all(
        self, servers: Mapping[ServerKey, Any], method: str, arguments: Callable[[ServerKey], Sequence[Any]]
    ) -> list[Any]:
        """Call a method of several servers, side by side; return the answers."""
        with self._client.as_current():  # an Actor outside a task finds its way by the current client
            answers = {key: getattr(actor, method)(*arguments(key)) for key, actor in servers.items()}
        return [
            wait_for(
                answer, self._setup.timeout,
                f"{method} by server {key.server} on {self._placement.servers[key.group][key.server]}",
            )
            for key, answer in answers.items()
        ]  # fmt: skip

    def _key(self, group: int, partition: int) -> PartitionKey:
        address = self._placement.partitions[group][partition]
        return PartitionKey(self._setup.run, self._setup.generation, group, partition, address)

    def _chain(self, task: Callable[..., Any], group: int, what: str, *arguments: Any) -> list[Future]:
        """Send off a task of every partition of a group, each after the one that was sent to it before."""
        futures = [self._submit(task, group, p, what, *arguments, token) for p, token in enumerate(self._tokens[group])]
        self._tokens[group] = [*futures]
        return futures

    def _submit(
        self, task: Callable[..., Any], group: int, partition: int, what: str, *arguments: Any, actor: bool = False
    ) -> Future:
        key = self._key(group, partition)
        of_group = f"-of-group-{group}" if self._several else ""
        with dask.annotate(priority=10):  # ahead of whatever else the user's cluster has to do
            return self._client.submit(
                task,
                key,
                *arguments,
                actor=actor,
                workers=[key.address],
                allow_other_workers=False,
                pure=False,
                key=f"{task.__name__}-{what}-partition-{partition}{of_group}-{self._setup.run}",
            )

    def _gather(self, futures: Sequence[Future]) -> list[Any]:
        return gather(self._client, futures, self._placement.addresses)
