"""Counting what reaches a Dask scheduler of this process, for tests and for the benchmark."""

from __future__ import annotations

from collections import Counter
from typing import Any

from distributed import Scheduler


class Counted(dict):
    """Handlers of a server, by the name of the message; counts how often each is looked up."""

    def __init__(self, handlers: dict[str, Any], counts: Counter[str]):
        super().__init__(handlers)
        self.counts = counts

    def __getitem__(self, name: str) -> Any:
        self.counts[name] += 1
        return super().__getitem__(name)


def count_messages(scheduler: Scheduler) -> Counter[str]:
    """Return a counter, from now on up to date, of the messages that a scheduler of this process gets, by name."""
    counts: Counter[str] = Counter()
    scheduler.stream_handlers = Counted(scheduler.stream_handlers, counts)
    scheduler.handlers = Counted(scheduler.handlers, counts)
    return counts
