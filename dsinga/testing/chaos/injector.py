"""Causes faults at random moments while a job is trained."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence

from distributed import Client

from dsinga.cluster import available_workers
from dsinga.testing.chaos.faults import STILL_SECONDS, CausedFault, cause

_log = logging.getLogger(__name__)


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
            victims = self._victims()
            if victims:
                fault = cause(self._client, kind, victims[int(place * len(victims))])
                self.faults.append(fault)
                _log.info("fault %d: %s of the Dask worker %s %s", len(self.faults), kind, fault.victim, fault.failed)

    def _victims(self) -> list[str]:
        """Return the Dask workers that answer: not those that an earlier fault has stopped."""
        now = time.monotonic()
        still = {fault.victim for fault in self.faults if now < fault.at + STILL_SECONDS.get(fault.kind, 0.0)}
        return sorted(available_workers(self._client).keys() - still)
