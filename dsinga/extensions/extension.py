"""The interface of extensions: what a training loop does besides training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsinga.errors import UserError
from dsinga.extensions.loop_view import LoopView
from dsinga.extensions.triggers import AtEnd, Trigger
from dsinga.job import ExtensionConf
from dsinga.training import Metrics

# Plain values that JSON can hold, and numpy arrays, in dicts with string keys.
State = Mapping[str, Any]


class Extension(ABC):
    """An action of the training loop, which runs when its ``trigger`` says so.

    A subclass sets ``trigger`` in its constructor and does its work in :meth:`run`. A subclass that remembers anything
    between its runs returns it from :meth:`state_dict` and takes it back in :meth:`load_state`, so that a resumed run
    does what an unbroken one would have done.

    A user's own is registered as ``@dsinga.register("extension", "Name")``; a job names it by
    ``extension { user_type: "Name" }``, and the class is called with that message, an ExtensionConf.

    Attributes:
        trigger: when :meth:`run` is called.
        pauses: whether training pauses meanwhile, at exactly the steps of the trigger. Where it does not, workers may
            be further on than the metrics that the extension sees.
        phase: the phase of the rows that it adds to the history, None where it adds none.
        conf: the message of the job that it was made from, None for one that was made in Python.
        is_part_of_run: whether it belongs to the run itself: its errors are the run's, it has no state and no name.
    """

    trigger: Trigger
    pauses: bool = True
    phase: str | None = None
    conf: ExtensionConf | None = None
    is_part_of_run: bool = False

    @property
    def name(self) -> str:
        """The name in errors and checkpoints: the type that the job gives, else the name of the class."""
        if self.conf is not None:
            return self.conf.user_type or self.conf.type.name
        return type(self).__name__

    def error(self, message: str, field: str | None = None) -> UserError:
        """Return the UserError that says ``message`` of this extension, with its place in the job file."""
        text = f"extension {self.name}: {message}"
        return UserError(text) if self.conf is None else self.conf.error(text, field)

    def check(self, workspace: Path | None) -> None:
        """Raise UserError, before anything is done, for what the extension needs and a run in ``workspace`` lacks."""

    def start(self, loop: LoopView) -> None:
        """Prepare for a run, before the first step and after :meth:`load_state`.

        A run may be resumed where this extension stopped it: by its state, it decides here whether to stop it again.
        """

    @abstractmethod
    def run(self, loop: LoopView) -> None:
        """Do what is due at ``loop.step``."""

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Take the metrics of one training step, (sum, count) by name; called after each step, in order."""

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Take a row of the history, {"step", "phase", "time", "loss", ...}; called for each one when it is added."""

    def see_progress(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Take the state of things after a round, {"step", "samples_per_second", "loss", ...}."""

    def finish(self, loop: LoopView) -> None:
        """Do what is to be done after the last step, when the last checkpoint has been written."""

    def close(self, error: BaseException | None) -> None:
        """Release files and connections, however the run has ended: ``error`` ended it, None if nothing did.

        Called once, last of all. What it raises is logged, and leaves the run's result, or its error, as it is.
        """

    def state_dict(self) -> State:
        """Return what a resumed run must know: plain values and arrays."""
        return {}

    def load_state(self, state: State) -> None:
        """Go on from a state of :meth:`state_dict`; an empty one is that of a new run."""


class Watcher(Extension):
    """An extension of the run itself, which only looks: it shows rows and progress to people or programs."""

    is_part_of_run = True
    pauses = False

    def __init__(self) -> None:
        self.trigger = AtEnd()

    def run(self, loop: LoopView) -> None:
        """Do nothing: rows and progress are shown when they come."""
