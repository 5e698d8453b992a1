"""A plugin of Dask's nannies that delays a worker's end until runs have left, and tells if a silent one is busy.

Nannies get this module by value and need no dsinga: it imports only distributed and its dependencies.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psutil
from distributed.core import connect
from distributed.diagnostics.plugin import NannyPlugin

# The name of the plugin on the scheduler.
NAME = "dsinga-leave"
# Seconds to reach the scheduler, which may be gone; and that runs may take to leave. Batch systems kill a process half
# a minute after SIGTERM.
CONNECT_SECONDS = 2.0
LEAVE_SECONDS = 20.0
# The states of a process that cannot run.
HALTED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class LeaveBeforeEnd(NannyPlugin):
    """Tells the scheduler that a Dask worker is about to end, and waits until runs have left."""

    name = NAME

    def setup(self, nanny: Any) -> None:
        """Let the scheduler ask whether the Dask worker is busy."""

        async def is_busy() -> bool:
            """Whether the Dask worker's process runs, even if long work keeps it from sending heartbeats."""
            with contextlib.suppress(psutil.Error, AttributeError):
                return psutil.Process(nanny.process.process.pid).status() not in HALTED
            return False

        nanny.handlers["dsinga_is_busy"] = is_busy

    async def teardown(self, nanny: Any) -> None:
        """Wait until no run is on the nanny's Dask worker."""
        worker = nanny.worker_address
        if worker is None:
            return
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            comm = await connect(nanny.scheduler_addr, timeout=CONNECT_SECONDS, **nanny.connection_args)
            try:
                await comm.write({"op": "dsinga_depart", "reply": True, "worker": worker, "seconds": LEAVE_SECONDS})
                await asyncio.wait_for(comm.read(), LEAVE_SECONDS + CONNECT_SECONDS)
            finally:
                comm.abort()
