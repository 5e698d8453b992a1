"""What an iteration has waited for and moved, counted by whoever waits and moves."""

from __future__ import annotations


class Meter:
    """Seconds of waiting for servers and other partitions, and bytes sent and got, in the running iteration."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin an iteration."""
        self.waited = 0.0
        self.crossing = 0  # bytes that have left this process or come into it
        self.within = 0  # bytes handed over in it, without a copy

    def count(self, crosses: bool, nbytes: int) -> None:
        """Add ``nbytes`` that have moved."""
        if crosses:
            self.crossing += nbytes
        else:
            self.within += nbytes
