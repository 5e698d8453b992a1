"""Runs jobs on a Dask cluster: connects, queues and places them, trains in rounds, and recovers from lost workers."""

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
