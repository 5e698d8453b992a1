"""A cluster of worker processes on this machine, whose nannies start a lost process again within a second."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator

import dask
from distributed import Client
from distributed.utils import get_mp_context

from dsinga.cluster import available_workers, connect
from dsinga.errors import RunError

# Seconds to wait for processes that were lost to come back.
RETURN_SECONDS = 60.0


@contextlib.contextmanager
def process_cluster(workers: int) -> Iterator[Client]:
    """Start a scheduler in this process and ``workers`` worker processes; yield a client.

    Processes are forked from one that has imported dsinga: an import would take seconds of each recovery, and of the
    cores that the other workers need.
    """
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context()  # names modules of its own, the first time
        multiprocessing.set_forkserver_preload(["dsinga.cluster.driver", "distributed.nanny"])
        with connect(workers=workers, separate_processes=True) as client:
            yield client


def wait_for_return(client: Client, workers: int) -> None:
    """Wait until the cluster has ``workers`` Dask workers again; ask a cluster that was started here for them.

    Raises RunError where they do not come.
    """
    if client.cluster is not None:  # retired workers do not come back by their nannies
        client.cluster.scale(workers)
    try:
        client.wait_for_workers(workers, timeout=RETURN_SECONDS)
    except TimeoutError:
        raise RunError(
            f"{len(available_workers(client))} of {workers} Dask workers are left after {RETURN_SECONDS:g} s; start "
            "them with nannies, which restart lost processes, or leave out the kind retire"
        ) from None
