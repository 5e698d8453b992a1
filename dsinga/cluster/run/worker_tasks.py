"""The driver's handle of a run's workers: starts them, sends them tasks, and ends them."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from dask.typing import Key
from distributed import Client, Future
from distributed.client import ClosedClientError

from dsinga.base.errors import RunError
from dsinga.cluster.dask.dask_workers import available_workers
from dsinga.cluster.dask.placement import Placement
from dsinga.cluster.dask.run_tasks import TaskKey, run_span, submit_to, task_key, worker_text
from dsinga.cluster.dask.supervision import Check, TaskChains, gather, no_check
from dsinga.cluster.dask.worker_memory import Packed, share
from dsinga.cluster.on_workers import tasks
from dsinga.cluster.on_workers.worker_actor import WorkerActor, end_groups, end_run
from dsinga.cluster.worker.config import ServerKey, WorkerConfig, WorkerKey
from dsinga.ops import Processor

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


class WorkerTasks:
    """Creates the workers of a run as Actors on Dask workers, sends them tasks, and ends them.

    Each task of a worker depends on its previous one, so that no queue can run tasks in a wrong order.
    """

    def __init__(self, client: Client, config: WorkerConfig, placement: Placement, check: Check = no_check):
        self._client, self._config = client, config
        self._several = config.topology.groups > 1
        self.move(placement, check)
        self._moments: tuple[int, int] = (-1, 0)  # the last step that tasks were named after, and how many were
        groups = range(len(placement.workers))
        self.generations = dict.fromkeys(groups, config.generation)
        # By worker group: its Actors, all its tasks, and the last task of each of its Actors.
        self._actors: list[list[Future]] = [[] for _ in groups]
        self._futures: list[weakref.WeakSet[Future]] = [weakref.WeakSet() for _ in groups]
        self._tokens: list[list[Future | None]] = [[None for _ in self.teams(group)] for group in groups]

    def move(self, placement: Placement, check: Check) -> None:
        """Create later workers by another placement, and wait with another check."""
        self._placement, self._check = placement, check
        self.chains = TaskChains(self._client, placement.addresses, check)

    def teams(self, group: int) -> Sequence[range]:
        """Return the workers of a group that each Actor computes: one, or the blocks of a team."""
        return self._placement.actors(group, self._config.has_teams)

    def gather(self, futures: Sequence[Future]) -> list[Any]:
        """Wait for the results of tasks, in order; chains do not go on meanwhile."""
        return gather(self._client, futures, self._placement.addresses, self._check)

    def create(self, steps: Mapping[int, int], servers: Mapping[int, Mapping[ServerKey, str]]) -> None:
        """Create the workers of worker groups, ready for each group's step, with its servers' addresses."""
        # The configuration is in no message of a task: Dask keeps the last 1,000 messages to each Dask worker.
        stores = [store for reader in self._config.readers.values() for store in reader.stores.values()]
        packed = Packed(self._config) if all(store.from_files for store in stores) else self._config
        config = self.share(packed, steps, WorkerActor)
        for group, step in steps.items():
            threads = self._placement.threads[group]
            self._actors[group] = [
                self._submit(
                    WorkerActor, group, team.start, "", config, servers[group],
                    Processor(threads[team.start], self._placement.device(group, team.start), self._config.precision),
                    step, len(team), actor=True,
                )
                for team in self.teams(group)
            ]  # fmt: skip
            self._tokens[group] = [None for _ in self._actors[group]]
        self.chains.wait([actor for group in steps for actor in self._actors[group]])
        connected: list[Future] = []
        for group in steps if self._config.has_bridges else ():
            peers = [self._key(group, team.start) for team in self.teams(group)]
            connected += self.submit(tasks.connect_peers, group, "", peers)
        self.chains.wait(connected)

    def end(self, groups: Collection[int], message: str, lost: Collection[str]) -> None:
        """End the workers of some worker groups on Dask workers that are not lost."""
        for group in groups:
            for future in self._futures[group].difference(self._actors[group]):
                future.release()
        generations = {group: self.generations[group] for group in groups}
        addresses = {address for group in groups for address in self._placement.workers[group]}
        self._tell(addresses.difference(lost), end_groups, self._config.run, generations, message)
        self.forget([future for group in groups for future in self._futures[group]])
        for group in groups:
            self._actors[group], self._tokens[group] = [], []

    def submit(self, task: Callable[..., Any], group: int, what: str, *arguments: Any) -> list[Future]:
        """Send a task to every Actor of a group, each after its previous task; return futures."""
        futures = [
            self._submit(task, group, team.start, what, *arguments, token)
            for team, token in zip(self.teams(group), self._tokens[group], strict=True)
        ]
        self._tokens[group] = [*futures]
        return futures

    def submit_graph(self, group: int, submit: Submit) -> list[Future]:
        """Send a task graph for a worker group, after the group's previous tasks."""
        keys = [self._key(group, team.start) for team in self.teams(group)]
        with run_span(priority=PRIORITY):
            futures = submit(self._client, keys, self._tokens[group])
        self._futures[group].update(futures)
        self._tokens[group] = [*futures]
        return futures

    def share(self, value: Any, groups: Iterable[int], task: Callable[..., Any]) -> Any:
        """Send a value once to each process, to be an argument of tasks of some worker groups; return it."""
        addresses = {address for group in groups for address in self._placement.workers[group]}
        return share(self._client, value, addresses, self._task_key(task))

    def moment(self, step: int) -> str:
        """Return words for a step in a task's key: "at step <step>", numbered if there are several tasks."""
        last, count = self._moments
        self._moments = step, count + 1 if step == last else 0
        return f"at step {step}" + (f", {self._moments[1]}" if self._moments[1] else "")

    def close(self, message: str | None, lost: Collection[str], last: bool) -> None:
        """End the run, or only its present generation unless ``last`` (:meth:`ClusterRun.close`)."""
        # First, because tasks that begin when the run has ended fail, which Dask logs.
        for futures, actors in zip(self._futures, self._actors, strict=True):
            for future in futures.difference(actors):
                future.release()
        # Where the scheduler or the client is gone, the run ends with its Actors.
        generation = None if last else max(self.generations.values())
        with contextlib.suppress(RunError):
            self._tell(self._placement.addresses.difference(lost), end_run, self._config.run, message, generation)
        end_run(self._config.run, message, generation)  # Dask workers of this process that were closed are not told
        self.forget(future for futures in self._futures for future in futures)
        self._tokens, self._actors = [[] for _ in self._tokens], [[] for _ in self._actors]

    def forget(self, futures: Iterable[Future]) -> None:
        """Drop futures' tasks at the client and the scheduler, even if the futures are still referenced."""

        def forget(keys: Iterable[Key]) -> None:
            with contextlib.suppress(ClosedClientError):
                for key in keys:
                    self._client._release_key(key)

        loop: Any = self._client.loop
        loop.add_callback(forget, {future.key for future in futures})

    def _tell(self, addresses: Collection[str], function: Callable[..., None], *arguments: Any) -> None:
        left = sorted(available_workers(self._client).keys() & {*addresses})
        # A worker that has just died may still be listed: do not wait until Dask gives up reaching it.
        with contextlib.suppress(OSError):
            self._client.run(function, *arguments, workers=left, on_error="ignore", callback_timeout=END_SECONDS)

    def _key(self, group: int, partition: int) -> WorkerKey:
        address = self._placement.workers[group][partition]
        return WorkerKey(self._config.run, self.generations[group], group, partition, address, self._config.secret)

    def _task_key(self, task: Callable[..., Any], *items: str) -> TaskKey:
        return task_key(WORDS.get(task) or task.__name__.replace("_", " "), self._config.run, *items)

    def _submit(
        self, task: Callable[..., Any], group: int, partition: int, what: str, *arguments: Any, actor: bool = False
    ) -> Future:
        key = self._key(group, partition)
        name = self._task_key(task, what, worker_text(key, self._several))
        future = submit_to(self._client, key.address, task, key, *arguments, key=name, actor=actor, priority=PRIORITY)
        self._futures[group].add(future)
        return future
