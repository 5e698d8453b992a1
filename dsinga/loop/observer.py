"""What watches a run: an observer (a progress line, a metrics file, a dashboard), or a model that keeps its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dsinga.base.param_arrays import ParamArrays
from dsinga.engine.engine import Snapshot
from dsinga.extensions.extension import LoopView, Watcher
from dsinga.monitor import History, Row
from dsinga.net import NeuralNet


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


class KeptRun(Watcher):
    """Keeps the params with which a run ends, the updater's state, and the rows of its history.

    A run that is interrupted ends with those of its last complete step, or with the best ones where an extension keeps
    these; so does a run that fails, where they are still there. With this extension an interrupt lets training end in
    order, also without a workspace.

    Args:
        owner: what keeps the params, for messages: "the model".

    Attributes:
        params: float32 arrays by name, None before the run has ended, and where nothing was left of it.
        slots: the updater's state by param and slot; empty for an updater without.
        step: after how many steps the run has ended.
        history: the rows of metrics.
        net: the training net, None before the run has ended.
        hint: a clause that says which params are kept, "" where none are.
    """

    def __init__(self, owner: str):
        super().__init__()
        self._owner = owner
        self.params: ParamArrays | None = None
        self.slots: Mapping[str, Mapping[str, np.ndarray]] = {}
        self.step = 0
        self.history = History()
        self.net: NeuralNet | None = None
        self.hint = ""

    @property
    def sentence(self) -> str:
        """How training ends after an interrupt, for a log."""
        return f"and {self._owner} keeps the params"

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Keep a row."""
        self.history.append(dict(row))

    def keep(self, end: Snapshot, net: NeuralNet, best: ParamArrays | None = None, remarks: Sequence[str] = ()) -> None:
        """Keep the state in which the run of a net has ended.

        ``best`` are the params that an extension returns in their place, and ``remarks`` say which ones these are.
        """
        self.step, self.slots, self.net = end.step, dict(end.state or {}), net
        which = "their params" if best is None else "the best params"
        self.hint = "; ".join([f"{self._owner} keeps {which}", *(remarks if best is not None else ())])
        self.params = end.params if best is None else best  # last of all: then everything else is there, too
