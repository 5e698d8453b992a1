"""What a search trains: the plan of all settings, and one run of one of them."""

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
    """One run of a search, or of a rung of it: the setting, what keeps its metric, and when training began.

    ``note_begin`` writes into the folder of the run which setting it is of.
    """

    number: int
    rung: int
    setting: Setting
    values: MetricValues
    run: Run | None = None
    note_begin: Callable[[], None] = lambda: None
    begun: float = field(default_factory=time.perf_counter)
    is_training: bool = False

    def begin(self) -> None:
        """Note that training begins, after the wait for Dask workers; the run has locked its folder."""
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
        settings: all settings; with a sampler those that it has suggested so far.
        jobs: the job of each setting that is to be trained, by its number, or what was wrong with it.
        make: makes the job of a setting, or returns what is wrong with it.
        sampled: suggests the settings one after another; None where all are known.
        options: the arguments of each run, with the workspace of the search.
        mode: "min", "max" or "auto": which values of the metric are better.
        rungs: where runs are compared, the last one being the whole run; none for a search without halving.
        halving: one of so many settings goes on from one rung to the next.
        asynchronous: whether they go on before all settings of the rung have ended it.
        resume: whether runs that have ended or failed in the workspace are left out.
        is_part: whether other programs train the other settings.
        folder: where the runs have their folders, None for nowhere.
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
        """The number of settings."""
        return len(self.settings) if self.sampled is None else self.sampled.count

    def folder_of(self, number: int) -> Path | None:
        """Return the folder of the run of a setting, None where runs have none."""
        return None if self.folder is None else setting_folder(self.folder, number, self.count)
