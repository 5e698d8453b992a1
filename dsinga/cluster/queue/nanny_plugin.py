"""A plugin of Dask's nannies: lets runs leave a Dask worker before its nanny ends it, as it does on SIGTERM.

Nannies get this module by value, so that they need not import dsinga: it imports only distributed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from distributed.core import connect
from distributed.diagnostics.plugin import NannyPlugin

# The name of the plugin on the scheduler.
NAME = "dsinga-leave"
# Seconds to reach the scheduler, which may be gone; and that runs may take to leave. Batch systems kill a process half
# a minute after SIGTERM.
CONNECT_SECONDS = 2.0
LEAVE_SECONDS = 20.0


class LeaveBeforeEnd(NannyPlugin):
    """Tells the scheduler that a Dask worker is about to end, and waits until the runs have left it."""

    name = NAME

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
