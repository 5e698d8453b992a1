"""Finding the Dask cluster of a call: that of the given client, of the task, the current one, that of Dask's settings.

Where there is none of these, a cluster is started in this process for the call. All of the API, the estimators, the
models of ``dsinga.nn`` and the commands come here.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from dsinga import cluster
from dsinga.base.errors import UserError

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client

P = ParamSpec("P")
T = TypeVar("T")

# Dask's setting, and the environment variable that sets it.
ADDRESS_SETTING, ADDRESS_VARIABLE = "scheduler-address", "DASK_SCHEDULER_ADDRESS"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClusterSource:
    """A cluster that a call is going to use, found in the thread of the call, and opened in any thread.

    Attributes:
        client: a client of it, None where none exists yet.
        address: the address of its scheduler, where there is no client. Without both, a cluster is to be started.
        origin: how the cluster was found, "" where the caller has named it.
        in_loop: whether the client is asynchronous and its event loop runs the caller, who must not wait here.
        is_shared: whether a cluster that is to be started is that which background runs of this process share.
        scheduler_file: the file of its scheduler, in place of an address.
        security: the credentials of TLS, None for those of Dask's settings.
    """

    client: Client | None = None
    address: str | None = None
    origin: str = ""
    in_loop: bool = False
    is_shared: bool = False
    scheduler_file: str | None = None
    security: Any = None

    @property
    def is_running(self) -> bool:
        """Whether the cluster is there already."""
        return any(value is not None for value in (self.client, self.address, self.scheduler_file))

    def computes_here(self, *, asks_for_cluster: bool) -> bool:
        """Whether a call computes in this process: no cluster runs, and none is asked for."""
        return not (self.is_running or self.is_shared or asks_for_cluster)

    def without_client(self) -> ClusterSource | None:
        """Return where a scheduler may be started again once that of the cluster is lost.

        That is its address or its file; None where the scheduler belongs to a cluster object of this program.
        """
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

        A Dask task that calls this leaves the thread pool of its worker meanwhile, so that others can use the thread.
        ``embedded`` are arguments of :func:`dsinga.cluster.connect` for a cluster that is started here. Where the
        caller has not named the cluster, the log says which it is. Raises UserError where no scheduler answers.
        """
        with contextlib.ExitStack() as stack:
            client = self._enter(stack, embedded)
            if self.origin:
                _log.info("the Dask cluster at %s is used, %s", scheduler_address(client), self.origin)
                if not cluster.available_workers(client):  # it may get some
                    _log.warning("the Dask cluster at %s, %s, has no workers", scheduler_address(client), self.origin)
            stack.enter_context(outside_thread_pool())
            yield client

    def _connect(self, embedded: dict[str, Any]) -> contextlib.AbstractContextManager[Client]:
        security = {} if self.security is None else {"security": self.security}
        return cluster.connect(scheduler=self.address, scheduler_file=self.scheduler_file, **{**embedded, **security})

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
        from distributed import Client

        address = scheduler_address(self.client)
        client = Client(address, security=self.client.security, set_as_default=False)
        client.cluster = self.client.cluster  # which says how many Dask workers are still to come
        return stack.enter_context(client)


def find_cluster(client: Any = None, *, waits: bool = False) -> ClusterSource:
    """Return the cluster of a call.

    It is the given client's; within a Dask task the worker's; that of the current client (``Client.current()``); that
    of Dask's setting ``scheduler-address``, which the environment variable DASK_SCHEDULER_ADDRESS sets; else one that
    is to be started in this process.

    Args:
        client: what the caller has given: a Dask client, None, or a ClusterSource that was found earlier.
        waits: whether the call can only wait for its result, so that it is refused in the event loop of its client.

    Raises UserError for what is not a client, and for a client that is closed or not connected yet.
    """
    source = (
        client if isinstance(client, ClusterSource) else _source_of(client) if client is not None else _default_source()
    )
    if waits and source.in_loop:
        raise UserError(
            "this call waits for its result, so it cannot use an asynchronous Dask client in the event loop of that; "
            "call it in a thread, as in `await asyncio.to_thread(function, ...)`, or give a client with "
            "asynchronous=False"
        )
    return source


def _source_of(client: Any) -> ClusterSource:
    from distributed import Client

    cluster.check_client(client)
    if not isinstance(client, Client):
        raise UserError(f"client= takes a Dask client, not {client!r}; give distributed.Client(address)")
    return _of_client(client, "")


def _default_source() -> ClusterSource:
    """Return the cluster of a call that names none."""
    import dask.config

    if "distributed" in sys.modules:  # else there is no client, and a job may need none: importing takes half a second
        from dsinga.cluster.dask.dask_workers import task_client

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
    """Return the Dask client that is current where this is called, None where there is none.

    A Dask worker in this process may have made a client of its own the current one; that is not taken.
    """
    from distributed import Client
    from distributed.client import _global_clients

    try:
        client = Client.current(allow_global=False)
    except ValueError:
        clients = [_global_clients[number] for number in sorted(_global_clients, reverse=True)]
        client = next(
            (candidate for candidate in clients if candidate.status != "closed" and not _is_worker(candidate)), None
        )
    return client


def _is_worker(client: Client) -> bool:
    """Whether a Dask worker has made the client, for tasks that ask for one."""
    return client.id.startswith(f"{type(client).__name__}-worker-")


def _of_client(client: Client, origin: str) -> ClusterSource:
    which = "the current Dask client" if origin else "the given Dask client"
    if client.status in ("closing", "closed"):
        raise UserError(f"{which} is closed; create a new one: distributed.Client(address)")
    if client.scheduler is None:
        raise UserError(f"{which} is not connected yet; await it first: client = await Client(..., asynchronous=True)")
    return ClusterSource(client, None, origin, client.asynchronous)


def scheduler_address(client: Client) -> str:
    """Return the address of a client's scheduler."""
    assert client.scheduler is not None
    return str(client.scheduler.address)


@contextlib.contextmanager
def open_client(client: Any = None, **embedded: Any) -> Iterator[Client]:
    """Yield a synchronous client of the cluster that :func:`find_cluster` finds for a call that waits.

    ``embedded`` are arguments of :func:`dsinga.cluster.connect` for a cluster that is started here.
    """
    with find_cluster(client, waits=True).open(**embedded) as opened:
        yield opened


@contextlib.contextmanager
def outside_thread_pool() -> Iterator[None]:
    """Let a Dask task leave the threads of its worker for a while: the worker runs another one, such as a round.

    In other threads, and in a task that has left already, this does nothing.
    """
    from distributed import rejoin, secede

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


def awaitable(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function`` that returns an awaitable of its result in the event loop of its asynchronous client.

    It is called in a thread then, with a synchronous client of the same scheduler. ``function`` has an argument
    ``client``, for which it takes a :class:`ClusterSource`, too.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        source = find_cluster(bound.arguments.get("client"))
        bound.arguments["client"] = replace(source, in_loop=False)
        run = functools.partial(function, *bound.args, **bound.kwargs)
        return cast(T, in_thread(run)) if source.in_loop else run()

    return call


async def in_thread(run: Callable[[], T], cancelled: threading.Event | None = None) -> T:
    """Return the result of ``run``, called in a thread of its own.

    To cancel this sets ``cancelled`` and waits until ``run`` has ended, where it looks at that.
    """
    # The threads of the loop's own pool could all be busy with long calls.
    executor = ThreadPoolExecutor(1, thread_name_prefix="dsinga-call")
    try:
        context = contextvars.copy_context()
        result = asyncio.get_running_loop().run_in_executor(executor, context.run, run)
        if cancelled is None:
            return await result
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            cancelled.set()
            with contextlib.suppress(Exception):  # the call is cancelled: how it ends is of no interest
                await result
            raise
    finally:
        executor.shutdown(wait=False)


class SharedCluster:
    """A cluster of one Dask worker with one thread for each core, which lasts as long as a run uses it.

    Runs share it rather than have one each, so that they wait for free threads instead of disturbing each other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._client: Client | None = None
        self._runs = self._workers = 0

    @contextlib.contextmanager
    def open(self, workers: int) -> Iterator[Client]:
        """Yield a client of the cluster, or of one of its own for a run with more workers than it has."""
        with self._lock:
            client = self._join(workers)
        if client is None:
            with cluster.connect(workers=workers) as client:
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
        """Return the client for one run more, None if the cluster is too small for it."""
        if self._client is None:
            from dask.system import CPU_COUNT

            self._workers = max(CPU_COUNT, workers)
            self._client = self._stack.enter_context(cluster.connect(workers=self._workers))
        if workers > self._workers:
            return None
        self._runs += 1
        return self._client


# That of this process.
SHARED_CLUSTER = SharedCluster()
