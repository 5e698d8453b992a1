"""Keeps the best value of a metric, and knows which values are better."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Mapping
from typing import Any

from dsinga.base.arguments import check_range, check_whole
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.job import MonitorMode

# Parts of the names of metrics of which lower values are better, and of those of which higher ones are.
LOWER = ("loss", "error", "entropy", "energy", "perplexity", "distance", "rmse", "mae")
HIGHER = ("accuracy", "precision", "recall", "f1", "auc", "r2", "bleu", "score", "reward", "return")


def metric_name(monitor: str) -> str:
    """Return a metric's name as the history has it: "val/loss" for Keras's "val_loss", "train/loss" for "loss"."""
    if not isinstance(monitor, str):
        raise UserError(f"monitor is {monitor!r}; give the name of a metric, as in 'val/loss'")
    phase, _, metric = monitor.partition("_")
    if "/" in monitor or not monitor:
        return monitor
    return f"{phase}/{metric}" if metric and phase in ("train", "val", "test") else f"train/{monitor}"


def spelled_as(monitor: str, metric: str) -> str:
    """Spell a metric's name as the user does: "val_loss" for "val/loss" if ``monitor`` has no slash."""
    return metric if "/" in monitor else metric.removeprefix("train/").replace("/", "_", 1)


# What loading a state of other types or without its parts raises.
BAD_STATE = (AttributeError, KeyError, TypeError, ValueError, OverflowError)


def checked_number(value: Any) -> Any:
    """Return a number read from a checkpoint. Raises TypeError for anything else."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{str(value)[:40]!r} is not a number")
    return value


class BestValue:
    """Remembers the best value of a metric so far, as ``value``; None before the first.

    Args:
        monitor: the metric, as in "val/loss" or "val_loss".
        mode: "min" or "max" for lower or higher values; "auto" decides by the metric's name.
        min_delta: the least improvement that counts, at least 0.
    """

    def __init__(self, monitor: str, mode: str = "auto", min_delta: float = 0.0):
        modes = MonitorMode.__members__
        if mode not in modes:
            raise UserError(f"mode must be one of {', '.join(modes)}, not {mode!r}{nearest(str(mode), modes)}")
        check_range("min_delta", min_delta, 0)
        self.monitor, self.mode, self.min_delta = metric_name(monitor), mode, min_delta
        self.value: float | None = None

    @functools.cached_property
    def higher(self) -> bool:
        """Whether higher values are better. Raises UserError if "auto" cannot decide."""
        if self.mode != "auto":
            return self.mode == "max"
        name = self.monitor.rpartition("/")[2]
        for parts, higher in ((LOWER, False), (HIGHER, True)):
            if any(part in name for part in parts):
                return higher
        raise UserError(f"say whether lower or higher values of {self.monitor!r} are better: mode: min or mode: max")

    def load(self, value: float | None) -> None:
        """Set the best value from a checkpoint."""
        self.value = None if value is None else checked_number(value)

    def is_better(self, value: float, reference: float | None) -> bool:
        """Whether ``value`` is better than ``reference`` by more than ``min_delta``; any value but NaN beats None."""
        if math.isnan(value):
            return False
        if reference is None:
            return True
        return (value - reference if self.higher else reference - value) > self.min_delta

    def update(self, value: float) -> bool:
        """Keep a value if it is better than the best so far; return whether it is."""
        improved = self.is_better(value, self.value)
        if improved:
            self.value = value
        return improved


class Plateau:
    """Counts how many values of a metric in a row were no improvement, as ``count``.

    ``monitor``, ``mode`` and ``min_delta`` are as in :class:`BestValue`. Values no better than ``baseline`` also count.
    """

    def __init__(
        self, monitor: str, patience: int, mode: str = "auto", min_delta: float = 0.0, baseline: float | None = None
    ):
        check_whole("patience", patience, 1)
        self.best = BestValue(monitor, mode, min_delta)
        self.patience, self._baseline = patience, baseline
        self.count = 0
        self.best_step = 0

    def update(self, step: int, value: float) -> None:
        """Count a new value of the metric, at a step."""
        if not self.best.update(value):
            self.count += 1
            return
        self.best_step = step
        self.count = 0 if self.best.is_better(value, self._baseline) else min(self.count + 1, self.patience - 1)

    @property
    def is_reached(self) -> bool:
        """Whether the last ``patience`` values were no improvement; never at a new best value."""
        return self.count >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, its step, and the count, for a checkpoint."""
        return {"best": self.best.value, "best_step": self.best_step, "count": self.count}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and the count from a checkpoint."""
        self.best.load(state.get("best"))
        self.best_step = checked_number(state.get("best_step", 0))
        self.count = checked_number(state.get("count", 0))
