"""Publishes the events of a run under a topic of Dask's scheduler, for dashboards.

Each is a dict with the keys "event", "run" and "job". All numbers are of plain types.

- "begin": the run trains. "client", "user", "step", "train_steps", "batchsize" (records in a step of all worker
  groups), "topology" in words, "workers" (the addresses of each worker group's Dask workers).
- "round": at most two a second. "step", "samples_per_second" of all groups, "metrics" of the last step, "rows" of the
  history, and three lists:
    - "groups", for each worker group with rounds since the previous event: "group", "steps", and lists by worker: the
      steps' seconds "compute", "exchange" and "data", and the bytes "crossing" to or from other processes and "within"
      its own.
    - "staleness", for groups of asynchronous runs: (group, updates, total, largest) as
      :class:`dsinga.cluster.server.GroupStaleness`.
    - "sites", for the servers of sites: (group, step, age of the last applied outer gradients, bytes sent, seconds in
      which its busiest link was in use).
- "end": "step", and "state": "done", "stopped", "cancelled", "diverged" or "failed".
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import importlib
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.protocol.pickle import dumps

from dsinga.base.errors import Cancelled, Diverged
from dsinga.cluster.placing.prepare import PreparedRun
from dsinga.cluster.queue.claims import user_name
from dsinga.cluster.worker.config import RoundReport
from dsinga.extensions import LoopView
from dsinga.extensions.extension import Watcher
from dsinga.job import Phase
from dsinga.loop.cancellation import CANCELLED
from dsinga.monitor import Row

# Seconds between two events of a run.
EVENT_SECONDS = 0.5
# The largest number of rows of training in an event: further ones between them are left out.
MAX_ROWS = 100
# Seconds that the end of a run waits for its last events to be taken.
END_SECONDS = 1.0
# The topic of the events.
TOPIC = "dsinga"
# Events that may wait until the scheduler has taken those before: of a scheduler that is slower, some are left out.
MAX_WAITING = 20


class RunEvents(Watcher):
    """Publishes the events of a run for dashboards; its methods return at once and never fail a run.

    It publishes nothing from an embedded cluster without a dashboard. ``ask_servers`` calls a method of all servers, by
    name, and returns futures of their replies.
    """

    def __init__(self, prepared: PreparedRun, client: Client, ask_servers: Callable[[str], Sequence[Future[Any]]]):
        super().__init__()
        self._loop: LoopView | None = None  # from the start to the end
        self._prepared, self._client, self._ask_servers = prepared, client, ask_servers
        self._sender = None if _is_hidden(client) else EventSender(client)
        self._sent_at = -math.inf
        self._rows: list[Row] = []
        self._groups: dict[int, dict[str, Any]] = {}
        self._position: dict[str, Any] = {}  # the last step, speed and metrics
        self._replies: dict[str, Sequence[Future[Any]]] = {}  # of servers, by the method that was called

    def start(self, loop: LoopView) -> None:
        """Publish that the run trains."""
        prepared, self._loop = self._prepared, loop
        batchsize = prepared.config.readers[Phase.kTrain].batchsize * prepared.topology.groups
        self._send(
            "begin",
            client=self._client.id,
            user=user_name(),
            step=loop.step,
            train_steps=prepared.job.train_steps,
            batchsize=batchsize,
            topology=prepared.topology.describe(),
            workers=[list(group) for group in prepared.placement.workers],
        )

    def round(self, group: int, reports: Sequence[RoundReport]) -> None:
        """Add a worker group's round, given its workers' reports, to the next event."""
        if self._sender is None:
            return
        counts = [
            [sum(column) / report.blocks for column in zip(*report.timings, strict=True)]
            for report in reports
            for _ in range(report.blocks)
        ]
        total, data, exchange, crossing, within, _ = map(list, zip(*counts, strict=True))
        compute = [max(0.0, t - d - e) for t, d, e in zip(total, data, exchange, strict=True)]
        new = {"compute": compute, "exchange": exchange, "data": data, "crossing": crossing, "within": within}
        old = self._groups.setdefault(group, {"group": group, "steps": 0})
        old["steps"] += len(reports[0].timings)
        for name, values in new.items():
            old[name] = [a + b for a, b in zip(old[name], values, strict=True)] if name in old else values
        if group:
            self._publish_round()

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Add a row of the history to the next event."""
        if self._sender is not None:
            self._rows.append(_plain(row))
            if row["phase"] != "train":  # while training pauses, no round comes
                self._publish_round()

    def see_progress(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Publish the run's step, speed and last metrics, and its rounds since the last event."""
        if self._sender is not None:
            values = _plain(row)
            known = {name: values.pop(name) for name in ("step", "samples_per_second")}
            values.pop("epoch", None)
            self._position = {**known, "metrics": values}
            self._publish_round()

    def close(self, error: BaseException | None) -> None:
        """Publish the last round and the run's end; wait a little until the scheduler knows it."""
        loop, self._loop = self._loop, None  # which refers to this object
        if self._sender is None or loop is None:
            return
        self._publish_round(last=True)
        self._send("end", step=loop.step, state=_state(loop.stopped, error))
        self._sender.wait(END_SECONDS)
        for reply in itertools.chain(*self._replies.values()):
            reply.cancel()

    def _publish_round(self, last: bool = False) -> None:
        if time.monotonic() < self._sent_at + EVENT_SECONDS and not last:
            return
        if not (self._rows or self._groups or self._position):
            return
        topology = self._prepared.topology
        staleness = self._read_servers("staleness", topology.groups > 1)
        event = {
            **self._position,
            "rows": _thinned(self._rows),
            "groups": list(self._groups.values()),
            "staleness": [tuple(group) for groups in staleness for group in groups],
            "sites": self._read_servers("site_progress", topology.mean is not None),
        }
        self._rows, self._groups, self._position = [], {}, {}
        self._send("round", **event)
        self._sent_at = time.monotonic()

    def _read_servers(self, method: str, applies: bool) -> list[Any]:
        """Return the servers' replies to the last call, and call again if all have replied."""
        if not applies or not all(reply.done() for reply in self._replies.get(method, ())):
            return []
        replies = self._replies.pop(method, ())
        with contextlib.suppress(Exception):  # a lost server fails the run elsewhere
            results = [reply.result(0) for reply in replies]
            self._replies[method] = self._ask_servers(method)
            return results
        return []

    def _send(self, event: str, **fields: Any) -> None:
        if self._sender is not None:
            run, job = self._prepared.config.run, self._prepared.job.name
            self._sender.send({"event": event, "run": run, "job": job, **fields})


def _is_hidden(client: Client) -> bool:
    """Whether no dashboard can read the events: the scheduler is in this process, without dashboard and TCP."""
    scheduler: Any = getattr(client.cluster, "scheduler", None)
    if scheduler is None or not hasattr(scheduler, "http_application"):
        return False
    return not scheduler.http_application.applications and scheduler.address.startswith("inproc://")


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, (str, int)) else float(value) for name, value in row.items()}


def _thinned(rows: Sequence[Row]) -> list[Row]:
    train = [row for row in rows if row["phase"] == "train"]
    stride = -(-len(train) // MAX_ROWS) or 1
    kept = {id(row) for row in train[::-1][::stride]}
    return [row for row in rows if row["phase"] != "train" or id(row) in kept]


def _state(stopped: str, failure: BaseException | None) -> str:
    if isinstance(failure, (Cancelled, KeyboardInterrupt)) or stopped == CANCELLED:
        return "cancelled"
    if isinstance(failure, Diverged):
        return "diverged"
    return "failed" if failure is not None else "stopped" if stopped else "done"


class EventSender:
    """Sends events to a client's scheduler in order, without waiting for it."""

    def __init__(self, client: Client):
        self._client = client
        self._waiting: collections.deque[dict[str, Any]] = collections.deque()
        self._task: asyncio.Task[None] | None = None  # sends the waiting events
        self._is_loaded = False

    def send(self, event: dict[str, Any]) -> None:
        """Send an event; drop a round while too many events wait."""
        if len(self._waiting) < MAX_WAITING or event["event"] != "round":
            self._waiting.append(event)
            self._call(self._wake)

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` until all events have been sent."""
        if self._client.status == "closed":
            return
        done: Future[None] = Future()
        self._call(self._resolve, done)
        with contextlib.suppress(TimeoutError):
            done.result(seconds)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._client.loop.add_callback(function, *arguments)  # type: ignore[union-attr]

    def _wake(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._send_all())

    def _resolve(self, done: Future[None]) -> None:
        if self._task is None:
            done.set_result(None)
        else:
            self._task.add_done_callback(lambda _: self._resolve(done))

    async def _send_all(self) -> None:
        try:
            if not self._is_loaded:
                self._is_loaded = True
                with contextlib.suppress(Exception):  # a lost scheduler fails the run elsewhere
                    await self._load_dashboard()
            while self._waiting:
                event = self._waiting.popleft()  # taken even where the client has no scheduler: else this never ends
                with contextlib.suppress(Exception):
                    await self._scheduler.log_event(topic=TOPIC, msg=event)
        finally:
            self._task = None

    async def _load_dashboard(self) -> None:
        plugin = DashboardLoader()
        await self._scheduler.register_scheduler_plugin(plugin=dumps(plugin), name=plugin.name, idempotent=True)

    @property
    def _scheduler(self) -> Any:
        return self._client.scheduler


class DashboardLoader(SchedulerPlugin):
    """Installs the dashboard's pages on a scheduler, by name: other modules do not import them."""

    name = "dsinga-dashboard-loader"
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        """Install the pages; a fault there, such as another version of bokeh, fails no run."""
        with contextlib.suppress(Exception):
            importlib.import_module("dsinga.cluster.dashboard").install(scheduler)
