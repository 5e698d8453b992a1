"""The extension that calls a user's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dsinga.extensions.extension import Extension
from dsinga.extensions.loop_view import LoopView
from dsinga.extensions.triggers import Trigger
from dsinga.monitor import NOT_METRICS


class FunctionExtension(Extension):
    """Calls ``function(step, metrics)`` for each row of the history, with metrics such as {"val/loss": 0.3}.

    It is made of a plain function among the extensions of ``dsinga.train``. A function that returns True, and nothing
    else, ends training. Training pauses at ``rows``, the trigger of rows of training, so that it ends at the step of
    the row.
    """

    def __init__(self, function: Callable[[int, dict[str, float]], object], rows: Trigger):
        self.trigger = rows
        self._function = function

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self._function, "__name__", type(self._function).__name__)

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Call the function, and end training if it returns True."""
        metrics = {f"{row['phase']}/{name}": value for name, value in row.items() if name not in NOT_METRICS}
        result = self._function(row["step"], metrics)
        if isinstance(result, (bool, np.bool_)) and result:
            loop.stop(f"the function {self.name} has returned True")

    def run(self, loop: LoopView) -> None:
        """Do nothing: the function has been called for each row."""
