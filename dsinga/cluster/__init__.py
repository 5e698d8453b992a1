"""Running jobs on a Dask cluster: connecting, the queue, placement, workers and servers as Actors, rounds, recovery.

Actors and tasks (on_workers, graph_grain) run in the Dask workers' processes, all other modules in the driver's.
"""

from typing import TYPE_CHECKING

from dsinga.base.components import lazy_names

if TYPE_CHECKING:
    from dsinga.cluster.connecting.embedded import check_client, connect
    from dsinga.cluster.dask.dask_workers import available_workers
    from dsinga.cluster.graph_grain import find_grain
    from dsinga.cluster.inference import forward_on_cluster
    from dsinga.cluster.placing.prepare import prepare_run
    from dsinga.cluster.queue.usable_workers import WorkerSelection
    from dsinga.cluster.run.driver import train
else:
    __getattr__, __dir__ = lazy_names(__name__)
