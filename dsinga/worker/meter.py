"""Counting the seconds that a worker waits and the bytes that it moves."""

from __future__ import annotations


class Meter:
    """Counts, for the running iteration, seconds of waiting for servers and workers, and bytes sent and received."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin an iteration: set all counts to zero."""
        self.waited = 0.0
        self.crossing = 0  # bytes sent to or received from another process
        self.within = 0  # bytes handed over in this process, without a copy

    def count(self, crosses: bool, nbytes: int) -> None:
        """Add bytes that have moved."""
        if crosses:
            self.crossing += nbytes
        else:
            self.within += nbytes
