"""The tasks by which a run uses its partitions, and the partitions that live in this process."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from distributed import get_worker

from dsinga.cluster.placement import process
from dsinga.errors import RunError, UserError
from dsinga.job import Phase
from dsinga.ops import Array
from dsinga.training import Metrics
from dsinga.transport.hostcalls import connect
from dsinga.worker.config import PartitionKey, RoundReport, WorkerConfig
from dsinga.worker.group_worker import GroupWorker
from dsinga.worker.local_servers import ServerKey, close_shards
from dsinga.worker.mailbox import Correspondent, Courier, Neighbour, Peer, unpack
from dsinga.worker.processor import Processor
from dsinga.worker.replicated_params import ReplicaState

# The partitions that live in this process.
_partitions: dict[PartitionKey, GroupWorker] = {}
_arriving = threading.Lock()


class PartitionActor:
    """Actor: a partition's stay on its Dask worker. It ends when Dask lets go of the actor, at the latest.

    So nothing stays of a run whose driver was killed: Dask frees what belongs to a client that is gone. Only the other
    partitions of the group call this actor. The partition itself is an actor's because Dask never moves or spills one,
    as it may the result of a task.
    """

    def __init__(
        self, key: PartitionKey, config: WorkerConfig, servers: Mapping[ServerKey, Any], processor: Processor, step: int
    ):
        _at(key.address)
        with _arriving:
            _check_room(key)
            _partitions[key] = GroupWorker(key, config, servers, processor, step)
        self._box = _partitions[key].mail.box
        if config.bridged and process(key.address) != "inproc":
            _partitions[key].mail.listen(_mail_name(key))
        weakref.finalize(self, _abandon, lambda other: other[:2] == key[:2], "the driver of the run is gone")

    async def deliver(self, told: str, array: Array) -> None:
        """Take in mail: its iteration, key and order are told. Return when the partition has come near to that."""
        turn, key, order = json.loads(told)
        acknowledged = self._box.put(turn, key, unpack(array, order))
        if acknowledged is not None:
            await asyncio.wrap_future(acknowledged)


def introduce(key: PartitionKey, peers: Mapping[PartitionKey, Any]) -> None:
    """Task: tell a partition the PartitionActor actors of its group, by their keys in the order of their numbers."""
    loop = get_worker().loop.asyncio_loop  # type: ignore[attr-defined]
    find_worker(key).mail.introduce([_peer(other, actor, loop) for other, actor in peers.items()])


def hold(key: PartitionKey, held: ReplicaState) -> None:
    """Task: give a partition the first values and the state of params that it keeps itself; others are left alone."""
    find_worker(key).hold(held)


def held(key: PartitionKey, token: Any) -> ReplicaState:
    """Task: return what a partition keeps itself and is the first to use. ``token`` is what it must come after."""
    return find_worker(key).held()


def train_round(key: PartitionKey, start: int, stop: int, token: Any) -> RoundReport:
    """Task: one round of a partition. ``token`` is what it must come after."""
    partition = find_worker(key)
    return partition.thread.run(partition.train, start, stop)


def evaluate(key: PartitionKey, phase: Phase, batches: int, version: int, token: Any) -> list[Metrics]:
    """Task: one evaluation by a partition. ``token`` is what it must come after."""
    partition = find_worker(key)
    return partition.thread.run(partition.evaluate, phase, batches, version)


def renew(key: PartitionKey, token: Any) -> None:
    """Task: wait for a partition's values, then forget them, so that it has them anew. It comes after ``token``."""
    find_worker(key).exchange.renew()


def set_rate_factors(key: PartitionKey, factors: Mapping[int, float], token: Any) -> None:
    """Task: let a partition multiply the learning rate of its own updates by factors. It comes after ``token``."""
    find_worker(key).set_rate_factors(factors)


def abandon(run: str, message: str | None = None) -> None:
    """End the run in this process: waits that go on end with ``message``. Called on the event loop, past all queues."""
    _abandon(lambda key: key.run == run, message)


def _abandon(chosen: Callable[[PartitionKey | ServerKey], bool], message: str | None) -> None:
    leaving = [key for key in list(_partitions) if chosen(key)]
    ended = [partition for key in leaving if (partition := _partitions.pop(key, None))]
    for partition in ended:
        partition.abort(message or "the run has ended")
    close_shards(chosen, message)
    for partition in ended:
        partition.close()
        partition.mail.close()


def _check_room(key: PartitionKey) -> None:
    """Refuse to share a thread with another run: each could hold the thread that the other one waits for."""
    here = [other for other in list(_partitions) if other.address == key.address]
    threads = get_worker().state.nthreads
    if len(here) >= threads and any(other.run != key.run for other in here):
        raise UserError(
            f"the Dask worker {key.address} is training another job with its {threads} "
            f"thread{'s' if threads > 1 else ''}; wait until that has ended, or start more Dask workers"
        )


def _peer(key: PartitionKey, actor: Any, loop: asyncio.AbstractEventLoop) -> Peer:
    """Return the way to a partition's mailbox: straight where it lives in this process, through memory on this host."""
    partition = _partitions.get(key)
    if partition is not None:
        return Neighbour(partition.mail.box)
    found = connect(_mail_name(key))
    return Correspondent(actor, loop) if found is None else Courier(found[0])


def _mail_name(key: PartitionKey) -> str:
    """Return under which name a partition gets mail from other processes of its host."""
    return f"{key.run}-{key.generation}-{key.group}-partition-{key.partition}"


def find_worker(key: PartitionKey) -> GroupWorker:
    """Return a worker that lives in this process; raise RunError if it does not."""
    _at(key.address)
    try:
        return _partitions[key]
    except KeyError:
        raise RunError(f"{key.words} is no longer on {key.address}: its Dask worker was restarted") from None


def _at(address: str) -> None:
    """Make sure that the task runs where it was sent; Dask may move a pinned task when its worker has gone."""
    here = get_worker().address
    if here != address:
        raise RunError(f"a task for the Dask worker {address} was run by {here}")
