"""Recovery: a run that has lost Dask workers goes on elsewhere from its last snapshot, with the same bits.

The logical topology never changes. Each *generation* of a run places it anew on the Dask workers at hand, several
partitions on one where there are too few, starts from a snapshot and computes the steps since again.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from distributed import Client

from dsinga.cluster.cluster_run import ClusterRun
from dsinga.cluster.connecting.expected_workers import Notices
from dsinga.cluster.dask_workers import available_workers, count_processes, process
from dsinga.cluster.heartbeats import heartbeats
from dsinga.cluster.memory_check import check_memory
from dsinga.cluster.placement import Placement, place
from dsinga.cluster.prepare import PreparedRun
from dsinga.cluster.snapshots import RunSnapshot, Snapshots
from dsinga.cluster.supervision import Check
from dsinga.errors import RunError, UserError, WorkerLost
from dsinga.job import ClusterConf
from dsinga.settings import read_setting

_log = logging.getLogger(__name__)

T = TypeVar("T")

# How often a run starts again from one snapshot, unless the job says how often it may at all.
RESTARTS_FROM_SNAPSHOT = 3
# How often in succession a Dask worker may be lost before a snapshot is complete; then it is left out.
LOSSES_OF_WORKER = 3
# Seconds between two looks whether there are Dask workers again.
LOOK_SECONDS = 0.1


@dataclass
class Restart:
    """What was lost, and how long it took until the run stood where it had stood.

    Attributes:
        lost: what was lost, in words.
        noticed_at: when that was noticed, by ``time.perf_counter()``.
        step: the step from which the run has started again.
        generation: the generation that has started then.
    """

    lost: str
    noticed_at: float
    step: int = 0
    generation: int = 0


class RecoverableRun:
    """A run on a Dask cluster, in its present generation, that survives the loss of Dask workers.

    Args:
        prepared: the run.
        client: the client of the cluster.
        first: what the run begins with.
        make_check: returns the check that waits call, for the placement of a generation.
        announce: is called with a sentence when the run waits for Dask workers.

    Attributes:
        run: the present generation.
        snapshots: the run's snapshots.
        recoveries: those since the training loop has asked last.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        client: Client,
        first: RunSnapshot,
        make_check: Callable[[Placement], Check],
        announce: Callable[[str], None],
    ):
        self._prepared, self._client, self._announce, self._make_check = prepared, client, announce, make_check
        self._cluster = prepared.job.cluster or ClusterConf()
        self._placement = prepared.placement
        self._check = make_check(self._placement)
        self._ready = set(self._placement.addresses)
        self._refused: set[str] = set()  # addresses of Dask workers that cannot train the job
        self._names = _names(client)
        self._losses: Counter[str] = Counter()  # in succession, by the name of the Dask worker
        self._restarts = self._restarts_from_snapshot = 0
        # What a single Dask worker in this process has is lost only with this process.
        is_within = [process(address) for address in self._placement.addresses] == ["inproc"]
        self.snapshots = Snapshots(first, 0.0 if is_within else read_setting("snapshot_share"))
        self.run = ClusterRun(client, prepared.config, self._placement, self._check)
        self.recoveries: list[Restart] = []
        self._loop: tuple[weakref.WeakMethod[Any], ...] = ()

    @property
    def client(self) -> Client:
        """The client of the cluster."""
        return self._client

    def connect(self, restart: Callable[[int], None], catch_up: Callable[[], None]) -> None:
        """Connect the training loop, by two of its methods.

        ``restart`` is called with the step from which a new generation has started. ``catch_up`` brings the run from
        there to the step at which it stands.
        """
        self._loop = weakref.WeakMethod(restart), weakref.WeakMethod(catch_up)  # the loop refers to the run

    def start(self) -> None:
        """Start the first generation, or a later one if Dask workers are lost meanwhile."""
        try:
            self._start_generation()
        except WorkerLost as loss:
            self.recover(loss)

    def do(self, operation: Callable[[ClusterRun], T]) -> T:
        """Return the result of an operation on a run that stands; if Dask workers are lost, recover and repeat it."""
        pending: WorkerLost | None = None
        while True:
            try:
                if pending is not None:
                    self.recover(pending)
                    self._call_loop(1)
                return operation(self.run)
            except WorkerLost as loss:
                pending = loss

    def recover(self, loss: WorkerLost) -> None:
        """Start a new generation from the last snapshot, on the Dask workers at hand.

        Raises RunError where the run has started again too often, and where the Dask workers do not suffice.
        """
        noticed = time.perf_counter()
        lost = self._lose(loss)
        while True:
            self._count_restart(lost)
            try:
                self._place_again()
                self._start_generation()
                break
            except WorkerLost as again:
                lost = self._lose(again)
        step, generation = self.snapshots.newest.step, self.run.config.generation
        self.recoveries.append(Restart(str(loss), noticed, step, generation))
        self._call_loop(0, step)

    def move(self, step: int, loop: Mapping[str, Any]) -> None:
        """Start a new generation at ``step``, at which the run stands, on the Dask workers at hand, in order."""
        params, state = self.run.snapshot(step)
        self.snapshots.replace(RunSnapshot(step, params, state, loop))
        self.run.close("the run moves to other Dask workers", last=False)
        try:
            self._place_again()
            self._start_generation()
        except WorkerLost as loss:
            self.recover(loss)
        else:
            self._call_loop(0, step)

    def set_rate_factors(self, run: ClusterRun, step: int, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by ``factors``, as :meth:`ClusterRun.set_rate_factors` does, in later ones too."""
        run.config.updater.set_rate_factors(factors)
        run.set_rate_factors(step, factors)

    def collect_snapshot(self) -> None:
        """Keep the snapshot that is on its way, if it has come."""
        if self.snapshots.collect():
            self._restarts_from_snapshot = 0
            for address in self._placement.addresses:
                self._losses.pop(self._names.get(address, address), None)

    def close(self, message: str | None = None) -> None:
        """End the run on all Dask workers that are left; its waits there end with ``message``."""
        self.snapshots.drop()
        self.run.close(message, heartbeats(self._client).silent())

    def _call_loop(self, number: int, *arguments: Any) -> None:
        method = self._loop[number]() if self._loop else None
        if method is not None:
            method(*arguments)

    def _lose(self, loss: WorkerLost) -> str:
        """End the present generation where its Dask workers are left; return what was lost, in words."""
        _log.warning("%s; the run starts again from step %d", loss, self.snapshots.newest.step)
        self.snapshots.drop()
        workers, silent = available_workers(self._client), heartbeats(self._client).silent()
        for address in self._placement.addresses:
            if address not in workers or address in silent:
                self._losses[self._names.get(address, address)] += 1
        self.run.close(str(loss), silent, last=False)
        return str(loss)

    def _count_restart(self, lost: str) -> None:
        limit, step = self._cluster.max_restarts, self.snapshots.newest.step
        if limit is None and self._restarts_from_snapshot >= RESTARTS_FROM_SNAPSHOT:
            raise RunError(f"{lost}; the run has started again {self._restarts_from_snapshot} times from step {step}")
        if limit is not None and self._restarts >= limit:
            again = f"; the run has started again {limit} times, as max_restarts says" if limit else ""
            raise RunError(f"{lost}{again}")
        self._restarts += 1
        self._restarts_from_snapshot += 1

    def _place_again(self) -> None:
        """Place the run on Dask workers at hand; wait where there are too few."""
        prepared, topology = self._prepared, self._prepared.topology
        while True:
            self._await_workers()
            workers = prepared.claim.workers
            placement = place(topology, workers, crowded=True)
            # The number of kernel threads of a partition stays, because results may depend on it.
            placement = placement._replace(threads=prepared.placement.threads)
            if self._is_ready(placement):
                break
        check_memory(self._client, (net.whole for net in prepared.config.nets.values()), len(placement.addresses))
        self._placement = placement._replace(devices=prepared.choose_devices(placement))
        self._check = self._make_check(self._placement)

    def _is_ready(self, placement: Placement) -> bool:
        """Whether all Dask workers of a placement can train the job; those that cannot are left out from now on."""
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

    def _await_workers(self) -> None:
        """Claim threads of Dask workers at hand; wait until there are ``min_workers`` processes with some."""
        claim, least, patience = self._prepared.claim, self._cluster.min_workers, self._cluster.patience
        notices, began = Notices(self._announce), time.monotonic()
        while True:
            claim.replace(self._unusable())
            count = count_processes(claim.workers)
            if count >= least:
                return
            waited = time.monotonic() - began
            lack = (
                f"the run needs {least} Dask worker{'s' if least > 1 else ''} to go on, and there are {count or 'none'}"
            )
            if waited >= patience:
                raise RunError(f"{lack}; waited {waited:.0f} s, as cluster.patience says")
            notices.give(f"{lack}; waiting for others", waited)
            self._check(0.0)
            threading.Event().wait(LOOK_SECONDS)

    def _unusable(self) -> set[str]:
        """Return the addresses of the Dask workers that the run is not to use."""
        workers = available_workers(self._client)
        heartbeats(self._client).look(workers)
        self._names |= {address: str(info["name"]) for address, info in workers.items()}
        unusable = self._refused | heartbeats(self._client).silent().keys()
        often = {a for a in workers if self._losses[self._names[a]] >= LOSSES_OF_WORKER} - unusable
        if often and len(workers.keys() - unusable - often) > 0:
            unusable |= often
        return unusable

    def _start_generation(self) -> None:
        """Start workers and servers with the values of the newest snapshot."""
        newest, prepared = self.snapshots.newest, self._prepared
        if self.run.started:
            config = replace(self.run.config, generation=self.run.config.generation + 1)
            self.run = ClusterRun(self._client, config, self._placement, self._check)
        is_within = any(address.startswith("inproc://") for address in self._placement.addresses)
        params, state = newest.copy() if is_within else (newest.params, newest.state)
        warm = prepared.topology.common_start(newest.step, prepared.job.train_steps)
        self.run.start(params, state, newest.step, warm)


def _names(client: Client) -> dict[str, str]:
    """Return the names of all Dask workers, by address."""
    return {address: str(info["name"]) for address, info in available_workers(client).items()}
