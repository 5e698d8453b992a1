"""The extension that calls a user's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsinga.extensions.extension import Extension
from dsinga.extensions.loop_view import LoopView
from dsinga.extensions.triggers import AtEnd
from dsinga.monitor import NOT_METRICS


class FunctionExtension(Extension):
    """Calls ``function(step, metrics)`` for each row of the history, with metrics such as {"val/loss": 0.3}.

    It is made of a plain function among the extensions of ``dsinga.train``. What the function returns is ignored.
    """

    pauses = False

    def __init__(self, function: Callable[[int, dict[str, float]], object]):
        self.trigger = AtEnd()
        self._function = function

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self._function, "__name__", type(self._function).__name__)

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Call the function."""
        metrics = {f"{row['phase']}/{name}": value for name, value in row.items() if name not in NOT_METRICS}
        self._function(row["step"], metrics)

    def run(self, loop: LoopView) -> None:
        """Do nothing: the function has been called for each row."""
