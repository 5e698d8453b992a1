"""The queue of runs, a plugin of Dask's scheduler: gives threads to runs, and delays a worker's end until runs leave.

Its policy is :mod:`dsinga.cluster.queue.thread_claims`.

Dask ends a worker if a cluster is scaled down, its ``--lifetime`` has passed or its process gets SIGTERM. So the
scheduler's handler ``retire_workers`` waits here for the runs first, like a plugin of the nannies
(:mod:`dsinga.cluster.queue.nanny_plugin`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import cloudpickle
from distributed.diagnostics.plugin import SchedulerPlugin

from dsinga.cluster.dask.run_tasks import trim_span
from dsinga.cluster.dask.worker_memory import give_back_soon
from dsinga.cluster.queue import nanny_plugin
from dsinga.cluster.queue.thread_claims import Record, ThreadClaims, Worker

# The name of the plugin on the scheduler.
NAME = "dsinga-queue"
# The version of requests and replies: a client refuses a scheduler with another one.
PROTOCOL = 3
# Seconds that a closing scheduler waits for its Dask workers to end, and between two checks.
CLOSE_SECONDS, CLOSE_CHECK_SECONDS = 3.0, 0.02


class RunQueue(SchedulerPlugin):
    """Lets clients claim threads for runs, by handlers of the scheduler: ``dsinga_claim``, ``dsinga_release``, ...."""

    name = NAME
    idempotent = True

    def __init__(self) -> None:
        self.claims = ThreadClaims()
        self._begun: dict[str, asyncio.Event] = {}  # of the runs that wait
        self._scheduler: Any = None
        self._departures: Departures | None = None

    @property
    def runs(self) -> dict[str, Record]:
        """The records of runs by name, in the order of their arrival.

        A client sees them with
        ``client.run_on_scheduler(lambda dask_scheduler: dict(dask_scheduler.plugins["dsinga-queue"].runs))``.
        """
        return self.claims.runs

    async def start(self, scheduler: Any) -> None:
        """Add the queue's handlers to the scheduler."""
        self._scheduler = scheduler
        scheduler.handlers.update(
            dsinga_claim=self.claim,
            dsinga_wait=self.wait,
            dsinga_keep=self.keep,
            dsinga_release=self.release,
            dsinga_replace=self.replace,
            dsinga_offer=self.offer,
        )

        if self._departures is None:
            self._departures = Departures(scheduler, self._is_used)
        self._departures.register_nanny_plugin()

    async def before_close(self) -> None:
        """Let the Dask workers end before their scheduler closes their connections."""
        addresses = set(self._scheduler.workers)
        for address in addresses:
            self._scheduler.worker_send(address, {"op": "close", "reason": "scheduler-close"})
        deadline = time.monotonic() + CLOSE_SECONDS
        while addresses & self._scheduler.stream_comms.keys() and time.monotonic() < deadline:
            await asyncio.sleep(CLOSE_CHECK_SECONDS)

    def _is_leaving(self, address: str) -> bool:
        return self._departures is not None and self._departures.is_leaving(address)

    def _is_used(self, address: str) -> bool:
        """Whether a run is on a Dask worker: it holds threads there, or still has Actors."""
        state = self._scheduler.workers.get(address)
        if state is None:
            return False
        return any(address in record["granted"] for record in self.runs.values()) or any(
            self._run_of(task) in self.runs for task in state.actors
        )

    @staticmethod
    def _run_of(task: Any) -> str:
        return str(task.group_key).rpartition("-")[2]

    async def claim(self, protocol: int, request: Record) -> Record:
        """Add a request at the end of the queue; return the run's view: its state and threads."""
        if protocol != PROTOCOL:
            return {"protocol": PROTOCOL}
        if request["client"] not in self._scheduler.clients:
            return {"protocol": PROTOCOL, "state": "gone"}
        self.claims.add(request, time.time())
        self._begun[request["run"]] = asyncio.Event()
        self._advance()
        return self._view(request["run"])

    async def wait(self, run: str, seconds: float) -> Record:
        """Wait at most ``seconds`` until a run may begin, and return its view."""
        event = self._begun.get(run)
        if event is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), seconds)
        return self._view(run)

    async def keep(self, run: str, granted: dict[str, int]) -> None:
        """Give back all threads of a run except ``granted``."""
        if run in self.runs:
            self.claims.keep(run, granted)
            self._advance()

    async def replace(self, run: str, without: list[str]) -> Record:
        """Replace a run's lost threads by threads of Dask workers not in ``without``; return its view."""
        if run in self.runs:
            self.claims.replace(run, without)
            self._advance()
        return self._view(run)

    async def offer(self, run: str, without: list[str]) -> dict[str, int]:
        """Return the threads that :meth:`replace` would give a run, by the Dask worker's address."""
        return self.claims.offer(run, without)[0] if run in self.runs else {}

    async def release(self, run: str) -> None:
        """Give back the threads of a run, or its place in the queue."""
        self._remove([run])

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Start the waiting runs that fit with a new Dask worker."""
        self._advance()

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Forget the threads of a Dask worker that has gone."""
        self._advance()

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Give back everything that a client's runs hold, after it has closed or was killed."""
        self._remove([name for name, record in self.runs.items() if record["client"] == client])

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.claims.remove([name])
            event = self._begun.pop(name, None)
            if event is not None:
                event.set()
        trim_span(self._scheduler)
        give_back_soon()
        self._advance()

    def _advance(self) -> None:
        held = {address for record in self.runs.values() for address in record["granted"]}
        staying = [
            state
            for state in self._scheduler.workers.values()
            if state.address in held or not (state.status.name.startswith("closing") or self._is_leaving(state.address))
        ]
        states = sorted(staying, key=lambda state: (str(state.name), state.address))
        self.claims.set_workers({state.address: self._worker(state) for state in states})
        for name in self.claims.advance(time.time()):
            self._begun.pop(name).set()

    def _worker(self, state: Any) -> Worker:
        others = [
            task for task in state.processing if task not in state.long_running and self._run_of(task) not in self.runs
        ]
        return {
            "threads": state.nthreads,
            "busy": min(len(others), state.nthreads),
            "host": "inproc" if state.address.startswith("inproc://") else state.host,
            "names": [state.address, state.host, str(state.name)],
            "resources": dict(state.resources),
        }

    def _view(self, name: str) -> Record:
        if name not in self.runs:
            return {"protocol": PROTOCOL, "state": "gone"}
        record, now = self.runs[name], time.time()
        view = {"protocol": PROTOCOL, "state": record["state"], "seconds": now - record["since"]}
        if record["state"] == "running":
            unclaimed = self.claims.unclaimed(name)
            return view | {
                "workers": {
                    address: {
                        "nthreads": threads,
                        "host_threads": unclaimed[worker["host"]],
                        "names": [*worker["names"], *worker["resources"]],
                    }
                    for address, threads in record["granted"].items()
                    for worker in [self.claims.workers[address]]
                }
            }
        return view | {
            "fits": self.claims.fits(record),
            "room": self.claims.room(record),
            "ahead": [_summary(other, now) for other in self.claims.ahead(name)],
            "holders": [_summary(other, now) for other in self.claims.holders(name)],
        }


def _summary(record: Record, now: float) -> Record:
    threads = sum(record["granted"].values()) or record["threads"]
    return {
        "job": record["job"], "user": record["user"], "threads": threads, "seconds": now - record["since"]
    }  # fmt: skip


async def dask_setup(scheduler: Any) -> None:
    """Start the queue with the scheduler: ``dask scheduler --preload dsinga.cluster.queue.run_queue``."""
    await scheduler.register_scheduler_plugin(RunQueue(), idempotent=True)


# Seconds that runs may take to leave Dask workers that are to be retired, and between two checks whether they have.
LEAVE_SECONDS = 30.0
CHECK_SECONDS = 0.05
# Seconds after which a Dask worker that has not ended counts as staying again.
FORGET_SECONDS = 10.0


class Departures:
    """Keeps, on the scheduler, the Dask workers that are about to end, until runs have left them."""

    def __init__(self, scheduler: Any, is_used: Callable[[str], bool]):
        self._scheduler, self._is_used = scheduler, is_used
        self._leaving: dict[str, int] = {}  # by address, how many callers wait for it
        self._retire: Callable[..., Awaitable[Any]] = scheduler.handlers["retire_workers"]
        scheduler.handlers.update(
            retire_workers=self.retire_workers, dsinga_depart=self.depart, dsinga_leaving=self.leaving
        )

    def register_nanny_plugin(self) -> None:
        """Make every nanny delay the stop of its worker until runs have left it."""
        cloudpickle.register_pickle_by_value(nanny_plugin)
        try:
            plugin = cloudpickle.dumps(nanny_plugin.LeaveBeforeEnd())
        finally:
            cloudpickle.unregister_pickle_by_value(nanny_plugin)
        register = self._scheduler.register_nanny_plugin(None, plugin=plugin, name=nanny_plugin.NAME, idempotent=True)
        self._scheduler._ongoing_background_tasks.call_soon(asyncio.wait_for, register, LEAVE_SECONDS)

    async def leaving(self) -> list[str]:
        """Return the addresses of the Dask workers that will end soon, which runs should leave."""
        return list(self._leaving)

    def is_leaving(self, address: str) -> bool:
        """Whether runs should leave a Dask worker."""
        return address in self._leaving

    async def depart(self, worker: str, seconds: float) -> None:
        """Wait at most ``seconds`` until runs have left a Dask worker that is about to end."""
        await self._wait([worker], seconds)

    async def retire_workers(
        self, workers: Iterable[Any] | None = None, names: Iterable[Any] | None = None, **options: Any
    ) -> Any:
        """Retire Dask workers, as the scheduler's own handler does, once runs have left them.

        ``workers`` are addresses, or names, as a SpecCluster gives them. Runs leave both, but only addresses are
        retired: a SpecCluster closes its Dask workers itself. Without ``workers`` and ``names``, the scheduler chooses
        by the other options.
        """
        how = {name: options.pop(name) for name in ("close_workers", "remove", "stimulus_id") if name in options}
        if workers is None and names is None:
            workers = addresses = list(self._scheduler.workers_to_close(**options))
        else:
            labels = {str(label) for label in [*(workers or ()), *(names or ())]}
            addresses = [a for a, state in self._scheduler.workers.items() if a in labels or str(state.name) in labels]
        await self._wait(addresses, LEAVE_SECONDS)
        return await self._retire(workers=addresses if workers is None else workers, **how)

    async def _wait(self, addresses: Iterable[str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        addresses = [address for address in addresses if self._is_used(address)]
        for address in addresses:
            self._leaving[address] = self._leaving.get(address, 0) + 1
        try:
            while any(map(self._is_used, addresses)) and time.monotonic() < deadline:
                await asyncio.sleep(CHECK_SECONDS)
        finally:
            # A while later, because a Dask worker that runs have left is still there for a moment.
            asyncio.get_running_loop().call_later(FORGET_SECONDS, self._forget, addresses)

    def _forget(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            self._leaving[address] -= 1
            if not self._leaving[address]:
                del self._leaving[address]
