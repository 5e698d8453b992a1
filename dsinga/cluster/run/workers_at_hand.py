"""Finds Dask workers on which a run can be placed again after a loss, and waits for some if there are none."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection

from distributed import Client

from dsinga.base.arguments import counted
from dsinga.base.errors import ClusterNotReady, SchedulerLost, UserError
from dsinga.cluster.dask.dask_workers import Workers, ask_scheduler, available_workers, count_processes
from dsinga.cluster.dask.placement import Placement, place, place_lost
from dsinga.cluster.dask.supervision import Check, ask_for_workers
from dsinga.cluster.dask.waiting import Announcements, StillWaiting, how_to_give_up, wait_until
from dsinga.cluster.placing.memory import check_memory
from dsinga.cluster.placing.prepare import PreparedRun
from dsinga.job import ClusterConf
from dsinga.monitor.progress import duration

_log = logging.getLogger(__name__)

# How often in succession a Dask worker may be lost before a snapshot is complete; then it is left out.
LOSSES_OF_WORKER = 3
# Seconds between two checks whether there are Dask workers again.
WAIT_SECONDS = 0.1


class WorkersAtHand:
    """Places a run again on Dask workers, except those often lost or unable to train it."""

    def __init__(self, prepared: PreparedRun, client: Client, announce: Callable[[str], None]):
        self._prepared, self._client, self._announce = prepared, client, announce
        self._cluster = prepared.job.cluster or ClusterConf()
        self._ready = set(prepared.placement.addresses)
        self._refused: set[str] = set()  # addresses of Dask workers that cannot train the job
        self._names: dict[str, str] = {}
        self._losses: Counter[str] = Counter()  # in succession, by the name of the Dask worker
        self._note_names(available_workers(client))

    def blame(self, addresses: Collection[str]) -> None:
        """Count a loss against each Dask worker at ``addresses`` that is gone or silent."""
        for address in self.lost(addresses):
            self._losses[self._names.get(address, address)] += 1

    def lost(self, addresses: Collection[str]) -> set[str]:
        """Return the Dask workers among ``addresses`` that are gone or silent."""
        workers, silent = ask_for_workers(self._client)
        return {address for address in addresses if address not in workers or address in silent}

    def forgive(self, addresses: Collection[str]) -> None:
        """Forget the losses of Dask workers that have served until a snapshot was complete."""
        for address in addresses:
            self._losses.pop(self._names.get(address, address), None)

    def leaving(self) -> set[str]:
        """Return the addresses of the Dask workers that are about to leave."""
        addresses = ask_scheduler(self._client, "dsinga_leaving")
        if addresses is None:  # the scheduler has no such method: no run has begun on it
            raise SchedulerLost("the Dask scheduler was lost: another one has been started at its address")
        return set(addresses)

    def most_workers(self) -> int:
        """Return the most workers in a process of the placement that :meth:`place` would return."""
        offered = self._prepared.claim.offer(self._unusable())
        workers = {address: {"nthreads": threads} for address, threads in offered.items()}
        return place(self._prepared.topology, workers, crowded=True).most_workers if workers else 0

    def place(self, check: Check) -> Placement:
        """Place the run on Dask workers at hand; if they are too few, wait and call ``check``."""
        prepared = self._prepared
        while True:
            self._await_workers(check)
            placement = place(prepared.topology, prepared.claim.workers, crowded=True)
            # The number of kernel threads of a partition stays, because results may depend on it.
            placement = placement._replace(threads=prepared.placement.threads)
            if self._is_ready(placement):
                break
        check_memory(self._client, (net.whole for net in prepared.config.nets.values()), len(placement.addresses))
        return placement._replace(devices=prepared.choose_devices(placement))

    def place_lost(self, placement: Placement) -> Placement | None:
        """Return a placement that moves only lost workers and servers; None if the Dask workers do not suffice."""
        claim, unusable = self._prepared.claim, self._unusable()
        claim.replace(unusable)
        left = placement.addresses & available_workers(self._client).keys() - unusable
        if not left <= claim.workers.keys() or count_processes(claim.workers) < self._cluster.min_workers:
            return None
        placement = place_lost(self._prepared.topology, placement, claim.workers)
        return placement if self._is_ready(placement) else None

    def _is_ready(self, placement: Placement) -> bool:
        """Whether a placement's Dask workers can train the job; later placements leave out those that cannot."""
        unknown = placement.addresses - self._ready
        try:
            if unknown:
                self._prepared.check_ready(unknown)
        except UserError as error:
            if unknown >= placement.addresses:
                raise
            _log.warning("Dask workers that have come are left out: %s", error)
            self._refused |= unknown
            return False
        self._ready |= unknown
        return True

    def _await_workers(self, check: Check) -> None:
        """Claim threads of Dask workers at hand; wait until ``min_workers`` processes have some."""
        claim, least = self._prepared.claim, self._cluster.min_workers

        def claim_threads(waited: float) -> StillWaiting | None:
            claim.replace(self._unusable())
            count = count_processes(claim.workers)
            if count >= least:
                return None
            lack = f"the run needs {counted(least, 'Dask worker')} to go on, and there are {count or 'none'}"
            failure = ClusterNotReady(f"{lack}; waited {waited:.0f} s, as cluster.patience says")
            sentence = f"{lack}; waiting for others; {duration(waited)} so far, {how_to_give_up()}"
            return StillWaiting(sentence, failure, topic=count)

        def check_run() -> None:
            self._prepared.cancellation.check_idle()
            check(0.0)

        wait_until(claim_threads, self._cluster.patience, Announcements(self._announce), check_run, WAIT_SECONDS)

    def _unusable(self) -> set[str]:
        """Return the addresses of the Dask workers that the run must not use."""
        workers, silent = ask_for_workers(self._client)
        self._note_names(workers)
        unusable = self._refused | silent.keys() | self.leaving()
        often = {a for a in workers if self._losses[self._names[a]] >= LOSSES_OF_WORKER} - unusable
        return unusable | often if workers.keys() - unusable - often else unusable

    def _note_names(self, workers: Workers) -> None:
        self._names |= {address: str(info["name"]) for address, info in workers.items()}
