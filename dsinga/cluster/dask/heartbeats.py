"""Finds Dask workers that stopped sending heartbeats, because they hang or the network is cut."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import Any

from distributed import Client
from distributed.scheduler import heartbeat_interval

from dsinga.base.errors import RunError, SchedulerLost
from dsinga.cluster.dask.dask_workers import Workers, ask_scheduler, process

# Seconds without a heartbeat after which a Dask worker counts as lost, and heartbeats, whichever is longer. Dask sends
# heartbeats every 0.5 to 2 s, and where there are more than 200 Dask workers, the less often the more there are: every
# 6 s for 1,000. A process that is stopped for 5 s is not lost.
SILENCE_SECONDS = 7.5
SILENT_HEARTBEATS = 3
# The same for a process that runs, as its nanny says: garbage collection, or a library that holds the interpreter's
# lock, keeps it from sending heartbeats. And seconds between two questions, and until the answer.
BUSY_SECONDS = 60.0
QUESTION_SECONDS = 5.0
ANSWER_SECONDS = 1.0
# The most seconds that count between two checks, or the time between two heartbeats: those during which this process
# itself was stopped do not.
CHECK_SECONDS = 1.0


@dataclass
class Heartbeat:
    """When a Dask worker last sent a heartbeat, and how long it has been silent.

    Attributes:
        last: when it came, by the scheduler's clock.
        seconds: the seconds since, by this process's clock.
        busy_until: up to how many seconds of silence it counts as busy.
    """

    last: float
    seconds: float
    busy_until: float


class Heartbeats:
    """Tells how long each Dask worker of a cluster has been silent."""

    def __init__(self) -> None:
        self._checked_at = time.monotonic()
        self._interval = 0.0  # seconds between two heartbeats of a Dask worker
        self._last: dict[str, Heartbeat] = {}

    def is_due(self) -> bool:
        """Whether half of a heartbeat's interval has passed since the last update."""
        return time.monotonic() >= self._checked_at + self._interval / 2

    def update(self, client: Client, workers: Workers) -> None:
        """Read the scheduler's information on all Dask workers; ask nannies whether silent workers are busy."""
        self._interval = heartbeat_interval(len(workers))
        now, most = time.monotonic(), max(CHECK_SECONDS, self._interval)
        passed, self._checked_at = min(now - self._checked_at, most), now
        silence = max(SILENCE_SECONDS, SILENT_HEARTBEATS * self._interval)
        last = self._last = {address: self._last.get(address, Heartbeat(0.0, 0.0, silence)) for address in workers}
        for address, info in workers.items():
            heartbeat = last[address]
            if heartbeat.last != info["last_seen"]:
                last[address] = Heartbeat(info["last_seen"], 0.0, silence)
                continue
            heartbeat.seconds += passed
            is_due = heartbeat.busy_until < heartbeat.seconds < heartbeat.busy_until + 2 * most
            if is_due and heartbeat.seconds < BUSY_SECONDS and _is_busy(client, address):
                heartbeat.busy_until = heartbeat.seconds + QUESTION_SECONDS

    def silent(self) -> dict[str, float]:
        """Return the lost Dask workers, with their seconds of silence, by address."""
        return {
            address: heartbeat.seconds
            for address, heartbeat in self._last.items()
            if heartbeat.seconds > heartbeat.busy_until and process(address) != "inproc"
        }


_heartbeats: weakref.WeakKeyDictionary[Client, Heartbeats] = weakref.WeakKeyDictionary()


def heartbeats(client: Client) -> Heartbeats:
    """Return the tracker of heartbeats of a client's cluster, the same in each call."""
    return _heartbeats.setdefault(client, Heartbeats())


def _is_busy(client: Client, address: str) -> bool:
    """Whether a Dask worker's nanny answers soon that the process runs."""
    question: dict[str, Any] = {"msg": {"op": "dsinga_is_busy"}, "workers": [address], "nanny": True}
    try:
        answers = ask_scheduler(client, "broadcast", limit=ANSWER_SECONDS, on_error="ignore", **question)
    except SchedulerLost:
        raise
    except (RunError, KeyError, TypeError, ValueError):  # no answer in time, or no nanny
        return False
    return list(answers.values()) == [True]
