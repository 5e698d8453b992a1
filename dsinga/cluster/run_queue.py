"""The queue of runs, a plugin of Dask's scheduler: serves the claims of runs on threads of Dask workers to clients.

Clients send this module and :mod:`dsinga.cluster.thread_claims`, its policy, by value, so that the scheduler needs no
dsinga. They import nothing else of dsinga.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dsinga.cluster.thread_claims import Record, ThreadClaims, Worker

# The name of the plugin on the scheduler.
NAME = "dsinga-queue"
# The version of requests, replies and records. A client and a scheduler with different ones do not understand each
# other.
PROTOCOL = 1


class RunQueue(SchedulerPlugin):
    """Serves :class:`ThreadClaims` to clients: the scheduler's handlers ``dsinga_claim``, ``dsinga_release``, ....

    Every reply has the key "protocol". A claim whose protocol is another one gets no other key; if the queue is empty
    then, it unregisters itself, so that the client can register its own.
    """

    name = NAME
    idempotent = True

    def __init__(self) -> None:
        self.claims = ThreadClaims()
        self._begun: dict[str, asyncio.Event] = {}  # of the runs that wait
        self._scheduler: Any = None

    @property
    def runs(self) -> dict[str, Record]:
        """The records of runs by name, in the order of their arrival."""
        return self.claims.runs

    async def start(self, scheduler: Any) -> None:
        """Offer the handlers."""
        self._scheduler = scheduler
        scheduler.handlers.update(
            dsinga_claim=self.claim, dsinga_wait=self.wait, dsinga_keep=self.keep, dsinga_release=self.release
        )

    async def claim(self, protocol: int, request: Record) -> Record:
        """Put a request at the end of the queue, and return its view."""
        if protocol != PROTOCOL:
            if not self.runs:
                self._scheduler.remove_plugin(self.name)
            return {"protocol": PROTOCOL, "empty": not self.runs}
        if request["client"] not in self._scheduler.clients:
            return {"protocol": PROTOCOL, "state": "gone"}
        self.claims.add(request, time.time())
        self._begun[request["run"]] = asyncio.Event()
        self._advance()
        return self._view(request["run"])

    async def wait(self, run: str, seconds: float) -> Record:
        """Wait at most some seconds until a run may begin, and return its view."""
        event = self._begun.get(run)
        if event is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), seconds)
        return self._view(run)

    async def keep(self, run: str, granted: dict[str, int]) -> None:
        """Give back all threads of a run but ``granted``."""
        if run in self.runs:
            self.claims.keep(run, granted)
            self._advance()

    async def release(self, run: str) -> None:
        """Give back the threads of a run, or its place in the queue."""
        self._remove([run])

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Let runs begin for which there was no room before."""
        self._advance()

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Forget the threads of a Dask worker that has gone."""
        self._advance()

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Give back everything that the runs of a client hold: it has closed, or its process was killed."""
        self._remove([name for name, record in self.runs.items() if record["client"] == client])

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.claims.remove([name])
            event = self._begun.pop(name, None)
            if event is not None:
                event.set()
        self._advance()

    def _advance(self) -> None:
        states = sorted(self._scheduler.workers.values(), key=lambda state: (str(state.name), state.address))
        self.claims.set_workers({state.address: _worker(state) for state in states})
        for name in self.claims.advance(time.time()):
            self._begun.pop(name).set()

    def _view(self, name: str) -> Record:
        """Return what the client of a run learns of it."""
        if name not in self.runs:
            return {"protocol": PROTOCOL, "state": "gone"}
        record, now = self.runs[name], time.time()
        view = {"protocol": PROTOCOL, "state": record["state"], "seconds": now - record["since"]}
        if record["state"] == "running":
            unclaimed = self.claims.unclaimed(name)
            return view | {
                "workers": {
                    address: {"nthreads": threads, "host_threads": unclaimed[self.claims.workers[address]["host"]]}
                    for address, threads in record["granted"].items()
                }
            }
        return view | {
            "fits": self.claims.fits(record),
            "ahead": [_summary(other, now) for other in self.claims.ahead(name)],
            "holders": [_summary(other, now) for other in self.claims.holders(name)],
        }


def _summary(record: Record, now: float) -> Record:
    """Return what other users may know of a run."""
    threads = sum(record["granted"].values()) or record["threads"]
    return {
        "job": record["job"], "user": record["user"], "threads": threads, "seconds": now - record["since"]
    }  # fmt: skip


def _worker(state: Any) -> Worker:
    """Return a Dask worker as :class:`ThreadClaims` knows it, from the scheduler's state of it."""
    names = [state.address, state.host, str(state.name)]
    in_process = state.address.startswith("inproc://")
    return {
        "threads": state.nthreads,
        "host": "inproc" if in_process else state.host,
        "names": names,
        "resources": dict(state.resources),
    }


async def dask_setup(scheduler: Any) -> None:
    """Register the queue when the scheduler starts: ``dask scheduler --preload dsinga.cluster.run_queue``."""
    await scheduler.register_scheduler_plugin(RunQueue(), idempotent=True)
