"""Trains a job with faults and without, in turn, so that both meet the same load of the machine."""

from __future__ import annotations

import contextlib
import logging
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from distributed import Client

from dsinga.api import train
from dsinga.base.errors import RunError
from dsinga.cluster import available_workers
from dsinga.extensions import Extension, LoopView
from dsinga.extensions.triggers import AtEnd
from dsinga.job import Job
from dsinga.monitor import RECOVERY, read_metrics
from dsinga.training import Metrics
from tools.chaos.faults import CausedFault, FaultInjector, wait_for_return

_log = logging.getLogger(__name__)

# The longest run with faults, in minutes: longer trials are cut into several, so that the machine's speed is the same.
LONGEST_MINUTES = 2.0
# Steps before a run without faults, so that processes which have just started do not make it slow.
WARM_UP_STEPS = 20
# More steps than any run takes that is stopped after a time.
MANY_STEPS = 100_000_000


class Recovery(NamedTuple):
    """A row of the history about a recovery, and when the next new step was done, by ``time.monotonic``."""

    row: Mapping[str, Any]
    at: float


class RecoveryWatch(Extension):
    """Notes the steps of a run, and which time its rows count from; may stop the run after a time.

    Args:
        seconds: how long to train, 0 for all steps of the job.

    Attributes:
        step: how many steps are done.
        zero: the moment from which the "time" of rows counts, by ``time.monotonic``.
    """

    pauses = False

    def __init__(self, seconds: float = 0.0):
        self.trigger = AtEnd()
        self._seconds = seconds
        self._began = time.monotonic()
        self.zero = self._began
        self.step = 0

    def start(self, loop: LoopView) -> None:
        """Note when training begins."""
        self._began = time.monotonic()
        self.zero = self._began - loop.seconds

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Count a step; stop when the time is over."""
        self.step = loop.step
        if self._seconds and not loop.stopped and time.monotonic() - self._began > self._seconds:
            loop.stop(f"{self._seconds:g} s are over")

    def run(self, loop: LoopView) -> None:
        """Do nothing."""


def read_recoveries(workspace: Path, zero: float) -> list[Recovery]:
    """Return the recoveries in the ``metrics.jsonl`` of a workspace, however its run has ended.

    ``zero`` is the moment from which the "time" of its rows counts.
    """
    path = workspace / "metrics.jsonl"
    rows = read_metrics(path).phase(RECOVERY) if path.exists() else ()
    return [Recovery(row, zero + row["time"]) for row in rows]


@dataclass
class Trial:
    """A run that has ended.

    Attributes:
        steps: how many steps it has done.
        seconds: how long it took, from the call to the result.
        params: the params at its end, empty where it ended by an error.
        faults: those that happened meanwhile.
        recoveries: those that the run reported.
        error: what ended it, "" if nothing did.
    """

    steps: int = 0
    seconds: float = 0.0
    params: Mapping[str, np.ndarray] = field(default_factory=dict)
    faults: Sequence[CausedFault] = ()
    recoveries: Sequence[Recovery] = ()
    error: str = ""


class Pair(NamedTuple):
    """A run without faults, None where nothing is compared, and one with faults over as many steps."""

    undisturbed: Trial | None
    disturbed: Trial

    @property
    def is_equal(self) -> bool:
        """Whether both runs have ended with the same bits."""
        first, second = self.undisturbed, self.disturbed
        return (
            first is not None
            and first.steps == second.steps
            and first.params.keys() == second.params.keys() != set()
            and all(np.array_equal(value, second.params[name]) for name, value in first.params.items())
        )


@dataclass(frozen=True)
class Chaos:
    """What to do to a job.

    Attributes:
        kinds: the kinds of faults, names of ``faults.KINDS``.
        mtbf: the mean time between two faults in the cluster, in seconds.
        seed: of the random moments and victims.
        minutes: how long to train with faults in all; 0 for the steps of the job, once.
        compare: whether each run with faults is compared to one without.
        data_root: where relative paths of the job are looked up last.
    """

    kinds: Sequence[str]
    mtbf: float
    seed: int = 0
    minutes: float = 0.0
    compare: bool = True
    data_root: str | None = None

    def run(self, job: Job, client: Client) -> Iterator[Pair]:
        """Train the job on the cluster of ``client``; yield a pair of runs as soon as both have ended.

        Raises RunError where a run without faults fails, or the cluster does not become whole again.
        """
        workers = len(available_workers(client))
        count = math.ceil(self.minutes / LONGEST_MINUTES) if self.compare else 1
        seconds = 60 * self.minutes / max(count, 1)
        if self.minutes:
            job = job.replace(epochs=0, train_steps=MANY_STEPS)
        for number in range(max(count, 1)):
            undisturbed = None
            if self.compare:
                self._train(job.replace(epochs=0, train_steps=WARM_UP_STEPS), client, RecoveryWatch())
                undisturbed = self._train(job, client, RecoveryWatch(0 if number else seconds))
                job = job.replace(train_steps=undisturbed.steps)
            injector = FaultInjector(client, self.kinds, self.mtbf, hash((self.seed, number)))
            disturbed = self._train(job, client, RecoveryWatch(0 if self.compare else seconds), injector)
            without = f"{undisturbed.seconds:.1f} s without faults, " if undisturbed else ""
            _log.info("run %d: %d steps took %s%.1f s with", number + 1, disturbed.steps, without, disturbed.seconds)
            yield Pair(undisturbed, disturbed)
            if disturbed.error:
                return
            wait_for_return(client, workers)

    def _train(self, job: Job, client: Client, watch: RecoveryWatch, injector: FaultInjector | None = None) -> Trial:
        """Train once. An error of a run with faults is a part of its trial."""
        trial, began = Trial(), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="dsinga-chaos-") as folder:
            try:
                with injector or contextlib.nullcontext():
                    result = train(
                        job, client, workspace=folder, data_root=self.data_root, extensions=[watch], progress=False
                    )
                trial.params, trial.steps = result.params, result.step
            except RunError as error:
                if injector is None:
                    raise
                trial.error, trial.steps = f"{type(error).__name__}: {error}", watch.step
            trial.seconds = time.monotonic() - began
            trial.recoveries = read_recoveries(Path(folder), watch.zero)
        trial.faults = injector.faults if injector else ()
        return trial
