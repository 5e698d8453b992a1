"""All that touches Dask: topology to workers, servers as Actors, exchange, rounds, the driver."""

from dsinga.cluster.course import Observer
from dsinga.cluster.driver import Outcome, train
from dsinga.cluster.embedded import connect
from dsinga.cluster.graph import Grain
from dsinga.cluster.inference import evaluate, predict
from dsinga.cluster.layout import Layout, build_net, build_partitioned_net, lay_out
from dsinga.cluster.placement import workers_at_hand
from dsinga.cluster.slices import Arrays

__all__ = [
    "Arrays",
    "Grain",
    "Layout",
    "Observer",
    "Outcome",
    "build_net",
    "build_partitioned_net",
    "connect",
    "evaluate",
    "lay_out",
    "predict",
    "train",
    "workers_at_hand",
]
