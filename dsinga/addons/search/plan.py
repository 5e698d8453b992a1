"""The plan of all settings of a search, and one run of one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsinga.addons.search.metric_values import MetricValues, Rung
from dsinga.addons.search.result import setting_folder
from dsinga.addons.search.samplers import SampledSettings
from dsinga.addons.search.setting import Setting, describe_setting
from dsinga.api.runners import TrainingOptions
from dsinga.cluster.background import Run
from dsinga.job import Job


@dataclass
class SearchRun:
    """One run of a search or rung: the setting, its metric, and when training began."""

    number: int
    rung: int
    setting: Setting
    values: MetricValues
    run: Run | None = None
    note_begin: Callable[[], None] = lambda: None
    begun: float = field(default_factory=time.perf_counter)
    is_training: bool = False

    def begin(self) -> None:
        """Note that training begins, after the wait for Dask workers."""
        self.note_begin()
        self.begun, self.is_training = time.perf_counter(), True

    @property
    def name(self) -> str:
        """The number and the setting, for messages."""
        return f"setting {self.number} ({describe_setting(self.setting)})"


@dataclass(frozen=True)
class SearchPlan:
    """The settings and jobs that a search trains, and how it runs them.

    Attributes:
        settings: all settings; with a sampler only those suggested so far.
        jobs: each setting's job to train, by number, or its error.
        make: creates the job of a setting, or returns its error.
        sampled: suggests the settings one after another; None if all are known.
        mode: "min", "max" or "auto": which values of the metric are better.
        rungs: where runs are compared, the last one being the whole run; empty without halving.
        halving: 1 / ``halving`` of the settings continue from one rung to the next.
        asynchronous: whether settings continue before all have ended the rung.
        resume: whether runs that have ended or failed in the workspace are left out.
        folder: the parent folder of the runs' folders, or None.
    """

    settings: list[Setting]
    jobs: dict[int, Job | Exception]
    make: Callable[[Setting], Job | Exception]
    sampled: SampledSettings | None
    options: TrainingOptions
    mode: str
    rungs: Sequence[Rung]
    halving: int
    asynchronous: bool
    resume: bool
    is_part: bool
    folder: Path | None

    @property
    def count(self) -> int:
        """The number of settings of the whole search."""
        return len(self.settings) if self.sampled is None else self.sampled.count

    def folder_of(self, number: int) -> Path | None:
        """Return the folder of a setting's run; None if runs have no folders."""
        return None if self.folder is None else setting_folder(self.folder, number, self.count)
