"""Keeps the workers of worker groups in a Dask worker's process, each by a Dask Actor, as long as their run lasts."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping

from distributed import get_client, get_worker, secede

from dsinga.base import buffers
from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import WorkerLost
from dsinga.cluster.dask.dask_workers import process
from dsinga.cluster.dask.worker_memory import Packed, give_back_after
from dsinga.cluster.on_workers.connections import connection_to, serve_connections
from dsinga.cluster.transport.endpoints import Endpoint, close_endpoints
from dsinga.cluster.worker.config import ServerKey, WorkerConfig, WorkerKey
from dsinga.cluster.worker.group_worker import GroupWorker
from dsinga.data import connect_sources
from dsinga.ops import Processor

# The workers that live in this process.
WORKERS: dict[WorkerKey, GroupWorker] = {}
_creating = threading.Lock()


class WorkerActor:
    """Keeps a worker of a run, or a team of blocks, in its Dask worker's process, and serves its mailbox to others.

    Dask releases an Actor when the client is gone, even killed, so nothing stays of the run.
    """

    @cleared_frames()
    def __init__(
        self,
        key: WorkerKey,
        shared_config: WorkerConfig | Packed[WorkerConfig],
        servers: Mapping[ServerKey, str],
        processor: Processor,
        step: int,
        blocks: int = 1,
    ):
        check_address(key.address)
        config = shared_config.share() if isinstance(shared_config, Packed) else shared_config
        for reader in config.readers.values():
            connect_sources(reader.stores.values(), get_client)
        with _creating:
            connections = {server: connection_to(address, server.name) for server, address in servers.items()}
            worker = WORKERS[key] = GroupWorker(key, config, connections, processor, step, blocks)
        weakref.finalize(worker, buffers.clear)
        give_back_after(worker)
        to_host = config.has_bridges and process(key.address) != "inproc"
        Endpoint(key.name, worker.peers.mailbox, to_host=to_host, secret=key.secret)
        if to_host:
            serve_connections()
        weakref.finalize(self, end_group, key.run, key.generation, key.group, "the driver of the run is gone")


def find_worker(key: WorkerKey) -> GroupWorker:
    """Return a worker that is in this process, for a task; raise WorkerLost if it is not here.

    Workers of a group wait for each other. After a loss, a Dask worker may have more workers than threads. Then their
    tasks leave its thread pool, like tasks of an algorithm that waits for tasks.
    """
    check_address(key.address)
    worker = WORKERS.get(key)
    if worker is None:
        raise WorkerLost(f"{key} is no longer on {key.address}: its Dask worker was restarted")
    crowded = sum(present.address == key.address for present in list(WORKERS)) > get_worker().state.nthreads
    if crowded or worker.waits_for_tasks:
        secede()
    return worker


def end_run(run: str, message: str | None = None, generation: int | None = None) -> None:
    """End a run, or its generations up to ``generation``, in this process; its waits raise RunError(``message``)."""

    def chosen(name: str) -> bool:
        return name.startswith(f"{run}-") and (generation is None or int(name.split("-")[1]) <= generation)

    _end(chosen, message)


def end_group(run: str, generation: int, group: int, message: str) -> None:
    """End one generation of a worker group's workers in this process."""
    prefix = f"{run}-{generation}-{group}-worker-"
    _end(lambda name: name.startswith(prefix), message)


def end_groups(run: str, generations: Mapping[int, int], message: str) -> None:
    """End the workers of these worker groups and generations in this process."""
    for group, generation in generations.items():
        end_group(run, generation, group, message)


def _end(chosen: Callable[[str], bool], message: str | None) -> None:
    keys = [key for key in list(WORKERS) if chosen(key.name)]
    workers = [worker for key in keys if (worker := WORKERS.pop(key, None))]
    for worker in workers:
        worker.abort(message or "the run has ended")
    close_endpoints(chosen, message or "the run has ended")
    for worker in workers:
        worker.close()


def check_address(address: str) -> None:
    """Raise WorkerLost unless this is the Dask worker ``address``, because Dask may move a pinned task."""
    here = get_worker().address
    if here != address:
        raise WorkerLost(f"a task for the Dask worker {address} was run by {here}")
