"""Finds the Dask cluster of a call: the given or current client's, the task's, or the one in Dask's settings."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import dask.config
from dask.system import CPU_COUNT
from distributed import Client, rejoin, secede
from distributed.client import _global_clients

from dsinga.api.jobs_with_data import patience_of, wanted_workers
from dsinga.api.runners import ForwardRun, RunLimits, Runner, Train, TrainingOptions
from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import SchedulerLost, UserError
from dsinga.base.registry import register
from dsinga.cluster.connecting.credentials import read_credentials
from dsinga.cluster.connecting.embedded import check_client, connect
from dsinga.cluster.connecting.expected_workers import await_as_many_workers
from dsinga.cluster.connecting.scheduler_probe import await_scheduler
from dsinga.cluster.dask.dask_workers import available_workers, task_client
from dsinga.cluster.graph_grain import find_grain
from dsinga.cluster.inference import forward_on_cluster
from dsinga.cluster.queue.usable_workers import WorkerSelection
from dsinga.cluster.run.driver import train
from dsinga.job import Job
from dsinga.reading.checked_job import CheckedJob

T = TypeVar("T")

# Dask's setting, and the environment variable that sets it.
ADDRESS_SETTING, ADDRESS_VARIABLE = "scheduler-address", "DASK_SCHEDULER_ADDRESS"

_log = logging.getLogger(__name__)


@register("engine", "cluster")
@dataclass
class ClusterSource(Runner):
    """The cluster that a call uses, found in the call's thread and opened in any; or one to start.

    Attributes:
        address: the scheduler's address if there is no client. Without both, a cluster is started.
        origin: how the cluster was found, "" if the caller has named it.
        dask_workers: its number of Dask workers when a run with ``retry`` began there.
    """

    client: Client | None = None
    address: str | None = None
    origin: str = ""
    is_shared: bool = False
    scheduler_file: str | None = None
    security: Any = None
    dask_workers: int = 0

    @property
    def is_running(self) -> bool:
        """Whether the cluster exists already."""
        return any(value is not None for value in (self.client, self.address, self.scheduler_file))

    def computes(self, asks_for_cluster: bool) -> bool:
        """Whether a call computes on a cluster: one runs, or the call asks for one."""
        return self.is_running or self.is_shared or asks_for_cluster

    @staticmethod
    def find(client: Any) -> ClusterSource:
        """Return the cluster of ``client``; for None the one that Dask names, else one to start."""
        return _default_source() if client is None else _source_of(client)

    @staticmethod
    def named(
        scheduler: str | None,
        scheduler_file: str | None,
        tls_ca_file: str | None,
        tls_cert: str | None,
        tls_key: str | None,
    ) -> ClusterSource:
        """Return the cluster that a command's options name."""
        files = tls_ca_file, tls_cert, tls_key
        security = None if files == (None, None, None) else read_credentials(*files)
        if scheduler or scheduler_file:
            return ClusterSource(address=scheduler, scheduler_file=scheduler_file, security=security)
        return replace(find_cluster(), security=security)

    def without_client(self) -> ClusterSource | None:
        """Return the source with which to find a lost scheduler's restart; None if this program owns the cluster."""
        if self.client is None:
            return self if self.is_running else None
        address = scheduler_address(self.client)
        if self.client.cluster is not None or address.startswith("inproc://"):
            return None
        file = self.client.scheduler_file
        return ClusterSource(address=None if file else address, scheduler_file=file, security=self.client.security)

    @contextlib.contextmanager
    def open(self, **embedded: Any) -> Iterator[Client]:
        """Yield a synchronous client of the cluster.

        ``embedded`` are arguments of :func:`dsinga.cluster.connect` for a cluster that is started here.
        """
        with contextlib.ExitStack() as stack:
            client = self._enter(stack, embedded)
            if self.origin:
                _log.info("the Dask cluster at %s is used, %s", scheduler_address(client), self.origin)
                if not available_workers(client):  # it may get some
                    _log.warning("the Dask cluster at %s, %s, has no workers", scheduler_address(client), self.origin)
            stack.enter_context(outside_thread_pool())
            yield client

    @contextlib.contextmanager
    def training(self, checked: CheckedJob, options: TrainingOptions, limits: RunLimits) -> Iterator[Train]:
        """Yield the function that trains a job on the cluster."""
        job, shows_tasks = checked.job, options.grain == "graph"  # which are for looking at on the dashboard
        placing = placing_of(options, limits)
        with self.open_run(options, limits, job, workers=wanted_workers(job), dashboard=shows_tasks) as client:
            yield functools.partial(train, checked, client, **placing)

    @contextlib.contextmanager
    def open_run(self, options: TrainingOptions, limits: RunLimits, job: Job, **embedded: Any) -> Iterator[Client]:
        """Yield a client for a run; after a lost scheduler, wait first for as many Dask workers."""
        patience = patience_of(job)
        with self.open(patience=patience, check=limits.check, **embedded) as client:
            if options.retry:
                await_as_many_workers(client, self.dask_workers, patience, limits.check)
                self.dask_workers = len(available_workers(client))
            yield client

    def train_again(self, train: Callable[[Runner], T], patience: float, check: Callable[[], None]) -> T:
        """Train, and train again after a lost scheduler if one comes back in time; return the result."""
        again = self.without_client()
        runner = self
        while True:
            try:
                return train(runner)
            except SchedulerLost as error:
                if again is None:
                    raise SchedulerLost(f"{error}; it was of this program, so that none is waited for") from error
                place = again.scheduler_file or again.address
                _log.warning("%s; waiting for a scheduler at %s, for %g s at most", error, place, patience)
                await_scheduler(again.address, again.scheduler_file, again.security, patience, check)
                runner = replace(again, dask_workers=runner.dask_workers)

    @contextlib.contextmanager
    def forward(
        self, job: Job, params: ParamArrays, resources: Mapping[str, float] | None, hosts: Sequence[str]
    ) -> Iterator[ForwardRun]:
        """Yield the function that computes forward passes on the cluster."""
        selection = select_workers(resources, hosts)
        where = {"resources": dict(selection.resources) or None, "workers": list(selection.hosts) or None}
        with self.open(patience=patience_of(job)) as client:
            yield ForwardRun(
                forward_on_cluster(job, client, params, selection),
                lambda arrays: client.gather(client.compute(list(arrays), **where)),
            )

    def _connect(self, embedded: dict[str, Any]) -> contextlib.AbstractContextManager[Client]:
        security = {} if self.security is None else {"security": self.security}
        return connect(scheduler=self.address, scheduler_file=self.scheduler_file, **{**embedded, **security})

    def _enter(self, stack: contextlib.ExitStack, embedded: dict[str, Any]) -> Client:
        if self.is_shared and not self.is_running:
            return stack.enter_context(SHARED_CLUSTER.open(embedded["workers"]))
        if self.client is None:
            try:
                return stack.enter_context(self._connect(embedded))
            except UserError as error:
                if self.address is None or not self.origin:
                    raise
                raise UserError(str(error).replace(self.address, f"{self.address}, {self.origin}", 1)) from error
        if not self.client._asynchronous:
            return self.client
        address = scheduler_address(self.client)
        client = Client(address, security=self.client.security, set_as_default=False)
        client.cluster = self.client.cluster  # which says how many Dask workers are still to come
        return stack.enter_context(client)


def find_cluster(client: Any = None, *, waits: bool = False) -> ClusterSource:
    """Return the cluster that a call uses (:func:`dsinga.api.engines.find_runner`), or one to start."""
    runner = client if isinstance(client, Runner) else ClusterSource.find(client)
    if waits:
        runner.check_waits()
    return runner if isinstance(runner, ClusterSource) else ClusterSource()


def _source_of(client: Any) -> ClusterSource:
    check_client(client)
    if not isinstance(client, Client):
        raise UserError(f"client= takes a Dask client, not {client!r}; give distributed.Client(address)")
    return _of_client(client, "")


def _default_source() -> ClusterSource:
    client = task_client()
    if client is not None:
        return _of_client(client, "that of the task's Dask worker")
    client = current_client()
    if client is not None:
        return _of_client(client, "that of the current Dask client")
    address = dask.config.get(ADDRESS_SETTING, None)
    if address:
        variable = os.environ.get(ADDRESS_VARIABLE) == address
        what = f"the environment variable {ADDRESS_VARIABLE}" if variable else f"Dask's setting {ADDRESS_SETTING}"
        return ClusterSource(address=address, origin=f"which {what} names")
    return ClusterSource()


def current_client() -> Client | None:
    """Return the user's current Dask client, None if there is none."""
    try:
        client = Client.current(allow_global=False)
    except ValueError:
        clients = [_global_clients[number] for number in sorted(_global_clients, reverse=True)]
        client = next(
            (candidate for candidate in clients if candidate.status != "closed" and not _is_worker(candidate)), None
        )
    return client


def _is_worker(client: Client) -> bool:
    return client.id.startswith(f"{type(client).__name__}-worker-")


def _of_client(client: Client, origin: str) -> ClusterSource:
    which = "the current Dask client" if origin else "the given Dask client"
    if client.status in ("closing", "closed"):
        raise UserError(f"{which} is closed; create a new one: distributed.Client(address)")
    if client.scheduler is None:
        raise UserError(f"{which} is not connected yet; await it first: client = await Client(..., asynchronous=True)")
    return ClusterSource(client, None, origin, in_loop=client.asynchronous)


def scheduler_address(client: Client) -> str:
    """Return the address of a client's scheduler."""
    assert client.scheduler is not None
    return str(client.scheduler.address)


@contextlib.contextmanager
def outside_thread_pool() -> Iterator[None]:
    """Give a Dask task's thread back to its worker for the block, for instance to wait for another task."""
    has_left = False
    # ValueError: this is no task; AttributeError: none of the pool's threads; KeyError: a task that has left already.
    with contextlib.suppress(ValueError, AttributeError, KeyError):
        secede()
        has_left = True
    try:
        yield
    finally:
        if has_left:
            rejoin()


def placing_of(options: TrainingOptions, limits: RunLimits) -> dict[str, Any]:
    """Return the arguments of :func:`dsinga.cluster.run.driver.train` that say how and where a run trains."""
    selection = select_workers(options.resources, options.hosts)
    return {"grain": find_grain(options.grain), "selection": selection, "max_threads": limits.max_threads}


def select_workers(resources: Mapping[str, float] | None, hosts: Sequence[str]) -> WorkerSelection:
    """Return a selection of Dask workers by resources and hosts."""
    resources, hosts = resources or {}, [hosts] if isinstance(hosts, (str, int)) else list(hosts)
    if not isinstance(resources, Mapping):
        raise UserError(f"resources= takes amounts by name, as in {{'GPU': 1}}, not {resources!r}")
    return WorkerSelection(dict(resources), [str(name) for name in hosts])  # Dask's own names are numbers


class SharedCluster:
    """A Dask worker with a thread for each core, started in this process for its background runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._client: Client | None = None
        self._runs = self._workers = 0

    @contextlib.contextmanager
    def open(self, workers: int) -> Iterator[Client]:
        """Yield a client of the shared cluster, or of a separate one for a run with more workers."""
        with self._lock:
            client = self._join(workers)
        if client is None:
            with connect(workers=workers) as client:
                yield client
            return
        try:
            yield client
        finally:
            with self._lock:
                self._runs -= 1
                if not self._runs:
                    self._client = None
                    self._stack.close()

    def _join(self, workers: int) -> Client | None:
        if self._client is None:
            self._workers = max(CPU_COUNT, workers)
            self._client = self._stack.enter_context(connect(workers=self._workers))
        if workers > self._workers:
            return None
        self._runs += 1
        return self._client


# The shared cluster of this process.
SHARED_CLUSTER = SharedCluster()
