"""The Dask tasks of a run: each finds its worker in this process and calls one of its methods."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from dsinga.base.arrays import ParamArrays
from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import Diverged, RunError, WorkerLost
from dsinga.cluster.dask.supervision import TaskLost
from dsinga.cluster.on_workers.connections import connection_to
from dsinga.cluster.on_workers.worker_actor import WORKERS, find_worker
from dsinga.cluster.transport.endpoints import connect
from dsinga.cluster.worker.config import ReplicaState, RoundReport, WorkerKey
from dsinga.job import Phase
from dsinga.training import Metrics

P = ParamSpec("P")
T = TypeVar("T")


def ends_quietly(task: Callable[Concatenate[WorkerKey, P], T]) -> Callable[..., T | TaskLost]:
    """Make a task return TaskLost if a Dask worker is lost or the run's generation has ended."""

    @functools.wraps(task)
    def run(key: WorkerKey, *arguments: P.args, **options: P.kwargs) -> T | TaskLost:
        if arguments and isinstance(arguments[-1], TaskLost):
            return arguments[-1]
        try:
            with cleared_frames():
                return task(key, *arguments, **options)
        except RunError as error:
            if isinstance(error, WorkerLost) or (key not in WORKERS and not isinstance(error, Diverged)):
                return TaskLost(str(error))
            raise

    return run


@ends_quietly
def connect_peers(key: WorkerKey, peers: Sequence[WorkerKey], token: Any = None) -> None:
    """Task: connect a worker to all workers of its group, in the order of their partitions."""
    transports = [connect(peer.name, connection_to(peer.address, peer.name), peer.secret) for peer in peers]
    find_worker(key).peers.connect(transports)


@ends_quietly
def set_replica(key: WorkerKey, state: ReplicaState, token: Any = None) -> None:
    """Task: give a worker the first values, and updater state, of the params that it updates itself."""
    find_worker(key).set_replica(state)


@ends_quietly
def replica_state(key: WorkerKey, token: Any) -> ReplicaState:
    """Task: return the replicated params that this worker is the first to use."""
    return find_worker(key).replica_state()


@ends_quietly
def train_round(key: WorkerKey, start: int, stop: int, token: Any) -> RoundReport:
    """Task: train the iterations ``start`` to ``stop`` - 1."""
    worker = find_worker(key)
    return worker.thread.run(worker.train, start, stop)


@ends_quietly
def evaluate(
    key: WorkerKey, phase: Phase, batches: int, version: int, params: ParamArrays | None, token: Any
) -> list[Metrics]:
    """Task: return a worker's metrics of the first batches of a phase, with params after ``version`` steps.

    0 ``batches`` are all records, each once. ``params`` replace the worker's own unless None.
    """
    worker = find_worker(key)
    return worker.thread.run(worker.evaluate, phase, batches, version, params)


@ends_quietly
def refresh(key: WorkerKey, token: Any) -> None:
    """Task: wait for a worker's values, then forget them, so that it pulls them again."""
    find_worker(key).exchange.refresh()


@ends_quietly
def set_rate_factors(key: WorkerKey, factors: Mapping[int, float], token: Any) -> None:
    """Task: multiply the learning rate of a worker's own updates by factors."""
    find_worker(key).set_rate_factors(factors)
