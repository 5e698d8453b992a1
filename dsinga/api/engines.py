"""Runners, which train and predict for calls of the API: in this process, or on an engine found by name."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from dsinga.base.arrays import ParamArrays
from dsinga.base.error_frames import shortened
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, nearest
from dsinga.extensions import ExtensionLike
from dsinga.job import Job
from dsinga.loop.initial_state import RunOptions
from dsinga.loop.local_run import continue_locally, trains_locally
from dsinga.loop.run_loop import TrainedParams
from dsinga.loop.view import Observer
from dsinga.passes.inference import forward_in_threads
from dsinga.passes.predictor import Forward
from dsinga.passes.setting_files import may_be_set
from dsinga.reading.checked_job import CheckedJob

P = ParamSpec("P")
T = TypeVar("T")

# Trains a job, for an observer.
Train = Callable[[Observer, RunOptions], TrainedParams]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The arguments of :func:`dsinga.train` besides the job and the client."""

    data: Any = None
    epochs: int | None = None
    workspace: str | os.PathLike[str] | None = None
    data_root: str | os.PathLike[str] | None = None
    workers: int | None = None
    resume: bool | str | os.PathLike[str] = False
    progress: bool = True
    grain: str = "round"
    extensions: Sequence[ExtensionLike] = ()
    params: ParamArrays | str | os.PathLike[str] | None = None
    updater_state: Mapping[str, Mapping[str, Any]] | None = None
    resources: Mapping[str, float] | None = None
    hosts: Sequence[str] = ()
    retry: bool = False

    @classmethod
    def of(cls, function: str, options: Mapping[str, Any]) -> TrainingOptions:
        """Return the options that a function of the API was given. Raises TypeError for one that there is not."""
        names = [each.name for each in fields(cls)]
        for name in options:
            if name not in names:
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{nearest(name, names)}")
        return cls(**options)

    @property
    def asks_for_cluster(self) -> bool:
        """Whether an option is set that has a meaning on a cluster only."""
        return self.grain != "round" or self.retry or bool(self.resources or self.hosts)


class RunLimits(NamedTuple):
    """What limits a run, besides its options.

    Attributes:
        max_threads: the most kernel threads of each worker, None for all that are free.
        check: is called while the run waits, and raises Cancelled to end it.
    """

    max_threads: int | None
    check: Callable[[], None]


class ForwardRun(NamedTuple):
    """Computes forward passes.

    Attributes:
        forward: the forward passes of a net.
        compute: returns dask arrays as numpy arrays, computed where the passes are.
    """

    forward: Forward
    compute: Callable[[Sequence[Any]], Sequence[Any]]


@dataclass
class Runner(ABC):
    """Trains and predicts for calls of the API; it is found in the thread of a call, and used in any thread.

    Attributes:
        in_loop: whether an event loop, which must not wait here, runs the caller.
    """

    in_loop: bool = field(default=False, kw_only=True)

    @abstractmethod
    def for_call(self, asks_for_cluster: bool) -> Runner:
        """Return what computes a call: this, or this process, unless the call asks for what a cluster alone does."""

    @abstractmethod
    def training(
        self, checked: CheckedJob, options: TrainingOptions, limits: RunLimits
    ) -> AbstractContextManager[Train]:
        """Yield the function that trains a job."""

    def train_again(self, train: Callable[[Runner], T], patience: float, check: Callable[[], None]) -> T:
        """Return the result of ``train(self)``; call it again where this is lost and another comes in time.

        ``patience`` are the seconds of the wait, during which ``check`` is called.
        """
        return train(self)

    @abstractmethod
    def forward(
        self, job: Job, params: ParamArrays, resources: Mapping[str, float] | None, hosts: Sequence[str]
    ) -> AbstractContextManager[ForwardRun]:
        """Yield what computes forward passes of params, on the hosts that are named and have the resources."""


class ThisProcess(Runner):
    """Computes calls in the threads of this process."""

    def for_call(self, asks_for_cluster: bool) -> Runner:
        """Return this, or a cluster that is started here."""
        return cast(Runner, lookup("engine", "cluster")()) if asks_for_cluster else self

    @contextlib.contextmanager
    def training(self, checked: CheckedJob, options: TrainingOptions, limits: RunLimits) -> Iterator[Train]:
        """Yield the function that trains a job of one worker."""
        assert trains_locally(checked.job)
        yield lambda observer, run: continue_locally(checked, observer, run, max_threads=limits.max_threads)

    @contextlib.contextmanager
    def forward(
        self, job: Job, params: ParamArrays, resources: Mapping[str, float] | None, hosts: Sequence[str]
    ) -> Iterator[ForwardRun]:
        """Yield what computes forward passes in threads."""
        yield ForwardRun(forward_in_threads(job, params), _compute_in_threads)


def _compute_in_threads(arrays: Sequence[Any]) -> Sequence[Any]:
    import dask

    return cast(Sequence[Any], dask.compute(*arrays, scheduler="threads"))


THIS_PROCESS = ThisProcess()


def find_runner(client: Any = None, *, waits: bool = False) -> Runner:
    """Return the runner for a call: the cluster of a client, or this process.

    Args:
        client: what the caller has given: a Dask client, None, or a Runner. For None it is the cluster of the task's
            Dask worker, of the current client, or that of Dask's setting ``scheduler-address``, if there is any.
        waits: whether the call can only wait for its result, so that it is refused in the event loop of its client.

    Raises UserError for what is not a client, and for a client that is closed or not connected yet.
    """
    if client is None and not _may_have_cluster():
        return THIS_PROCESS
    runner = client if isinstance(client, Runner) else cast(Runner, lookup("engine", "cluster").find(client))
    if waits and runner.in_loop:
        raise UserError(
            "this call waits for its result, so it cannot use an asynchronous Dask client in the event loop of that; "
            "call it in a thread, as in `await asyncio.to_thread(function, ...)`, or give a client with "
            "asynchronous=False"
        )
    return runner


def _may_have_cluster() -> bool:
    """Whether this process may have a Dask client, or Dask's settings may name a scheduler."""
    if may_be_set("scheduler-address"):
        import dask.config

        if dask.config.get("scheduler-address", None):
            return True
    try:
        return "distributed" in sys.modules and bool(lookup("engine", "cluster"))
    except UserError:  # the cluster's part of dsinga is not installed
        return False


def awaitable(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function`` that returns an awaitable of its result in the event loop of its asynchronous client.

    It is called in a thread then, with a synchronous client of the same scheduler. ``function`` has an argument
    ``client``, for which it takes a :class:`Runner`, too.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        runner = find_runner(bound.arguments.get("client"))
        bound.arguments["client"] = replace(runner, in_loop=False)
        run = functools.partial(function, *bound.args, **bound.kwargs)
        return cast(T, in_thread(run)) if runner.in_loop else run()

    return call


async def in_thread(run: Callable[[], T], cancelled: threading.Event | None = None) -> T:
    """Return the result of ``run``, called in a thread of its own.

    To cancel this sets ``cancelled`` and waits until ``run`` has ended, where it looks at that.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

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
    except UserError as error:
        raise shortened(error) from error.__cause__  # DSINGA_TRACEBACK=all shows the frames left out here
    finally:
        executor.shutdown(wait=False)
