"""All that touches Dask: topology to workers, servers as Actors, exchange, rounds, the driver."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsinga.cluster.course import Observer
    from dsinga.cluster.driver import Outcome, train
    from dsinga.cluster.embedded import connect
    from dsinga.cluster.graph import Grain
    from dsinga.cluster.inference import evaluate, predict, processor_here
    from dsinga.cluster.layout import Layout, lay_out
    from dsinga.cluster.nets import build_net, build_partitioned_net
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
    "processor_here",
    "train",
    "workers_at_hand",
]

_HOMES = {
    "Arrays": "slices",
    "Grain": "graph",
    "Layout": "layout",
    "Observer": "course",
    "Outcome": "driver",
    "build_net": "nets",
    "build_partitioned_net": "nets",
    "connect": "embedded",
    "evaluate": "inference",
    "lay_out": "layout",
    "predict": "inference",
    "processor_here": "inference",
    "train": "driver",
    "workers_at_hand": "placement",
}


def __getattr__(name: str) -> Any:
    """Import a face when it is first asked for: who only looks at a net does not wait for Dask."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'dsinga.cluster' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dsinga.cluster.{_HOMES[name]}"), name)
