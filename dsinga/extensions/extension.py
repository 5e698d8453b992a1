"""The interface of extensions (callbacks of the training loop), and of the view that they have of a run."""

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
    """A view of a run for extensions: the step, params and metrics, and methods that change the course of the run.

    With several worker groups it is a view of group 0. ``evaluate``, ``params`` and ``set_rate_factor`` are for
    extensions that pause training, as is ``set_params``; for others they raise UserError.

    Attributes:
        job: the job that is trained.
        step: how many steps are done.
        train_steps: the step at which training is complete.
        metrics: the latest value of each metric, by phase and name: {"train/loss": 0.3, "val/accuracy": 0.9}.
        workspace: the folder for files of the run, None if it has none.
        stopped: why training ends before ``train_steps``, "" while it does not.
        paused: whether training stands, so that the params may be read and set.
        pauses_cheaply: whether training can pause after each step at little cost, as it can in this process.
        seconds_to_stop: estimate of the time that it takes to end in order after one more round, from what rounds,
            pauses and checkpoints took so far.
        samples_per_second: how many records all worker groups together trained on in a second of their last rounds, 0
            before the first round.
        returned_step: the step of the params that an extension returns, None for the last one, -1 for none.
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
        """Seconds since training was asked for."""

    @property
    @abstractmethod
    def rate_factor(self) -> float:
        """The factor of the schedule's learning rate at this step."""

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
    def updater_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Return a copy of the updater's state, by param and slot; {} for an updater without."""

    @abstractmethod
    def set_params(
        self, params: Mapping[str, np.ndarray], state: Mapping[str, Mapping[str, np.ndarray]] | None = None
    ) -> None:
        """Let training go on from these params at this step, and from a state of the updater where one is given.

        Params that are not among them stay as they are. After the last step they are those of the result. Raises
        UserError for params that the net lacks or of another shape, and while several worker groups train, or averages
        of params are kept. Workers and servers start again.
        """

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
    def return_params(self, params: Mapping[str, np.ndarray], remark: str, step: int | None = None) -> None:
        """Let these params be those of the result; ``remark`` is a sentence that says which ones they are.

        ``step`` is the step that they are of, None for the last one, -1 for params of no step. The params of a later
        call take their place.
        """

    @abstractmethod
    def remark(self, sentence: str) -> None:
        """Add a sentence about the result."""


# Plain values that JSON can hold, and numpy arrays, in dicts with string keys.
State = Mapping[str, Any]


class Extension(ABC):
    """An action of the training loop, which runs when its ``trigger`` says so.

    A subclass sets ``trigger`` and does its work in :meth:`run`. A subclass that remembers anything between its runs
    returns it from :meth:`state_dict` and takes it back in :meth:`load_state`, so that a resumed run does what an
    unbroken one would have done.

    One that declares settings as ``Conf`` sets its trigger in :meth:`set_up`. Its constructor accepts the settings, by
    name or in their order. A job has them next to the type. Others set it in a constructor of theirs.

    A user's own is registered as ``@dsinga.register("extension", "Name")``; a job names it by
    ``extension { user_type: "Name" }``. A class without ``Conf`` is called with that message, an ExtensionConf.

    Attributes:
        settings: those that are given, else their defaults.
        trigger: when :meth:`run` is called.
        pauses: whether training pauses meanwhile, at exactly the steps of the trigger. Where it does not, workers may
            be further on than the metrics that the extension sees.
        phase: the phase of the rows that it adds to the history, None where it adds none.
        conf: the message of the job that it was made from, None for one that was made in Python.
        is_part_of_run: whether it belongs to the run itself: its errors are the run's, it has no state and no name.
        returns_params: whether :meth:`finish` returns other params than the last ones, also where the run has failed.
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

    def __init__(self, *args: Any, **kwargs: Any):
        if self.Conf is None:
            super().__init__(*args, **kwargs)
            return
        if kwargs.get("verbose") in (0, 1, 2, "auto"):  # Keras's; the log says what extensions do, whatever it is
            kwargs.pop("verbose", None)
        self.settings = settings_from(self.Conf, type(self).__name__, args, kwargs, ARGUMENTS)
        self.set_up()

    def set_up(self) -> None:
        """Set ``trigger``, and what else depends on the settings; called once, where there is a ``Conf``."""

    def run_after(self, rows: Trigger) -> None:
        """Set the trigger by ``rows``, that of rows of training, where it depends on these."""

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

    def change_job(self, checked: CheckedJob) -> Job:
        """Return the job that is trained in place of a checked one, before its nets are built; by default the same.

        It is a :data:`dsinga.reading.checked_job.JobChange`: the layers that read records must stay the same objects.
        """
        return checked.job

    def check(self, workspace: Path | None) -> None:
        """Raise UserError, before anything is done, for what the extension needs and a run in ``workspace`` lacks."""

    def start(self, loop: LoopView) -> None:
        """Prepare for a run, before the first step and after :meth:`load_state`.

        A run may be resumed where this extension stopped it: by its state, it decides here whether to stop it again.
        """

    @abstractmethod
    def run(self, loop: LoopView) -> None:
        """Perform the action of the extension at ``loop.step``."""

    def go_on(self, loop: LoopView) -> None:
        """Perform the last action before training continues from a pause, or from a checkpoint.

        By then all extensions that were due have run, and their checkpoint has been written.
        """

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Take the metrics of one training step, (sum, count) by name; called after each step, in order."""

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Take a row of the history, {"step", "phase", "time", "loss", ...}; called for each one when it is added."""

    def see_progress(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Take the progress after a round of steps, {"step", "samples_per_second", "loss", ...}."""

    def finish(self, loop: LoopView) -> None:
        """Perform the final action, after the last step and after the last checkpoint was written."""

    def close(self, error: BaseException | None) -> None:
        """Release files and connections, however the run has ended: ``error`` ended it, None if nothing did.

        Called once, last of all. What it raises is logged, and leaves the run's result, or its error, as it is.
        """

    def state_dict(self) -> State:
        """Return the state that a checkpoint keeps for a resumed run: plain values and arrays."""
        return {}

    def load_state(self, state: State) -> None:
        """Go on from a state of :meth:`state_dict`; an empty one is that of a new run."""


class Watcher(Extension):
    """An extension that changes nothing in a run, and shows its rows and progress to people or programs."""

    is_part_of_run = True
    pauses = False

    def __init__(self) -> None:
        self.trigger = AtEnd()

    def run(self, loop: LoopView) -> None:
        """Do nothing: rows and progress are shown when they come."""


class RescuedParams(Watcher):
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

    def keep(
        self, step: int, params: ParamArrays, slots: Mapping[str, Mapping[str, np.ndarray]], net: NeuralNet,
        best: ParamArrays | None = None, remarks: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Keep the state in which the run of a net has ended.

        ``best`` are the params that an extension returns in their place, and ``remarks`` say which ones these are.
        """
        self.step, self.slots, self.net = step, dict(slots), net
        which = "their params" if best is None else "the best params"
        self.hint = "; ".join([f"{self._owner} keeps {which}", *(remarks if best is not None else ())])
        self.params = params if best is None else best  # last of all: then everything else is there, too


def choose_path(
    extension: Extension, workspace: Path | None, given: str | os.PathLike[str] | None, name: str, field: str
) -> Path:
    """Return the path ``given``, by default ``name`` in the workspace of the run.

    Raises UserError, which names ``field``, for a run without a workspace that is not told where to write, and for a
    place where nothing can be written.
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
