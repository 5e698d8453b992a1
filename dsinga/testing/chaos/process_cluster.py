"""A cluster of worker processes on this machine, whose nannies start a lost process again within a second."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Iterator

import dask
from distributed import Client
from distributed.utils import get_mp_context

from dsinga.cluster import available_workers, connect
from dsinga.errors import RunError

# Seconds to wait for processes that were lost to come back, and between two looks.
RETURN_SECONDS = 60.0
CHECK_SECONDS = 0.2


@contextlib.contextmanager
def process_cluster(workers: int) -> Iterator[Client]:
    """Start a scheduler in this process and ``workers`` worker processes; yield a client.

    Processes are forked from one that has imported dsinga: an import would take seconds of each recovery, and of the
    cores that the other workers need.
    """
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context()  # names modules of its own, the first time
        multiprocessing.set_forkserver_preload(["dsinga.cluster.run.driver", "distributed.nanny"])
        with connect(workers=workers, separate_processes=True) as client:
            yield client


def wait_for_return(client: Client, workers: int) -> None:
    """Wait until the cluster has ``workers`` Dask workers again; ask a cluster that was started here for them.

    Raises RunError where they do not come.
    """
    deadline = time.monotonic() + RETURN_SECONDS
    while len(available_workers(client)) < workers:
        if time.monotonic() > deadline:
            raise RunError(
                f"{len(available_workers(client))} of {workers} Dask workers are left after {RETURN_SECONDS:g} s; "
                "start them with nannies, which restart lost processes, or leave out the kind retire"
            )
        if client.cluster is not None:  # it lists retired workers for a while, and replaces them when asked after that
            client.cluster.scale(workers)
        threading.Event().wait(CHECK_SECONDS)
