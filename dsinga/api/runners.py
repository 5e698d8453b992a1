"""Defines Runner, which trains and predicts for API calls, and the runner in this process."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar, cast

from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.extensions import ExtensionLike
from dsinga.job import Job
from dsinga.loop.initial_state import RunOptions
from dsinga.loop.local_run import continue_locally, trains_locally
from dsinga.loop.run_loop import TrainedParams
from dsinga.loop.view import Observer
from dsinga.passes.inference import forward_in_threads
from dsinga.passes.predictor import Forward
from dsinga.reading.checked_job import CheckedJob

T = TypeVar("T")

# Trains a job, for an observer.
Train = Callable[[Observer, RunOptions], TrainedParams]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options of a training run, as given to :func:`dsinga.train`."""

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
        """Make options of the arguments of an API function. Raises TypeError for an unknown one."""
        names = [each.name for each in fields(cls)]
        for name in options:
            if name not in names:
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{nearest(name, names)}")
        return cls(**options)

    @property
    def asks_for_cluster(self) -> bool:
        """Whether an option is set that only a run on a cluster supports."""
        return self.grain != "round" or self.retry or bool(self.resources or self.hosts)


class RunLimits(NamedTuple):
    """Limits of a run besides its options: threads, and a check for cancellation.

    Attributes:
        max_threads: the most kernel threads of each worker, None for all that are free.
        check: called while the run waits; raises Cancelled to end it.
    """

    max_threads: int | None
    check: Callable[[], None]


class ForwardRun(NamedTuple):
    """How to compute forward passes, here or on a cluster.

    Attributes:
        compute: returns dask arrays as numpy arrays, computed where the passes are.
    """

    forward: Forward
    compute: Callable[[Sequence[Any]], Sequence[Any]]


@dataclass
class Runner(ABC):
    """Trains and predicts for API calls: on a cluster, or in this process.

    Attributes:
        in_loop: whether the caller runs in an event loop, which must not wait.
    """

    in_loop: bool = field(default=False, kw_only=True)

    @abstractmethod
    def computes(self, asks_for_cluster: bool) -> bool:
        """Whether this runner can compute a call, which may need a cluster."""

    def check_waits(self) -> None:
        """Raise UserError in an event loop for a call that can only wait for its result."""
        if self.in_loop:
            raise UserError(
                "this call waits for its result, so it cannot use an asynchronous Dask client in the event loop of "
                "that; call it in a thread, as in `await asyncio.to_thread(function, ...)`, or give a client with "
                "asynchronous=False"
            )

    @abstractmethod
    def training(
        self, checked: CheckedJob, options: TrainingOptions, limits: RunLimits
    ) -> AbstractContextManager[Train]:
        """Yield the function that trains a job on this runner."""

    def train_again(self, train: Callable[[Runner], T], patience: float, check: Callable[[], None]) -> T:
        """Train; if this runner is lost, train again on another that comes in time."""
        return train(self)

    @abstractmethod
    def forward(
        self, job: Job, params: ParamArrays, resources: Mapping[str, float] | None, hosts: Sequence[str]
    ) -> AbstractContextManager[ForwardRun]:
        """Yield how to compute forward passes of ``params``, on the named hosts with these resources."""


class ThisProcess(Runner):
    """Trains and predicts in threads of this process, without a cluster."""

    def computes(self, asks_for_cluster: bool) -> bool:
        """Whether a call can be computed without a cluster."""
        return not asks_for_cluster

    @contextlib.contextmanager
    def training(self, checked: CheckedJob, options: TrainingOptions, limits: RunLimits) -> Iterator[Train]:
        """Yield the function that trains a job with one worker in this process."""
        assert trains_locally(checked.job)
        yield lambda observer, run: continue_locally(checked, observer, run, max_threads=limits.max_threads)

    @contextlib.contextmanager
    def forward(
        self, job: Job, params: ParamArrays, resources: Mapping[str, float] | None, hosts: Sequence[str]
    ) -> Iterator[ForwardRun]:
        """Yield how to compute forward passes in threads."""
        yield ForwardRun(forward_in_threads(job, params), _compute_in_threads)


def _compute_in_threads(arrays: Sequence[Any]) -> Sequence[Any]:
    import dask

    return cast(Sequence[Any], dask.compute(*arrays, scheduler="threads"))


THIS_PROCESS = ThisProcess()
