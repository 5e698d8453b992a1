"""Sends events to Dask's scheduler in the background, and lets it load the dashboard that shows them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import importlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.protocol.pickle import dumps

# The topic of the events.
TOPIC = "dsinga"
# Events that may wait until the scheduler has taken those before: of a scheduler that is slower, some are left out.
MAX_WAITING = 20


class EventSender:
    """Sends events to the scheduler of a client, in their order, without waiting for it.

    Methods with an underscore run on the client's event loop.
    """

    def __init__(self, client: Client):
        self._client = client
        self._waiting: collections.deque[dict[str, Any]] = collections.deque()
        self._task: asyncio.Task[None] | None = None  # sends what waits
        self._is_loaded = False

    def send(self, event: dict[str, Any]) -> None:
        """Send an event; a round is left out while too many events wait."""
        if len(self._waiting) < MAX_WAITING or event["event"] != "round":
            self._waiting.append(event)
            self._call(self._wake)

    def wait(self, seconds: float) -> None:
        """Wait at most some seconds until all events have been sent."""
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
    """Installs :mod:`dsinga.dashboard`, which its name refers to: the cluster's modules do not import the pages."""

    name = "dsinga-dashboard-loader"
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        """Install the pages. What is missing or wrong there, such as another version of bokeh, fails no run."""
        with contextlib.suppress(Exception):
            importlib.import_module("dsinga.dashboard").install(scheduler)
