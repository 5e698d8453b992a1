"""Causes faults at random moments while a job is trained."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

from distributed import Client

from dsinga.cluster import available_workers
from dsinga.testing.chaos.faults import CausedFault, cause


class FaultInjector:
    """Causes faults in a thread, as a Poisson process: each at a random moment, in a random Dask worker.

    ``distributed.chaos.KillWorker`` draws such moments too, but in each worker without a seed, and tells nobody when.

    Attributes:
        faults: those that have happened.
    """

    def __init__(self, client: Client, kinds: Sequence[str], mtbf: float, seed: int):
        self.faults: list[CausedFault] = []
        self._client, self._kinds, self._mtbf = client, kinds, mtbf
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsinga-chaos", daemon=True)

    def __enter__(self) -> FaultInjector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._random.expovariate(1 / self._mtbf)):
            kind, place = self._random.choice(self._kinds), self._random.random()
            addresses = sorted(available_workers(self._client))
            if addresses:
                self.faults.append(cause(self._client, kind, addresses[int(place * len(addresses))]))
