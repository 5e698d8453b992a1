"""A count of values that bring no improvement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsinga.arguments import check_whole
from dsinga.extensions.best_value import BestValue, checked_number


class Plateau:
    """Counts how many values of a metric in a row have not improved on its best value: ``count``.

    ``monitor``, ``mode`` and ``min_delta`` are those of :class:`BestValue`; ``patience`` is the count that is too many,
    at least 1.
    """

    def __init__(self, monitor: str, patience: int, mode: str = "auto", min_delta: float = 0.0):
        check_whole("patience", patience, 1)
        self.best = BestValue(monitor, mode, min_delta)
        self.patience = patience
        self.count = 0
        self.best_step = 0

    def update(self, step: int, value: float) -> None:
        """Take the value of a step into account."""
        if self.best.update(value):
            self.count, self.best_step = 0, step
        else:
            self.count += 1

    @property
    def is_reached(self) -> bool:
        """Whether there has been no improvement for too long."""
        return self.count >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, its step, and the count."""
        return {"best": self.best.value, "best_step": self.best_step, "count": self.count}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of :meth:`state_dict`."""
        self.best.load(state.get("best"))
        self.best_step = checked_number(state.get("best_step", 0))
        self.count = checked_number(state.get("count", 0))
