"""The driver's handle of a run on a Dask cluster: starts its servers and workers, and sends them tasks."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import dask
import numpy as np
from distributed import Client, Future
from distributed.client import ClosedClientError

from dsinga.cluster import tasks
from dsinga.cluster.dask_workers import available_workers
from dsinga.cluster.packed import Packed
from dsinga.cluster.placement import Placement
from dsinga.cluster.process_memory import give_back_soon
from dsinga.cluster.servers import Servers
from dsinga.cluster.shared_objects import share
from dsinga.cluster.supervision import Check, TaskChains, gather, no_check
from dsinga.cluster.task_keys import task_key, worker_words
from dsinga.cluster.worker_actor import WorkerActor, end_run
from dsinga.errors import RunError
from dsinga.job import Phase
from dsinga.worker.config import WorkerConfig, WorkerKey
from dsinga.worker.param_slices import Arrays, replica_values, whole_values
from dsinga.worker.processor import Processor

# The priority of all tasks: ahead of other work of the cluster.
PRIORITY = 10
# What tasks do, in words, where the name of the function does not say so.
WORDS: Mapping[Callable[..., Any], str] = {
    WorkerActor: "start worker",
    tasks.set_replica: "set params",
    tasks.replica_state: "copy params",
    tasks.refresh: "pull values",
}
# Seconds to tell Dask workers that a run has ended.
END_SECONDS = 3


# Submits a task graph: (client, keys of the partitions, tasks that it must come after); see :meth:`send_graph`.
Submit = Callable[[Client, Sequence[WorkerKey], Sequence[Future | None]], list[Future]]


class PendingSnapshot:
    """Copies of params and of the updater's state that are on their way to the driver.

    Attributes:
        step: the number of steps after which they are made.
        done_at: when the last copy came, by ``time.monotonic()``.
    """

    def __init__(
        self,
        run: ClusterRun,
        step: int,
        replies: Sequence[concurrent.futures.Future[Any]],
        replicas: Sequence[Future],
    ):
        self._run, self.step, self._replies, self._replicas = run, step, replies, replicas
        self.done_at = time.monotonic()
        self._futures: list[Any] = [*replies, *replicas]
        for future in self._futures:
            future.add_done_callback(self._note_time)

    def _note_time(self, _: Any) -> None:
        self.done_at = time.monotonic()

    def done(self) -> bool:
        """Whether all copies, or errors in their place, have come."""
        return all(future.done() for future in self._futures)

    def result(self) -> tuple[Arrays, dict[str, Arrays]]:
        """Return whole params and the updater's state, once they are done. Raises the error of a copy."""
        return self._run.join_copies([reply.result(0) for reply in self._replies], self._replicas)

    def cancel(self) -> None:
        """Wait for the copies no longer."""
        for reply in self._replies:
            reply.cancel()


class ClusterRun:
    """The servers and workers of a run on their Dask workers.

    Each task of a worker depends on its task before, so that no queue can run tasks of workers that wait for each other
    in a wrong order. The tasks of one worker group do not depend on those of another.

    Waits for its tasks call ``check``.
    """

    def __init__(self, client: Client, config: WorkerConfig, placement: Placement, check: Check = no_check):
        self.client = client
        self.config = config
        self._placement = placement
        self._run = config.run
        self._several = config.topology.groups > 1
        self._servers = Servers(client, config, placement, check)
        self._check = check
        self.chains = TaskChains(client, placement.addresses, check)
        self._moments: tuple[int, int] = (-1, 0)  # the last step that tasks were named after, and how many were
        self.started = False  # whether start() was called
        self._actors: list[Future] = []
        self._futures: weakref.WeakSet[Future] = weakref.WeakSet()  # of all tasks
        self._tokens: list[list[Future | None]] = [[None] * len(group) for group in placement.partitions]

    def start(self, values: Arrays, state: Mapping[str, Arrays] | None, step: int, warm: int) -> None:
        """Create the servers with these whole params, then the workers, ready for ``step``.

        ``state`` is the updater's, by param and slot; None where it begins anew. If ``warm`` is a later step, group 0
        begins alone, and the others are ready for that step, once :meth:`join` says that it has come.
        """
        self.started = True
        shape, warms_up = self.config.topology, warm > step
        self._servers.create(step)
        self._servers.put(range(1 if warms_up else shape.server_groups), values, state)
        if not warms_up:
            self._servers.link()
        for group in range(1, shape.groups) if warms_up else ():
            self._servers.call(group, "leave", group)
        config = self._shared_config()
        self._actors = [
            self._submit(
                WorkerActor, group, p, "", config, self._servers.addresses(group),
                Processor(threads, self._placement.device(group, p), self.config.precision), warm if group else step,
                actor=True,
            )
            for group, workers in enumerate(self._placement.threads)
            for p, threads in enumerate(workers)
        ]  # fmt: skip
        self._gather(self._actors)
        self._connect_peers()
        if self.config.replicated:
            self._set_replicas(values, state)

    def join(self, step: int) -> None:
        """End the warm-up: give the values to the other server groups and let the other worker groups begin."""
        shape = self.config.topology
        # Group 0's last pushes may be on their way, and its values may be the arrays that other groups now change.
        self._refresh([0], "warm")
        self._servers.put(range(1, shape.server_groups), *self.snapshot(step))
        self._servers.link()
        for group in range(1, shape.groups):
            self._servers.call(group, "join", group, step)

    def leave(self, group: int) -> None:
        """Tell the servers that a worker group has ended, so that no other waits for it."""
        if self._several:
            self._servers.call(group, "leave", group)

    def send(self, task: Callable[..., Any], group: int, what: str, *arguments: Any) -> list[Future]:
        """Send a task to every worker of a group, each after the task that was sent to it before."""
        futures = [self._submit(task, group, p, what, *arguments, token) for p, token in enumerate(self._tokens[group])]
        self._tokens[group] = [*futures]
        return futures

    def send_graph(self, group: int, submit: Submit) -> list[Future]:
        """Submit a task graph for a worker group, which runs after the tasks that were sent to the group before."""
        keys = [self._key(group, p) for p in range(len(self._tokens[group]))]
        with dask.annotate(priority=PRIORITY):
            futures = submit(self.client, keys, self._tokens[group])
        self._futures.update(futures)
        self._tokens[group] = [*futures]
        return futures

    def evaluate(self, phase: Phase, batches: int, step: int) -> list[Future]:
        """Let group 0 evaluate ``batches`` batches of ``phase`` (0: all records) with params after ``step`` steps."""
        return self.send(tasks.evaluate, 0, f"{phase.name} {self._moment(step)}", phase, batches, step)

    def synchronise(self) -> None:
        """When all worker groups have ended: make all server groups agree, and give group 0 their values."""
        if self._several:
            self._refresh(range(self.config.topology.groups), "ended")  # the last pushes may be on their way
            self._servers.flush()
            self._refresh([0], "settled")

    def snapshot(self, step: int, state: bool = True) -> tuple[Arrays, dict[str, Arrays]]:
        """Return whole params, and the updater's state unless ``state`` is False, from server group 0.

        With one worker group they are those after exactly ``step`` steps, with several as they stand.
        """
        copies = self._servers.call(0, "snapshot", None if self._several else step, state)
        replicas = self.send(tasks.replica_state, 0, self._moment(step)) if self.config.replicated else []
        return self.join_copies(copies, replicas)

    def join_copies(
        self, copies: Sequence[tuple[dict[int, np.ndarray], dict[int, Arrays]]], replicas: Sequence[Future]
    ) -> tuple[Arrays, dict[str, Arrays]]:
        """Join the copies of the slices of all servers and of replicas to whole params and updater state."""
        pieces: dict[int, np.ndarray] = {}
        history: dict[int, Arrays] = {}
        for values, slots in copies:
            pieces.update(values)
            history.update(slots)
        return whole_values(self.config, pieces, history, self._gather(replicas) if replicas else ())

    def request_snapshot(self, step: int) -> PendingSnapshot:
        """Request copies of params and of the updater's state, while training goes on.

        With one worker group they are those after exactly ``step`` steps, which no task that was sent goes beyond, with
        several as they stand.
        """
        self._servers.call(0, "request_snapshot", None if self._several else step)
        replicas = self.send(tasks.replica_state, 0, self._moment(step)) if self.config.replicated else []
        return PendingSnapshot(self, step, self._servers.ask(0, "requested_snapshot"), replicas)

    def ask_servers(self, method: str) -> list[concurrent.futures.Future[Any]]:
        """Call a method of all servers without waiting; return futures of the results."""
        return self._servers.ask_all(method)

    def set_rate_factors(self, step: int, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by ``factors`` wherever params are updated: from which step on, by how much.

        To be called when group 0 stands at ``step``, with no factor for an earlier step that was not there before.
        """
        self._servers.call_all("set_rate_factors", factors)
        if self.config.replicated:
            self._gather(self.send(tasks.set_rate_factors, 0, self._moment(step), factors))

    def close(self, message: str | None = None, lost: Collection[str] = (), last: bool = True) -> None:
        """End the run, or only its present generation unless ``last``, on all Dask workers that are left.

        Its waits there end with ``message``. ``lost`` are addresses of Dask workers that may be listed, but do not
        answer.
        """
        # First, because tasks that begin when the run has ended fail, which Dask logs. And because the scheduler cannot
        # cancel a task of a graph on which others depend that no client asks for: with an error it drops the client.
        for future in self._futures.difference(self._actors):
            future.release()
        # A worker that has just died may still be listed: do not wait until Dask gives up reaching it. Where the
        # scheduler or the client is gone, the run ends with its Actors.
        with contextlib.suppress(RunError, OSError):
            addresses = sorted((self._placement.addresses & available_workers(self.client).keys()).difference(lost))
            self.client.run(
                end_run,
                self.config.run,
                message,
                None if last else self.config.generation,
                workers=addresses,
                on_error="ignore",
                callback_timeout=END_SECONDS,
            )
        # Dropping futures is not enough: the traceback of an error that ends the run refers to them, and each refers to
        # the error of its task.
        with contextlib.suppress(ClosedClientError, OSError):
            self.client.cancel([*self._futures, *self._servers.futures], force=True)
        self._tokens, self._actors = [], []
        give_back_soon()

    def _shared_config(self) -> Any:
        """Return the configuration as an argument of tasks, sent once to each process.

        It is in no message of a task: Dask keeps the last 1,000 messages to each Dask worker.
        """
        stores = [store for reader in self.config.readers.values() for store in reader.stores.values()]
        shared = Packed(self.config) if all(store.from_files for store in stores) else self.config
        return share(self.client, shared, {address for group in self._placement.partitions for address in group})

    def _refresh(self, groups: Sequence[int], when: str) -> None:
        """Wait for the last updates of worker groups that stand still, then let them pull the values anew.

        ``when`` is a name that no other call has.
        """
        self._gather([future for group in groups for future in self.send(tasks.refresh, group, when)])
        for group in groups:
            self._servers.call(group, "refresh", group)

    def _connect_peers(self) -> None:
        """Connect the workers of each group to each other, where they send each other arrays."""
        if not self.config.has_bridges:
            return
        futures = []
        for group, workers in enumerate(self._placement.partitions):
            peers = [self._key(group, p) for p in range(len(workers))]
            futures += [self._submit(tasks.connect_peers, group, p, "", peers) for p in range(len(workers))]
        self._gather(futures)

    def _set_replicas(self, values: Arrays, state: Mapping[str, Arrays] | None) -> None:
        """Give every worker the params that it replicates. There is one worker group then."""
        shared = share(self.client, replica_values(self.config, values, state), self._placement.partitions[0])
        partitions = range(len(self._placement.partitions[0]))
        self._gather([self._submit(tasks.set_replica, 0, p, "", shared) for p in partitions])

    def _moment(self, step: int) -> str:
        """Return "at step <step>" for the key of a task, numbered where there are several at one step."""
        last, count = self._moments
        self._moments = step, count + 1 if step == last else 0
        return f"at step {step}" + (f", {self._moments[1]}" if self._moments[1] else "")

    def _key(self, group: int, partition: int) -> WorkerKey:
        address = self._placement.partitions[group][partition]
        return WorkerKey(self.config.run, self.config.generation, group, partition, address, self.config.secret)

    def _submit(
        self, task: Callable[..., Any], group: int, partition: int, what: str, *arguments: Any, actor: bool = False
    ) -> Future:
        key = self._key(group, partition)
        words = WORDS.get(task) or task.__name__.replace("_", " ")
        with dask.annotate(priority=PRIORITY):
            future = self.client.submit(
                task,
                key,
                *arguments,
                actor=actor,
                workers=[key.address],
                allow_other_workers=False,
                pure=False,
                key=task_key(words, self._run, what, worker_words(key, self._several)),
            )
        self._futures.add(future)
        return future

    def _gather(self, futures: Sequence[Future]) -> list[Any]:
        return gather(self.client, futures, self._placement.addresses, self._check)
