"""Which Dask workers have been silent: their processes are stopped, or the network to them is cut."""

from __future__ import annotations

import time
import weakref

from distributed import Client

from dsinga.cluster.dask_workers import Workers, process

# Seconds without a heartbeat after which a Dask worker counts as lost. Dask sends one every 0.5 to 5 s, by the number
# of Dask workers. A process that is stopped for 5 s is not lost.
SILENCE_SECONDS = 7.5
# The most seconds that count between two looks: those during which this process itself was stopped do not.
LOOK_SECONDS = 1.0


class Heartbeats:
    """How long Dask workers have been silent, by the clock of this process."""

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self._seen: dict[str, tuple[float, float]] = {}  # by address: the last heartbeat, and the seconds since

    def look(self, workers: Workers) -> None:
        """Take the scheduler's information on all Dask workers."""
        now = time.monotonic()
        passed, self._looked_at = min(now - self._looked_at, LOOK_SECONDS), now
        seen = {}
        for address, info in workers.items():
            last, seconds = self._seen.get(address, (0.0, 0.0))
            seen[address] = info["last_seen"], seconds + passed if info["last_seen"] == last else 0.0
        self._seen = seen

    def silent(self) -> dict[str, float]:
        """Return the seconds of silence of the Dask workers that count as lost, by address."""
        return {
            address: seconds
            for address, (_, seconds) in self._seen.items()
            if seconds > SILENCE_SECONDS and process(address) != "inproc"
        }


_heartbeats: weakref.WeakKeyDictionary[Client, Heartbeats] = weakref.WeakKeyDictionary()


def heartbeats(client: Client) -> Heartbeats:
    """Return the heartbeats of the Dask workers of a client's cluster."""
    return _heartbeats.setdefault(client, Heartbeats())
