"""A small Dask cluster in the process of a test, and its asynchronous client."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from distributed import Client, LocalCluster

# One Dask worker with one thread: room for one run at a time.
IN_PROCESS: dict[str, Any] = {
    "n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0", "memory_limit": 0
}  # fmt: skip


@contextlib.asynccontextmanager
async def async_client(set_as_default: bool = True, **options: Any) -> AsyncIterator[Client]:
    """Yield an asynchronous client of a cluster that is started with ``options`` for it."""
    async with (
        LocalCluster(**IN_PROCESS, **options, asynchronous=True) as cluster,
        Client(cluster, asynchronous=True, set_as_default=set_as_default) as client,
    ):
        yield client
