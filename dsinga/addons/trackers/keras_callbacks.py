"""Callbacks with the names of Keras, besides those that the events of Keras need."""

from __future__ import annotations

import functools
import os
from typing import Any

from dsinga.addons.trackers.csv_table import CSV
from dsinga.base.arguments import check_settings, check_whole, checked
from dsinga.base.errors import UserError
from dsinga.extensions.best_value import BestValue, metric_name
from dsinga.extensions.extension import ARGUMENTS
from dsinga.extensions.keras_callbacks import Callback
from dsinga.extensions.plateaus import ReduceOnPlateau


@functools.partial(check_settings, instead=ARGUMENTS)
class ModelCheckpoint(Callback):
    """Saves the model, a folder that nn.load_model reads, after each epoch, or after those with the best ``monitor``.

    Args:
        filepath: the folder; with {epoch} and {val_loss} among it, a folder for each epoch.
        monitor: the metric that decides.
        verbose: has no effect.
        save_best_only: whether only the best model is saved.
        save_weights_only: whether only params are saved, a file that ``model.load_weights`` reads.
        mode: "min", "max" or "auto", by the metric's name.
        save_freq: "epoch".
        initial_value_threshold: a value that the first model that is saved is better than, with ``save_best_only``.
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
        self._path, self._monitor = filepath, monitor.replace("/", "_").removeprefix("train_")
        self._best = BestValue(metric_name(monitor), mode) if save_best_only else None
        if self._best is not None:
            self._best.value = initial_value_threshold
        self._save_weights_only = save_weights_only

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save the model, if it is to be saved. Raises UserError where the metric is not there."""
        if self._best is not None:
            if self._monitor not in logs:
                raise UserError(f"ModelCheckpoint: there is no {self._monitor!r}; there are {', '.join(logs)}")
            if not self._best.update(logs[self._monitor]):
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


@functools.partial(checked, instead=ARGUMENTS)
def CSVLogger(filename: Any, separator: str = ",", append: bool = False) -> CSV:
    """Return the extension that writes the history as a CSV file; with ``append`` after the lines of earlier fits."""
    if separator != ",":
        raise UserError(f"CSVLogger writes columns separated by commas, not by {separator!r}; leave separator out")
    return CSV(path=filename, append=append)


@functools.partial(checked, instead=ARGUMENTS)
def ReduceLROnPlateau(
    monitor: str = "val_loss",
    factor: float = 0.1,
    patience: int = 10,
    verbose: Any = 0,
    mode: str = "auto",
    min_delta: float = 1e-4,
    cooldown: int = 0,
    min_lr: float = 0.0,
) -> ReduceOnPlateau:
    """Return the extension that lowers the learning rate where a metric no longer improves, with Keras's defaults.

    Keras counts the last value of a cooldown, which ReduceOnPlateau does not. ``verbose`` has no effect.
    """
    check_whole("cooldown", cooldown, 0)
    return ReduceOnPlateau(
        monitor, factor, patience, min_delta, mode, cooldown=max(0, cooldown - 1), min_lr=min_lr, verbose=verbose
    )


class TerminateOnNaN(Callback):
    """Does nothing: training always ends where a loss is not finite."""
