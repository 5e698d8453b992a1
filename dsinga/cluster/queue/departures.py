"""Dask workers that are about to leave a cluster, and the wait until runs have left them.

Dask refuses to retire a worker that holds an Actor, as those of runs do, and ends it all the same where a cluster is
scaled down, its ``--lifetime`` has passed or its process gets SIGTERM. So the scheduler's handler ``retire_workers``
waits here for the runs first, and a plugin of the nannies (:mod:`dsinga.cluster.queue.nanny_plugin`) does so, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import cloudpickle

from dsinga.cluster.queue import nanny_plugin

# Seconds that runs may take to leave Dask workers that are to be retired, and between two checks whether they have.
LEAVE_SECONDS = 30.0
CHECK_SECONDS = 0.05
# Seconds after which a Dask worker that has not ended counts as staying again.
FORGET_SECONDS = 10.0


class Departures:
    """The Dask workers that are about to leave; on the scheduler.

    Args:
        scheduler: the scheduler.
        is_used: says whether a run holds threads of a Dask worker, or has tasks or Actors there.
    """

    def __init__(self, scheduler: Any, is_used: Callable[[str], bool]):
        self._scheduler, self._is_used = scheduler, is_used
        self._leaving: dict[str, int] = {}  # by address, how many callers wait for it
        self._retire: Callable[..., Awaitable[Any]] = scheduler.handlers["retire_workers"]
        scheduler.handlers.update(
            retire_workers=self.retire_workers, dsinga_depart=self.depart, dsinga_leaving=self.leaving
        )

    def register_nanny_plugin(self) -> None:
        """Let the nannies of all Dask workers, and of those to come, wait until runs have left."""
        cloudpickle.register_pickle_by_value(nanny_plugin)
        try:
            plugin = cloudpickle.dumps(nanny_plugin.LeaveBeforeEnd())
        finally:
            cloudpickle.unregister_pickle_by_value(nanny_plugin)
        register = self._scheduler.register_nanny_plugin(None, plugin=plugin, name=nanny_plugin.NAME, idempotent=True)
        self._scheduler._ongoing_background_tasks.call_soon(asyncio.wait_for, register, LEAVE_SECONDS)

    async def leaving(self) -> list[str]:
        """Return the addresses of the Dask workers that runs should leave."""
        return list(self._leaving)

    def is_leaving(self, address: str) -> bool:
        """Whether runs should leave a Dask worker."""
        return address in self._leaving

    async def depart(self, worker: str, seconds: float) -> None:
        """Wait at most some seconds until runs have left a Dask worker, which is about to end."""
        await self._wait([worker], seconds)

    async def retire_workers(
        self, workers: Iterable[Any] | None = None, names: Iterable[Any] | None = None, **options: Any
    ) -> Any:
        """Retire Dask workers, as the scheduler's own handler does, once runs have left them.

        ``workers`` are addresses, or names, as a SpecCluster gives them. Runs leave both, but the scheduler's handler
        retires addresses only, and it must go on to: a SpecCluster closes its Dask workers itself at once, and one that
        is retired meanwhile logs an error. Where there are neither ``workers`` nor ``names``, the scheduler chooses by
        the other options; it chooses once, before the wait.
        """
        how = {name: options.pop(name) for name in ("close_workers", "remove", "stimulus_id") if name in options}
        if workers is None and names is None:
            workers = addresses = list(self._scheduler.workers_to_close(**options))
        else:
            labels = {str(label) for label in [*(workers or ()), *(names or ())]}
            addresses = [a for a, state in self._scheduler.workers.items() if a in labels or str(state.name) in labels]
        await self._wait(addresses, LEAVE_SECONDS)
        return await self._retire(workers=addresses if workers is None else workers, **how)

    async def _wait(self, addresses: Iterable[str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        addresses = [address for address in addresses if self._is_used(address)]
        for address in addresses:
            self._leaving[address] = self._leaving.get(address, 0) + 1
        try:
            while any(map(self._is_used, addresses)) and time.monotonic() < deadline:
                await asyncio.sleep(CHECK_SECONDS)
        finally:
            # A while later, because a Dask worker that runs have left is still there for a moment.
            asyncio.get_running_loop().call_later(FORGET_SECONDS, self._forget, addresses)

    def _forget(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            self._leaving[address] -= 1
            if not self._leaving[address]:
                del self._leaving[address]
