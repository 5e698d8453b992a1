"""A run laid out on a Dask cluster: its servers, its partitions, and how to ask them for something."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask
import numpy as np
from distributed import Client, Future
from distributed.client import ClosedClientError

from dsinga.cluster import partition as tasks
from dsinga.cluster.placement import Placement, workers_at_hand
from dsinga.cluster.roads import wait_for
from dsinga.cluster.server import ServerActor, ServerKey
from dsinga.cluster.setup import PartitionKey, RoundReport, Setup
from dsinga.cluster.watch import gather
from dsinga.errors import RunError
from dsinga.job import Phase
from dsinga.net.partitioned import cut_values, join_values
from dsinga.server import SliceSpec
from dsinga.training import Metrics, Updater

Arrays = dict[str, np.ndarray]

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
    that wait for each other into the wrong order.
    """

    def __init__(self, client: Client, setup: Setup, placement: Placement):
        self._client = client
        self._setup = setup
        self._placement = placement
        self._actors: list[Any] = []
        self._actor_futures: list[Future] = []
        self._tenants: list[Future] = []
        self._tokens: list[Future | None] = [None] * len(placement.partitions)

    def start(self, updater: Updater, values: Arrays, state: Mapping[str, Arrays] | None, step: int) -> None:
        """Make the servers with these values, then the partitions, ready for ``step``.

        ``state`` is the updater's, by param and slot; None where it begins anew.
        """
        per_server = [
            [spec for spec in self._specs() if spec.slice.server == server]
            for server in range(len(self._placement.servers))
        ]
        keys = [
            ServerKey(self._setup.run, self._setup.generation, server) for server in range(len(self._placement.servers))
        ]
        for server, (key, address) in enumerate(zip(keys, self._placement.servers, strict=True)):
            self._actor_futures.append(
                self._client.submit(
                    ServerActor,
                    key,
                    per_server[server],
                    updater,
                    len(self._placement.partitions),
                    step,
                    self._setup.timeout,
                    actor=True,
                    workers=[address],
                    key=f"server-{server}-{self._setup.run}",
                )
            )
        self._actors = self._gather(self._actor_futures)
        parts = self._setup.parts
        values = cut_values(parts, values)
        if state is not None:
            state = {
                name: {slot: np.ascontiguousarray(part.of(array)) for slot, array in state.get(part.param, {}).items()}
                for name, part in parts.items()
            }
        for server, specs in enumerate(per_server):
            mine = {spec.slice.id: _piece(values[spec.slice.param], spec) for spec in specs}
            history = None if state is None else {spec.slice.id: _pieces(state, spec) for spec in specs}
            self._ask(server, "put", mine, history)()
        servers = dict(zip(keys, self._actors, strict=True))
        self._tenants = [
            self._submit(tasks.Tenant, p, "here", self._setup, servers, threads, step, actor=True)
            for p, threads in enumerate(self._placement.threads)
        ]
        self._gather(self._tenants)

    def round(self, start: int, stop: int) -> list[Future]:
        """Send off the iterations ``start`` to ``stop`` - 1; return the tasks, one a partition."""
        rounds = [
            self._submit(tasks.train_round, p, f"steps-{start}-{stop}", start, stop, token)
            for p, token in enumerate(self._tokens)
        ]
        self._tokens = [*rounds]
        return rounds

    def reports(self, futures: Sequence[Future]) -> list[RoundReport]:
        """Wait for a round; return each partition's report."""
        return self._gather(futures)

    def evaluate(self, phase: Phase, batches: int, step: int) -> Metrics:
        """Return the metrics of the first ``batches`` batches of ``phase`` with the params after ``step`` steps."""
        evaluations = [
            self._submit(tasks.evaluate, p, f"{phase.name}-at-{step}", phase, batches, step, token)
            for p, token in enumerate(self._tokens)
        ]
        self._tokens = [*evaluations]
        by_partition = self._gather(evaluations)
        return add_metrics([add_metrics(batch) for batch in zip(*by_partition, strict=True)])

    def snapshot(self, step: int) -> tuple[Arrays, dict[str, Arrays]]:
        """Return the params and the updater's state after ``step`` steps, each in its full shape."""
        pieces: dict[int, np.ndarray] = {}
        history: dict[int, Arrays] = {}
        for answer in [self._ask(server, "snapshot", step) for server in range(len(self._actors))]:
            held, slots = answer()
            pieces.update(held)
            history.update(slots)
        parts = self._setup.parts
        values = {name: np.empty(part.shape, np.float32) for name, part in parts.items()}
        state: dict[str, Arrays] = {}
        for piece in self._setup.slices:
            name = piece.param
            values[name].reshape(-1)[piece.start : piece.stop] = pieces[piece.id]
            for slot, array in history.get(piece.id, {}).items():
                part = state.setdefault(slot, {}).setdefault(name, np.zeros(parts[name].shape, np.float32))
                part.reshape(-1)[piece.start : piece.stop] = array
        shapes = {parts[name].param: param.shape for name, param in self._setup.params.items()}
        params = join_values(parts, values, shapes)
        by_slot = {slot: join_values(parts, arrays, shapes) for slot, arrays in state.items()}
        with_state = {parts[name].param for arrays in state.values() for name in arrays}
        return params, {name: {slot: by_slot[slot][name] for slot in by_slot} for name in params if name in with_state}

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
            self._client.cancel([f for f in [*self._tokens, *self._tenants, *self._actor_futures] if f], force=True)
        self._tokens, self._tenants, self._actors, self._actor_futures = [], [], [], []

    def _specs(self) -> list[SliceSpec]:
        return [
            SliceSpec(
                piece,
                self._setup.params[piece.param].trainable,
                self._setup.params[piece.param].lr_scale,
                self._setup.params[piece.param].wd_scale,
            )
            for piece in self._setup.slices
        ]

    def _submit(
        self, task: Callable[..., Any], partition: int, what: str, *arguments: Any, actor: bool = False
    ) -> Future:
        address = self._placement.partitions[partition]
        key = PartitionKey(self._setup.run, self._setup.generation, 0, partition, address)
        with dask.annotate(priority=10):  # ahead of whatever else the user's cluster has to do
            return self._client.submit(
                task,
                key,
                *arguments,
                actor=actor,
                workers=[address],
                allow_other_workers=False,
                pure=False,
                key=f"{task.__name__}-{what}-partition-{partition}-{self._setup.run}",
            )

    def _ask(self, server: int, method: str, *arguments: Any) -> Callable[[], Any]:
        """Call a method of a server; return what waits for the answer."""
        what = f"{method} by server {server} on {self._placement.servers[server]}"
        with self._client.as_current():  # an Actor outside a task finds its way by the current client
            answer = getattr(self._actors[server], method)(*arguments)
        return lambda: wait_for(answer, self._setup.timeout, what)

    def _gather(self, futures: Sequence[Future]) -> list[Any]:
        return gather(self._client, futures, self._placement.addresses)


def _piece(array: np.ndarray, spec: SliceSpec) -> np.ndarray:
    return array.reshape(-1)[spec.slice.start : spec.slice.stop]


def _pieces(state: Mapping[str, Arrays], spec: SliceSpec) -> Arrays:
    return {slot: _piece(array, spec) for slot, array in state.get(spec.slice.param, {}).items()}
