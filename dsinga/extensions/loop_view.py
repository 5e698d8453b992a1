"""The view of a run that extensions have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dsinga.job import Job
from dsinga.training import Metrics


class LoopView(ABC):
    """A view of a run, for extensions: where training stands, and what they may ask of it.

    With several worker groups it is a view of group 0. ``evaluate``, ``params`` and ``set_rate_factor`` are for
    extensions that pause training; for others they raise UserError.

    Attributes:
        job: the job that is trained.
        step: how many steps are done.
        train_steps: the step at which training is complete.
        metrics: the latest value of each metric, by phase and name: {"train/loss": 0.3, "val/accuracy": 0.9}.
        workspace: the folder for files of the run, None if it has none.
        stopped: why training ends before ``train_steps``, "" while it does not.
        seconds_to_stop: estimate of the time that it takes to end in order after one more round, from what rounds,
            pauses and checkpoints took so far.
        samples_per_second: how many records all worker groups together trained on in a second of their last rounds, 0
            before the first round.
    """

    job: Job
    step: int
    train_steps: int
    metrics: Mapping[str, float]
    workspace: Path | None
    stopped: str
    seconds_to_stop: float
    samples_per_second: float

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Seconds since training was asked for."""

    @property
    @abstractmethod
    def rate_factor(self) -> float:
        """The number by which the learning rate of the schedule is multiplied at this step."""

    @property
    @abstractmethod
    def learning_rate(self) -> float:
        """The learning rate of the next step: the schedule's, times ``rate_factor``."""

    @abstractmethod
    def evaluate(self, phase: str, batches: int | None = None) -> dict[str, float]:
        """Return the means of the metrics over the first ``batches`` batches of ``phase``, "val" or "test".

        By default there are as many batches as the job says, ``validate_steps`` or ``test_steps``, or all records, each
        once, if it does not say. Raises UserError for a phase that the job does not run.
        """

    @abstractmethod
    def params(self) -> dict[str, np.ndarray]:
        """Return copies of the params at this step, float32 by name; raise Diverged where one is not finite."""

    @abstractmethod
    def means(self, phase: str, sums: Metrics) -> dict[str, float]:
        """Return sums and counts of metrics, as layers report them, as means under the names that people see."""

    @abstractmethod
    def record(self, phase: str, metrics: Mapping[str, float]) -> None:
        """Add a row of ``phase`` at this step to the history."""

    @abstractmethod
    def stop(self, reason: str, *, resumable: bool = False) -> None:
        """End training at the end of this round, for ``reason``, a clause such as "val/loss has not improved".

        What the job does at the end is done then. A run that is ``resumable`` only writes a checkpoint, so that the run
        that goes on from there has the history of one that was never interrupted. The first reason counts.
        """

    @abstractmethod
    def set_rate_factor(self, from_step: int, factor: float) -> None:
        """Multiply the schedule's learning rate by ``factor`` from ``from_step`` on, which is at least ``step``.

        It holds at the same step wherever params are updated, and is part of checkpoints. Raises UserError for a step
        that is done.
        """

    @abstractmethod
    def write_checkpoint(self) -> None:
        """Write a checkpoint once all extensions have run that are due at this step; none without a workspace."""

    @abstractmethod
    def return_params(self, params: Mapping[str, np.ndarray], remark: str) -> None:
        """Let these params be those of the result; ``remark`` is a sentence that says which ones they are."""
