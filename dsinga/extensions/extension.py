"""Defines Extension, the base class of callbacks, and LoopView, the run as they see it."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dsinga.base.arguments import Remedies
from dsinga.base.arrays import ParamArrays
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.extensions.triggers import AtEnd, Trigger
from dsinga.job import ExtensionConf, Job
from dsinga.job.component import Settings
from dsinga.job.setting_arguments import documented, settings_from, signature
from dsinga.monitor import History
from dsinga.net import NeuralNet
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import Metrics

# What to write in place of names and arguments of Keras's callbacks.
CALLBACKS, ARGUMENTS = (Remedies(Path(__file__).with_name("keras.toml"), name) for name in ("callbacks", "arguments"))


class LoopView(ABC):
    """A run as its extensions see it: step, params, metrics, and methods that change the run.

    With several worker groups it shows group 0. ``evaluate``, ``params``, ``set_params`` and ``set_rate_factor`` raise
    UserError unless the extension pauses training.

    Attributes:
        train_steps: the step at which training is complete.
        metrics: the latest metrics, by phase and name: {"train/loss": 0.3, "val/accuracy": 0.9}.
        stopped: why training ends before ``train_steps``, or "".
        paused: whether training is paused, so that params can be read and set.
        pauses_cheaply: whether a pause after each step costs little.
        seconds_to_stop: the estimated time to end in order.
        samples_per_second: the speed of all worker groups in their last rounds; 0 before the first.
        returned_step: the step of the params that an extension returns; None for the last step, -1 for none.
    """

    job: Job
    step: int
    train_steps: int
    metrics: Mapping[str, float]
    workspace: Path | None
    stopped: str
    paused: bool
    pauses_cheaply: bool
    seconds_to_stop: float
    samples_per_second: float
    returned_step: int | None = None

    @property
    @abstractmethod
    def seconds(self) -> float:
        """How many seconds ago training was requested."""

    @property
    @abstractmethod
    def rate_factor(self) -> float:
        """The factor with which extensions have changed the learning rate at this step."""

    @property
    @abstractmethod
    def learning_rate(self) -> float:
        """The learning rate of the next step, with ``rate_factor``."""

    @abstractmethod
    def evaluate(self, phase: str, batches: int | None = None) -> dict[str, float]:
        """Evaluate the params: return mean metrics over ``batches`` batches of ``phase``, "val" or "test".

        By default it is as many as the job says, or all records. Raises UserError for a phase that the job does not
        run.
        """

    @abstractmethod
    def params(self) -> dict[str, np.ndarray]:
        """Copy the params, float32 by name. Raises Diverged if one is not finite."""

    @abstractmethod
    def updater_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Copy the optimizer's state, by param and slot; {} if it has none."""

    @abstractmethod
    def set_params(
        self, params: Mapping[str, np.ndarray], state: Mapping[str, Mapping[str, np.ndarray]] | None = None
    ) -> None:
        """Continue training from these params, and optionally from an updater state.

        Other params stay unchanged. Workers and servers restart. Raises UserError for wrong params, with several worker
        groups, and if averages of params are kept.
        """

    @abstractmethod
    def means(self, phase: str, sums: Metrics) -> dict[str, float]:
        """Turn metrics, summed over batches, into means by the names that users know."""

    @abstractmethod
    def record(self, phase: str, metrics: Mapping[str, float]) -> None:
        """Add a row of metrics to the history, at this step."""

    @abstractmethod
    def stop(self, reason: str, *, resumable: bool = False) -> None:
        """End training after this round, for ``reason``, a clause such as "val/loss has not improved".

        The job's final actions then run, such as a last test. A ``resumable`` stop only writes a checkpoint. The first
        reason counts.
        """

    @abstractmethod
    def set_rate_factor(self, from_step: int, factor: float) -> None:
        """Multiply the schedule's learning rate by ``factor``, starting at ``from_step``.

        Checkpoints keep it. Raises UserError for a step that is done.
        """

    @abstractmethod
    def write_checkpoint(self) -> None:
        """Request a checkpoint of this step; do nothing without a workspace."""

    @abstractmethod
    def return_params(self, params: Mapping[str, np.ndarray], remark: str, step: int | None = None) -> None:
        """Make the run return these params instead of the last; ``remark`` is a sentence that describes them.

        ``step`` is their step: None for the last, -1 for none.
        """

    @abstractmethod
    def remark(self, sentence: str) -> None:
        """Add a sentence to the result of the run, for its user."""


# Plain values that JSON can hold, and numpy arrays, in dicts with string keys.
State = Mapping[str, Any]


class Extension(ABC):
    """Base class of callbacks: an action of the training loop, which runs when its ``trigger`` fires.

    A subclass sets ``trigger`` and implements :meth:`run`. Checkpoints keep its :meth:`state_dict`.

    A subclass with settings, declared as ``Conf``, sets its trigger in :meth:`set_up`; others do in their constructor.

    Register your own as ``@dsinga.register("extension", "Name")``; a job names it by ``extension { user_type: "Name"
    }``.

    Attributes:
        trigger: when :meth:`run` is called.
        pauses: whether training pauses at exactly the trigger's steps. Otherwise workers may be ahead of the metrics.
        phase: the phase of the rows that it adds to the history.
        conf: the job's message; None if made in Python.
        is_part_of_run: whether its errors are the run's, and it has no state and no name.
        returns_params: whether :meth:`finish` returns other params than the last.
    """

    Conf: ClassVar[type[Settings] | None] = None
    settings: Any = None
    trigger: Trigger
    pauses: bool = True
    phase: str | None = None
    conf: ExtensionConf | None = None
    is_part_of_run: bool = False
    returns_params: bool = False
    __signature__: ClassVar[inspect.Signature | None] = None  # what help() shows, None for that of the constructor

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__signature__ = None
        elif cls.Conf is not None:
            cls.__signature__ = signature(cls.Conf)
        if isinstance(conf := vars(cls).get("Conf"), type):
            cls.__doc__ = documented(cls.__doc__, conf)

    @public
    def __init__(self, *args: Any, **kwargs: Any):
        if self.Conf is None:
            super().__init__(*args, **kwargs)
            return
        if kwargs.get("verbose") in (0, 1, 2, "auto"):  # Keras's; the log says what extensions do, whatever it is
            kwargs.pop("verbose", None)
        self.settings = settings_from(self.Conf, type(self).__name__, args, kwargs, ARGUMENTS)
        self.set_up()

    def set_up(self) -> None:
        """Set the trigger and other things that depend on the settings."""

    def run_after(self, rows: Trigger) -> None:
        """Set a trigger that depends on when the history gets training rows."""

    @property
    def name(self) -> str:
        """The name of the extension in errors and checkpoints: the job's type, or the class name."""
        if self.conf is not None:
            return self.conf.user_type or self.conf.type.name
        return type(self).__name__

    def error(self, message: str, field: str | None = None) -> UserError:
        """Return a UserError about this extension, with its place in the job file."""
        text = f"extension {self.name}: {message}"
        return UserError(text) if self.conf is None else self.conf.error(text, field)

    def change_job(self, checked: CheckedJob) -> Job:
        """Return the job to train in place of a given one; by default the same."""
        return checked.job

    def check(self, workspace: Path | None) -> None:
        """Raise UserError, before training, if the run lacks something that the extension needs."""

    def start(self, loop: LoopView) -> None:
        """Prepare for a run, before the first step and after :meth:`load_state`."""

    @abstractmethod
    def run(self, loop: LoopView) -> None:
        """Act at ``loop.step``: evaluate, write or change something."""

    def go_on(self, loop: LoopView) -> None:
        """Act after all due extensions, right before training continues."""

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Receive the metrics of each step in order, as (sum, count) by name."""

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Receive a new row of the history, {"step", "phase", "time", "loss", ...}."""

    def see_progress(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Receive speed and metrics after a round of steps, {"step", "samples_per_second", "loss", ...}."""

    def finish(self, loop: LoopView) -> None:
        """Act after the last step, when training has ended."""

    def close(self, error: BaseException | None) -> None:
        """Release files and connections at the very end; ``error`` is the error of the run, or None.

        Exceptions raised here are only logged.
        """

    def state_dict(self) -> State:
        """Return the state that a resumed run needs: plain values and arrays."""
        return {}

    def load_state(self, state: State) -> None:
        """Restore the state of a resumed run, from :meth:`state_dict`; an empty state means a new run."""


class Watcher(Extension):
    """Base class of extensions that only watch a run, and show its rows and progress."""

    is_part_of_run = True
    pauses = False

    def __init__(self) -> None:
        self.trigger = AtEnd()

    def run(self, loop: LoopView) -> None:
        """Do nothing: rows and progress are shown as they arrive."""


class RescuedParams(Watcher):
    """Keeps the params of a run even if it fails, with the updater's state and the history.

    After an interrupt or a failure these are the params of the last complete step, or the best ones, or lost. An
    interrupt then ends training in order, even without a workspace.

    Args:
        owner: what keeps the params, for messages: "the model".

    Attributes:
        params: float32 arrays by name; None before the end, or if nothing is left.
        hint: a clause that says which params are kept, or "".
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
        """Says for the log how training ends after an interrupt."""
        return f"and {self._owner} keeps the params"

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Keep a row of the history."""
        self.history.append(dict(row))

    def keep(
        self, step: int, params: ParamArrays, slots: Mapping[str, Mapping[str, np.ndarray]], net: NeuralNet,
        best: ParamArrays | None = None, remarks: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Receive the final params of a run, and the rest of its state.

        An extension may return ``best`` params instead.
        """
        self.step, self.slots, self.net = step, dict(slots), net
        which = "their params" if best is None else "the best params"
        self.hint = "; ".join([f"{self._owner} keeps {which}", *(remarks if best is not None else ())])
        self.params = params if best is None else best  # last of all: then everything else is there, too


def choose_path(
    extension: Extension, workspace: Path | None, given: str | os.PathLike[str] | None, name: str, field: str
) -> Path:
    """Return the file or folder for an extension's results: ``given``, or ``name`` in the run's workspace.

    Raises UserError, naming ``field``, if there is neither, or if it is not writable.
    """
    if given is None and workspace is None:
        raise extension.error(f'give it {field}, as in {field}: "{name}", or the run a workspace to write to', field)
    if given is not None and "://" in str(given):
        raise extension.error(f"it writes local files only, not {given}; give it another {field}", field)
    path = Path(given) if given is not None else (workspace or Path()) / name
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not os.access(existing, os.W_OK) or (existing != path and not existing.is_dir()):
        raise extension.error(f"{path} cannot be written, because of {existing}; give it another {field}", field)
    return path
