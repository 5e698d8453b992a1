"""What watches a run: an observer, such as a progress line, a metrics file or a dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dsinga.extensions.extension import LoopView, Watcher
from dsinga.monitor import Row


class Observer(Protocol):
    """Something that is told how a run goes."""

    def waiting(self, sentence: str) -> None:
        """Learn that the run waits for Dask workers which other runs hold: after a second, then every five minutes."""

    def begin(self, step: int) -> None:
        """Learn that everything has been checked and training is about to go on from ``step``."""

    def record(self, row: Row) -> None:
        """Take a row of the history: {"step", "phase": "train" | "val" | "test", "time", "loss", ...}."""

    def progress(self, row: Row) -> None:
        """Take the state of things after a round: {"step", "samples_per_second", "loss", ...}."""


class ObserverWatcher(Watcher):
    """Tells an observer the rows and the progress of a run."""

    def __init__(self, observer: Observer):
        super().__init__()
        self._observer = observer

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Pass on a row of the history."""
        self._observer.record(dict(row))

    def see_progress(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Pass on the state of things after a round."""
        self._observer.progress(dict(row))
