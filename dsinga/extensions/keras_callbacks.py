"""Keras's callbacks, by their names and events, for ``fit(callbacks=[...])``."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from dsinga.base.arguments import check_settings, check_whole, value_text
from dsinga.base.errors import UserError
from dsinga.base.registry import listed
from dsinga.extensions.best_value import BestValue, metric_name
from dsinga.extensions.extension import ARGUMENTS, Extension, LoopView, State
from dsinga.extensions.triggers import EverySteps, Trigger
from dsinga.training import Metrics

NEVER = 1 << 62  # steps
EVENTS = (
    *("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end"),
    *("on_train_batch_begin", "on_train_batch_end", "on_test_begin", "on_test_end"),
)


class _Logs(dict[str, float]):
    """The metrics of an event by Keras's names; a missing name raises KeyError with the names that exist."""

    def __missing__(self, name: object) -> float:
        raise KeyError(f"logs has no {name!r}; it has {listed(self) if self else 'no metrics in this event'}")


class Callback:
    """Base of callbacks with Keras's events, for ``fit(callbacks=[...])``; events do nothing by default.

    ``logs`` are metrics by Keras's names, such as {"loss": 0.3, "val_loss": 0.4}. Epochs and batches count from 0. In
    an event the model has the current params, which ``set_weights``, ``load_weights`` and ``train_on_batch`` change.
    With workers or a client, batch events may lag behind. The params are then from the end of the last epoch, and
    cannot be set.

    Attributes:
        model: the model; ``model.stop_training = True`` ends training.
        params: {"epochs", "steps"} of the fit.
    """

    model: Any = None
    params: Mapping[str, Any] = {}

    def set_model(self, model: Any) -> None:
        """Receive the model that is trained."""
        self.model = model

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Receive the numbers of epochs and steps."""
        self.params = params

    def on_train_begin(self, logs: Any = None) -> None:
        """Called before the first step."""

    def on_train_end(self, logs: Any = None) -> None:
        """Called after the last step."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Called before each epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called after each epoch and its validation."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Called before a step is reported."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called when a step is reported, with its metrics."""

    def on_test_begin(self, logs: Any = None) -> None:
        """Called after an epoch with a validation."""

    def on_test_end(self, logs: Any = None) -> None:
        """Called with the validation's metrics, at the end of its epoch."""


class LambdaCallback(Callback):
    """A callback from functions by event: ``LambdaCallback(on_epoch_end=lambda epoch, logs: print(logs))``."""

    def __init__(self, **functions: Callable[..., Any]):
        for event, function in functions.items():
            if event not in EVENTS:
                raise UserError(f"LambdaCallback has no event {event!r}; its events are {', '.join(EVENTS)}")
            if not callable(function):
                raise UserError(f"LambdaCallback: {event} is a function, not {value_text(function)}")
            setattr(self, event, function)


@functools.partial(check_settings, instead=ARGUMENTS)
class LearningRateScheduler(Callback):
    """Sets the learning rate of each epoch to schedule(epoch, rate) or schedule(epoch), as in Keras.

    ``rate`` is the rate before. For a rate by step, use ``nn.SGD(learning_rate=lambda step: 0.1 / (1 + step))``.
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0):
        if not callable(schedule):
            raise UserError(f"LearningRateScheduler takes a function of (epoch, rate), not {value_text(schedule)}")
        self._schedule = schedule

    def rate(self, epoch: int, rate: float) -> float:
        """Return the rate of an epoch. Raises UserError unless it is a number of at least 0."""
        try:
            new: Any = self._schedule(epoch, rate)
        except TypeError:
            new = self._schedule(epoch)
        try:
            number = float(new)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 <= number < math.inf:
            raise UserError(f"the learning rate of epoch {epoch} is {value_text(new)}; return a number of at least 0")
        return number


@functools.partial(check_settings, instead=ARGUMENTS)
class ModelCheckpoint(Callback):
    """Saves the model after each epoch, or only with the best ``monitor``, as a folder for nn.load_model.

    Args:
        filepath: the folder; with {epoch} or {val_loss} in it, a folder for each epoch.
        monitor: the metric that decides.
        verbose: has no effect.
        save_best_only: whether only the best model is saved.
        save_weights_only: whether only params are saved, as a file for ``model.load_weights``.
        mode: "min", "max" or "auto", by the metric's name.
        save_freq: "epoch".
        initial_value_threshold: with ``save_best_only``, the value that the first saved model must beat.

    Examples:
        >>> from dsinga import nn
        >>> best = nn.callbacks.ModelCheckpoint("best", monitor="val_loss", save_best_only=True)
    """

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str = "epoch",
        initial_value_threshold: float | None = None,
    ):
        if save_freq != "epoch":
            raise UserError("ModelCheckpoint saves after epochs; give fit checkpoint_freq= for a number of steps")
        self._path = filepath
        # the metric that decides, "" where every model is saved
        self.monitor = monitor.replace("/", "_").removeprefix("train_") if save_best_only else ""
        self._best = BestValue(metric_name(monitor), mode) if save_best_only else None
        if self._best is not None:
            self._best.value = initial_value_threshold
        self._save_weights_only = save_weights_only

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save the model if needed. Raises UserError if the metric is missing."""
        if self._best is not None:
            if self.monitor not in logs:
                remedy = "; give fit validation_data=" if self.monitor.startswith("val_") else ""
                raise UserError(f"ModelCheckpoint: there is no {self.monitor!r}; there are {', '.join(logs)}{remedy}")
            if not self._best.update(logs[self.monitor]):
                return
        try:
            path = str(self._path).format(epoch=epoch + 1, **logs)
        except (LookupError, ValueError, AttributeError) as error:
            names = ", ".join(f"{{{name}}}" for name in ("epoch", *logs))
            raise UserError(
                f"ModelCheckpoint: the path {str(self._path)!r} cannot be filled in ({error}); there are {names}"
            ) from None
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        (self.model.save_weights if self._save_weights_only else self.model.save)(path)


class TerminateOnNaN(Callback):
    """Accepted for Keras's sake, without effect: training always ends if a loss is not finite."""


@functools.partial(check_settings, instead=ARGUMENTS)
class BackupAndRestore:
    """Lets ``fit`` continue after an interruption, from a checkpoint of each epoch or ``save_freq`` steps.

    It stands for ``fit(workspace=backup_dir, resume="auto", checkpoint_freq=...)``. When fit has ended in order, the
    checkpoint is removed, unless ``delete_checkpoint`` is False.

    Examples:
        >>> from dsinga import nn
        >>> backup = nn.callbacks.BackupAndRestore("run")
    """

    def __init__(self, backup_dir: Any, save_freq: Any = "epoch", delete_checkpoint: bool = True):
        if save_freq != "epoch":
            check_whole("save_freq", save_freq, 1)
        self.backup_dir, self.save_freq, self.delete_checkpoint = backup_dir, save_freq, delete_checkpoint


def is_keras_callback(callback: Any) -> bool:
    """Whether an object is a callback in Keras's style: it has methods for Keras's events."""
    return not isinstance(callback, (Extension, type)) and any(callable(getattr(callback, e, None)) for e in EVENTS)


class KerasEvents(Extension):
    """Calls a Keras-style callback during a run: its event methods, such as on_epoch_end.

    Args:
        fit: the model's fit; its method ``event`` copies params between the run and the model.
    """

    def __init__(self, callback: Any, model: Any, fit: Any, params: Mapping[str, Any]):
        self._callback, self._model, self._fit, self._params = callback, model, fit, params
        self._epoch = self._batch = 0
        self._has_begun = False  # whether the epoch has
        self._has_row = False  # whether a row of training was recorded since the last end of an epoch
        for event in filter(self._defines, EVENTS):
            self._check_event(event)
        self._has_batches = any(self._defines(event) for event in EVENTS if "batch" in event)

    def run_after(self, rows: Trigger) -> None:
        """Run before the first step and whenever an epoch ends."""
        self.trigger = rows | EverySteps(NEVER, after=0)

    def _defines(self, event: str) -> bool:
        method = getattr(self._callback, event, None)
        function = getattr(method, "__func__", method)
        return method is not None and function is not getattr(Callback, event, None)

    def _check_event(self, event: str) -> None:
        """Raise UserError if a method of the callback does not accept the arguments of its event."""
        method = getattr(self._callback, event)
        arguments = [*(number for number in ("epoch", "batch") if number in event), "logs"]
        try:
            inspect.signature(method).bind(*arguments)
        except ValueError:  # a function of C has no signature
            return
        except TypeError:
            written = ", ".join(arguments)
            remedy = f"def {event}(self, {written}=None)" if inspect.ismethod(method) else f"lambda {written}: ..."
            raise UserError(f"{self.name}.{event} is called with ({written}); write {remedy}") from None

    @property
    def name(self) -> str:
        """The name of the callback's class."""
        return type(self._callback).__name__

    def _call(self, loop: LoopView, event: str, *arguments: Any) -> None:
        if self._defines(event):
            stands = loop.paused and (loop.pauses_cheaply or "batch" not in event)
            with self._fit.event(loop if stands else None):
                getattr(self._callback, event)(*arguments)

    def _begin_epoch(self, loop: LoopView) -> None:
        if isinstance(self._callback, LearningRateScheduler):
            base = loop.learning_rate / loop.rate_factor if loop.rate_factor else 0.0
            rate = self._callback.rate(self._epoch, loop.learning_rate)
            if base:
                loop.set_rate_factor(loop.step, rate / base)
        self._call(loop, "on_epoch_begin", self._epoch, {})
        self._has_begun = True

    def start(self, loop: LoopView) -> None:
        """Give the callback its model and numbers, and call ``on_train_begin``."""
        if self._pauses_at_batches(loop):
            self.trigger = self.trigger | EverySteps(1)
        for method, value in (("set_params", self._params), ("set_model", self._model)):
            if callable(getattr(self._callback, method, None)):
                getattr(self._callback, method)(value)
        self._call(loop, "on_train_begin", {})

    def _pauses_at_batches(self, loop: LoopView) -> bool:
        return self._has_batches and loop.pauses_cheaply

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Notice that an epoch ends, by its training row."""
        self._has_row |= row["phase"] == "train"

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Call the callback's events of a step."""
        if self._has_batches:
            if not loop.pauses_cheaply:
                self._call(loop, "on_train_batch_begin", self._batch, {})
            self._call(loop, "on_train_batch_end", self._batch, _Logs(loop.means("train", sums)))
            self._stop_if_asked(loop)
        self._batch += 1

    def run(self, loop: LoopView) -> None:
        """Call the callback's events at an epoch's end."""
        if self._has_row and self._batch:
            self._end_epoch(loop)

    def go_on(self, loop: LoopView) -> None:
        """Call the callback's events before an epoch and its next batch."""
        if not self._has_begun:
            self._begin_epoch(loop)
        if self._pauses_at_batches(loop):
            self._call(loop, "on_train_batch_begin", self._batch, {})

    def _end_epoch(self, loop: LoopView) -> None:
        logs = _Logs({name.removeprefix("train/").replace("/", "_"): value for name, value in loop.metrics.items()})
        validated = _Logs({name.removeprefix("val_"): logs[name] for name in logs if name.startswith("val_")})
        if validated:
            self._call(loop, "on_test_begin", {})
            self._call(loop, "on_test_end", validated)
        self._call(loop, "on_epoch_end", self._epoch, logs)
        self._epoch, self._batch, self._has_begun, self._has_row = self._epoch + 1, 0, False, False
        self._stop_if_asked(loop)

    def finish(self, loop: LoopView) -> None:
        """Call the callback's events at the end of training."""
        if self._has_row and self._batch:
            self._end_epoch(loop)
        self._call(loop, "on_train_end", {})

    def _stop_if_asked(self, loop: LoopView) -> None:
        if self._model.stop_training:
            loop.stop(f"the callback {self.name} has set stop_training")

    def state_dict(self) -> State:
        """Return which events were called, for a checkpoint: epoch, batch, and whether the epoch began."""
        return {"epoch": self._epoch, "batch": self._batch, "begun": self._has_begun}

    def load_state(self, state: State) -> None:
        """Restore the epoch and the batch at which the run continues."""
        self._epoch, self._batch = int(state.get("epoch", 0)), int(state.get("batch", 0))
        self._has_begun = bool(state.get("begun", False))
