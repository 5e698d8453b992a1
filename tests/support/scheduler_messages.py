"""Counts the messages that a Dask scheduler of this process receives, for tests and the benchmark."""

from collections import Counter
from typing import Any

from distributed import Scheduler


class CountingHandlers(dict):
    """Handlers of a server by the name of the message, which count how often each is looked up."""

    def __init__(self, handlers: dict[str, Any], counts: Counter[str]):
        super().__init__(handlers)
        self.counts = counts

    def __getitem__(self, name: str) -> Any:
        self.counts[name] += 1
        return super().__getitem__(name)


def count_messages(scheduler: Scheduler) -> Counter[str]:
    """Return a counter of the messages by name, which goes on counting those that the scheduler receives."""
    counts: Counter[str] = Counter()
    scheduler.stream_handlers = CountingHandlers(scheduler.stream_handlers, counts)
    scheduler.handlers = CountingHandlers(scheduler.handlers, counts)
    return counts
