"""The cluster that background runs of this process share where there is no other one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from dask.system import CPU_COUNT
from distributed import Client

from dsinga.cluster.connecting.embedded import connect


class SharedCluster:
    """A cluster of one Dask worker with one thread for each core, which lasts as long as a run uses it.

    Runs share it rather than have one each, so that they wait for free threads instead of disturbing each other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._client: Client | None = None
        self._runs = self._workers = 0

    @contextlib.contextmanager
    def open(self, workers: int) -> Iterator[Client]:
        """Yield a client of the cluster, or of one of its own for a run with more workers than it has."""
        with self._lock:
            client = self._join(workers)
        if client is None:
            with connect(workers=workers) as client:
                yield client
            return
        try:
            yield client
        finally:
            with self._lock:
                self._runs -= 1
                if not self._runs:
                    self._client = None
                    self._stack.close()

    def _join(self, workers: int) -> Client | None:
        """Return the client for one run more, None if the cluster is too small for it."""
        if self._client is None:
            self._workers = max(CPU_COUNT, workers)
            self._client = self._stack.enter_context(connect(workers=self._workers))
        if workers > self._workers:
            return None
        self._runs += 1
        return self._client


# That of this process.
SHARED_CLUSTER = SharedCluster()
