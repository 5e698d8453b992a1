"""A Dask scheduler and Dask workers, each in a process of its own that can be killed and is not started again."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from distributed import Client, Scheduler, Worker

START_SECONDS = 60.0


class ForkedCluster(NamedTuple):
    """A client, and the process ids of the scheduler ("scheduler") and of each Dask worker, by its address.

    ``restart`` kills all of them, and starts as many anew, the scheduler at the same address.
    """

    client: Client
    pids: dict[str, int]
    workers: list[str]
    restart: Callable[[], None]


@contextlib.contextmanager
def forked_cluster(workers: int) -> Iterator[ForkedCluster]:
    """Start a scheduler and Dask workers with one thread each, forked from a process that has imported dsinga."""
    context = multiprocessing.get_context("forkserver")
    multiprocessing.set_forkserver_preload(["dsinga.cluster.run.driver", "distributed.nanny"])
    processes: list[Any] = []

    def start(kind: str, *arguments: Any) -> str:
        here, there = context.Pipe()
        processes.append(context.Process(target=_serve, args=(kind, there, *arguments), daemon=True))
        processes[-1].start()
        there.close()
        assert here.poll(START_SECONDS), f"the {kind} does not start"
        return here.recv()

    def start_all(port: int) -> list[str]:
        scheduler = start("scheduler", port)
        return [scheduler, *(start("worker", scheduler, f"worker {number}") for number in range(workers))]

    def restart() -> None:
        for process in processes:
            _end(process.pid)
            process.join()
        start_all(int(scheduler.rsplit(":", 1)[1]))

    try:
        scheduler, *addresses = start_all(0)
        pids = dict(zip(["scheduler", *addresses], [process.pid for process in processes], strict=True))
        with Client(scheduler, set_as_default=False, timeout=START_SECONDS) as client:
            client.wait_for_workers(workers, timeout=START_SECONDS)
            yield ForkedCluster(client, pids, addresses, restart)
            for process in processes:
                _end(process.pid)
    finally:
        for process in processes:
            _end(process.pid)
            process.join()


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _serve(kind: str, pipe: Any, *arguments: Any) -> None:
    async def serve() -> None:
        options = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": ":0"}
        if kind == "scheduler":
            node: Any = Scheduler(port=arguments[0], **options)
        else:
            address, name = arguments
            node = Worker(address, name=name, nthreads=1, memory_limit=0, **options)
        async with node:
            pipe.send(node.address)
            await node.finished()

    asyncio.run(serve())
