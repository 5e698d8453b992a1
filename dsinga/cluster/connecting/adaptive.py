"""Keeps adaptive Dask clusters from ending the workers of runs: these clusters count tasks, and a run has few."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator

from distributed import Client, SpecCluster
from distributed.deploy.adaptive import Adaptive
from distributed.deploy.cluster import Cluster

_lock = threading.Lock()
# For each adaptive cluster with runs: the minimum that its user has set, and the number of Dask workers of each run.
_kept: weakref.WeakKeyDictionary[Adaptive, tuple[int, list[int]]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def keep_workers(client: Client, count: int) -> Iterator[None]:
    """Keep ``count`` Dask workers more than other runs need in an adaptive cluster, up to its maximum.

    It would start none for a run that waits for Dask workers, since that has no tasks yet, and might end some while the
    run pauses. Other clusters stay as they are.
    """
    adaptive = _adaptive(getattr(client, "cluster", None))
    if adaptive is None:
        yield
        return
    with _lock:
        _kept.setdefault(adaptive, (adaptive.minimum, []))[1].append(count)
        _set_minimum(adaptive)
    try:
        yield
    finally:
        with _lock:
            _kept[adaptive][1].remove(count)
            _set_minimum(adaptive)
            if not _kept[adaptive][1]:
                del _kept[adaptive]


def minimum_workers(cluster: SpecCluster) -> int:
    """Return how many Dask workers an adaptive cluster has at least; 0 for other clusters."""
    adaptive = _adaptive(cluster)
    return adaptive.minimum if adaptive else 0


def _adaptive(cluster: Cluster | None) -> Adaptive | None:
    """Return what scales a cluster, None where nothing does."""
    adaptive = getattr(cluster, "_adaptive", None)
    return adaptive if isinstance(adaptive, Adaptive) and adaptive.state in ("starting", "running") else None


def _set_minimum(adaptive: Adaptive) -> None:
    minimum, counts = _kept[adaptive]
    adaptive.minimum = max(minimum, int(min(adaptive.maximum, sum(counts))))
