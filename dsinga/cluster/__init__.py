"""Running jobs on a Dask cluster: connecting, the queue, placement, workers and servers as Actors, rounds, recovery.

Modules with Actors and tasks (on_workers, graph_grain.tasks, some of placing.automatic) run in the processes of Dask
workers, all others in the driver's, where the Dask client is.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsinga.cluster.connecting.embedded import check_client, connect
    from dsinga.cluster.dask.dask_workers import available_workers
    from dsinga.cluster.graph_grain import find_grain
    from dsinga.cluster.inference.inference import forward_on_cluster
    from dsinga.cluster.placing.prepare import prepare_run
    from dsinga.cluster.queue.usable_workers import WorkerSelection
    from dsinga.cluster.run.driver import train

__all__ = [
    "WorkerSelection",
    "available_workers",
    "check_client",
    "connect",
    "find_grain",
    "forward_on_cluster",
    "prepare_run",
    "train",
]

_MODULES = {
    "WorkerSelection": "dsinga.cluster.queue.usable_workers",
    "available_workers": "dsinga.cluster.dask.dask_workers",
    "check_client": "dsinga.cluster.connecting.embedded",
    "connect": "dsinga.cluster.connecting.embedded",
    "find_grain": "dsinga.cluster.graph_grain",
    "forward_on_cluster": "dsinga.cluster.inference.inference",
    "prepare_run": "dsinga.cluster.placing.prepare",
    "train": "dsinga.cluster.run.driver",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a script that only builds a net does not wait for Dask."""
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module 'dsinga.cluster' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
