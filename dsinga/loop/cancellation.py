"""Cancelling a run from another thread, while it waits for Dask workers, starts or trains."""

from __future__ import annotations

import threading

from dsinga.errors import Cancelled

# Why training has stopped where its user has cancelled it.
CANCELLED = "the run was cancelled"


class Cancellation:
    """A request to end a run, which another thread makes by setting an event.

    Attributes:
        event: set if the run is to end.
        ends_in_order: whether the training loop stops by itself and writes a checkpoint, so that waits go on.
    """

    def __init__(self, event: threading.Event | None = None):
        self.event = event or threading.Event()
        self.ends_in_order = False

    def check(self) -> None:
        """Raise Cancelled if the run is to end at once."""
        if not self.ends_in_order:
            self.check_idle()

    def check_idle(self) -> None:
        """Raise Cancelled if the run is to end, while nothing runs that could end in order."""
        if self.event.is_set():
            raise Cancelled(CANCELLED)
