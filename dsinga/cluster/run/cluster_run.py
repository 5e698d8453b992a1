"""The driver's handle of a run on a Dask cluster: starts its servers and workers, and sends them tasks."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from dask.typing import Key
from distributed import Client, Future
from distributed.client import ClosedClientError

from dsinga.cluster.dask.dask_workers import available_workers
from dsinga.cluster.dask.placement import Placement
from dsinga.cluster.dask.process_memory import give_back_soon
from dsinga.cluster.dask.shared_objects import Packed, share
from dsinga.cluster.dask.supervision import Check, TaskChains, gather, no_check
from dsinga.cluster.dask.task_keys import TaskKey, run_span, submit_to, task_key, worker_words
from dsinga.cluster.on_workers import tasks
from dsinga.cluster.on_workers.worker_actor import WorkerActor, end_groups, end_run
from dsinga.cluster.run.servers import Servers
from dsinga.errors import RunError
from dsinga.job import Phase
from dsinga.net.partitioned import split_params
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
    """

    def __init__(
        self,
        run: ClusterRun,
        step: int,
        replies: Sequence[concurrent.futures.Future[Any]],
        replicas: Sequence[Future],
    ):
        self._run, self.step, self._replies, self._replicas = run, step, replies, replicas
        self._futures: list[Any] = [*replies, *replicas]
        self._times = times = [time.monotonic()]
        for future in self._futures:
            # Futures keep their callbacks: one with self would keep all of the run until garbage is collected.
            future.add_done_callback(lambda _: times.append(time.monotonic()))

    @property
    def done_at(self) -> float:
        """When the last copy came, by ``time.monotonic()``."""
        return self._times[-1]

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
        self._refreshes = 0
        self.started = False  # whether start() was called
        # By worker group: its generation, its Actors, all its tasks, and the last task of each of its workers.
        groups = placement.workers
        self._generations = [config.generation for _ in groups]
        self._actors: list[list[Future]] = [[] for _ in groups]
        self._futures: list[weakref.WeakSet[Future]] = [weakref.WeakSet() for _ in groups]
        self._tokens: list[list[Future | None]] = [[None] * len(group) for group in groups]

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
        self._create_workers({group: warm if group else step for group in range(shape.groups)})
        if self.config.replicated:
            self._set_replicas(values, state)

    def _create_workers(self, steps: Mapping[int, int]) -> None:
        """Create the workers of some worker groups, ready for a step of each group."""
        config = self._shared_config(steps)
        for group, step in steps.items():
            servers = self._servers.addresses(group)
            self._actors[group] = [
                self._submit(
                    WorkerActor, group, p, "", config, servers,
                    Processor(threads, self._placement.device(group, p), self.config.precision), step,
                    actor=True,
                )
                for p, threads in enumerate(self._placement.threads[group])
            ]  # fmt: skip
        self.chains.wait([actor for group in steps for actor in self._actors[group]])
        self._connect_peers(steps)

    def end_groups(self, groups: Collection[int], message: str, lost: Collection[str]) -> None:
        """End the workers of some worker groups on the Dask workers that are left; the others go on."""
        for group in groups:
            for future in self._futures[group].difference(self._actors[group]):
                future.release()
        generations = {group: self._generations[group] for group in groups}
        addresses = {address for group in groups for address in self._placement.workers[group]}
        self._tell(addresses.difference(lost), end_groups, self.config.run, generations, message)
        self._forget([future for group in groups for future in self._futures[group]])
        for group in groups:
            self._actors[group], self._tokens[group] = [], [None] * len(self._tokens[group])

    def replace_servers(self, placement: Placement, check: Check, generation: int) -> None:
        """Move to another placement: create its servers that lived elsewhere anew (:meth:`Servers.replace_lost`)."""
        self._placement, self._check = placement, check
        self.chains = TaskChains(self.client, placement.addresses, check)
        self._servers.replace_lost(placement, check, generation)

    def restart_groups(self, steps: Mapping[int, int], generation: int) -> dict[int, int]:
        """Create the workers of some worker groups anew, ready for a step of each; return the groups' steps.

        A group's step is the first one that its servers have not applied. Its workers may begin before: they compute
        those steps once more for their reports alone, since servers drop repeated gradients.
        """
        reached = {group: self._servers.restart(group, generation, step) for group, step in steps.items()}
        for group in steps:
            self._generations[group] = generation
        # The steps of other groups than the first are not reported.
        self._create_workers({group: step if group else steps[0] for group, step in reached.items()})
        return reached

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
        with run_span(priority=PRIORITY):
            futures = submit(self.client, keys, self._tokens[group])
        self._futures[group].update(futures)
        self._tokens[group] = [*futures]
        return futures

    def evaluate(self, phase: Phase, batches: int, step: int, params: Arrays | None = None) -> list[Future]:
        """Let group 0 evaluate ``batches`` batches of ``phase`` (0: all records) with params after ``step`` steps.

        Given ``params``, whole ones by name, these are used in place of the workers' own.
        """
        shared = None
        if params is not None:
            parts, addresses = split_params(self.config.parts, params), self._placement.workers[0]
            shared = share(self.client, parts, addresses, self._task_key(tasks.evaluate))
        return self.send(tasks.evaluate, 0, f"{phase.name} {self._moment(step)}", phase, batches, step, shared)

    def synchronise(self) -> None:
        """When all worker groups have ended: make all server groups agree, and give group 0 their values."""
        if self._several:
            self._refresh(range(self.config.topology.groups), "ended")  # the last pushes may be on their way
            self._servers.flush()
            self._refresh([0], "settled")

    def snapshot(self, step: int, state: bool = True, copied: bool = True) -> tuple[Arrays, dict[str, Arrays]]:
        """Return whole params, and the updater's state unless ``state`` is False, from server group 0.

        With one worker group they are those after exactly ``step`` steps, with several as they stand. Unless ``copied``
        servers of this process give away their arrays: then no step may follow.
        """
        copies = self._servers.call(0, "snapshot", None if self._several else step, state, copied)
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
        # First, because tasks that begin when the run has ended fail, which Dask logs.
        for futures, actors in zip(self._futures, self._actors, strict=True):
            for future in futures.difference(actors):
                future.release()
        # Where the scheduler or the client is gone, the run ends with its Actors.
        generation = None if last else max(self._generations)
        with contextlib.suppress(RunError):
            self._tell(self._placement.addresses.difference(lost), end_run, self.config.run, message, generation)
        end_run(self.config.run, message, generation)  # Dask workers of this process that were closed are not told
        self._forget([*(future for futures in self._futures for future in futures), *self._servers.futures])
        self._tokens, self._actors = [[] for _ in self._tokens], [[] for _ in self._actors]
        give_back_soon()

    def _forget(self, futures: Iterable[Future]) -> None:
        """Let the client and the scheduler drop the tasks of some futures, whatever still refers to these.

        The traceback of an error that ends the run refers to them, and each refers to the error of its task. They are
        not cancelled: the scheduler would tell so to a client that may have closed meanwhile, and log a traceback.
        """

        def forget(keys: Iterable[Key]) -> None:
            with contextlib.suppress(ClosedClientError):
                for key in keys:
                    self.client._release_key(key)

        loop: Any = self.client.loop
        loop.add_callback(forget, {future.key for future in futures})

    def _tell(self, addresses: Collection[str], function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in those of these Dask workers that are left, on their event loops."""
        left = sorted(available_workers(self.client).keys() & {*addresses})
        # A worker that has just died may still be listed: do not wait until Dask gives up reaching it.
        with contextlib.suppress(OSError):
            self.client.run(function, *arguments, workers=left, on_error="ignore", callback_timeout=END_SECONDS)

    def _shared_config(self, groups: Iterable[int]) -> Any:
        """Return the configuration as an argument of tasks, sent once to each process.

        It is in no message of a task: Dask keeps the last 1,000 messages to each Dask worker.
        """
        stores = [store for reader in self.config.readers.values() for store in reader.stores.values()]
        shared = Packed(self.config) if all(store.from_files for store in stores) else self.config
        addresses = {address for group in groups for address in self._placement.workers[group]}
        return share(self.client, shared, addresses, self._task_key(WorkerActor))

    def _refresh(self, groups: Sequence[int], when: str) -> None:
        """Wait for the last updates of worker groups that stand still, then let them pull the values anew.

        ``when`` is for the keys of tasks.
        """
        self._refreshes += 1  # another call may have the same name, where a loss came between
        what = f"{when}, {self._refreshes}"
        self._gather([future for group in groups for future in self.send(tasks.refresh, group, what)])
        for group in groups:
            self._servers.call(group, "refresh", group)

    def _connect_peers(self, groups: Iterable[int]) -> None:
        """Connect the workers of each of these groups to each other, where they send each other arrays."""
        if not self.config.has_bridges:
            return
        futures = []
        for group in groups:
            peers = [self._key(group, p) for p in range(len(self._placement.workers[group]))]
            futures += [self._submit(tasks.connect_peers, group, p, "", peers) for p in range(len(peers))]
        self.chains.wait(futures)

    def _set_replicas(self, values: Arrays, state: Mapping[str, Arrays] | None) -> None:
        """Give every worker the params that it replicates. There is one worker group then."""
        replicas, addresses = replica_values(self.config, values, state), self._placement.workers[0]
        shared = share(self.client, replicas, addresses, self._task_key(tasks.set_replica))
        partitions = range(len(self._placement.workers[0]))
        self._gather([self._submit(tasks.set_replica, 0, p, "", shared) for p in partitions])

    def _moment(self, step: int) -> str:
        """Return "at step <step>" for the key of a task, numbered where there are several at one step."""
        last, count = self._moments
        self._moments = step, count + 1 if step == last else 0
        return f"at step {step}" + (f", {self._moments[1]}" if self._moments[1] else "")

    def _key(self, group: int, partition: int) -> WorkerKey:
        address = self._placement.workers[group][partition]
        return WorkerKey(self.config.run, self._generations[group], group, partition, address, self.config.secret)

    def _task_key(self, task: Callable[..., Any], *items: str) -> TaskKey:
        return task_key(WORDS.get(task) or task.__name__.replace("_", " "), self._run, *items)

    def _submit(
        self, task: Callable[..., Any], group: int, partition: int, what: str, *arguments: Any, actor: bool = False
    ) -> Future:
        key = self._key(group, partition)
        name = self._task_key(task, what, worker_words(key, self._several))
        future = submit_to(self.client, key.address, task, key, *arguments, key=name, actor=actor, priority=PRIORITY)
        self._futures[group].add(future)
        return future

    def _gather(self, futures: Sequence[Future]) -> list[Any]:
        return gather(self.client, futures, self._placement.addresses, self._check)
