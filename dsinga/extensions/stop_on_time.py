"""The extension that ends a run before a wall time, in order and with a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from numbers import Real
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.extensions.extension import Extension, LoopView
from dsinga.extensions.triggers import AtEnd
from dsinga.job.component import Fault, Settings, setting
from dsinga.job.limits import Positive
from dsinga.training import Metrics

LETTERS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
WORDS = {"sec": 1, "second": 1, "min": 60, "minute": 60, "hour": 3600, "day": 86400}
UNITS = LETTERS | WORDS | {f"{word}s": seconds for word, seconds in WORDS.items()}
PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
# Time that is left unused beyond what rounds and checkpoints took so far: a share of all the time, and a maximum.
MARGIN_SHARE, MARGIN_SECONDS = 0.05, 30.0


@register("extension", kStopOnTime=4)
class StopOnTime(Extension):
    """Ends training before a time is over, with a checkpoint from which ``resume`` goes on.

    Time counts from the call of ``dsinga.train``. What the next round and a checkpoint take is estimated from those
    before; a twentieth of the time, 30 seconds at most, is left besides. What the job does at its end, such as a last
    test, is left to the run that goes on.

    In Python ``time`` may also be a number of seconds.
    """

    class Conf(Settings):
        """Settings of kStopOnTime."""

        time: str | None = setting(None, "a text such as '2h', '90 min' or '1h 30m', in place of seconds")
        seconds: Positive | None = setting(None, "after how many seconds training ends")

        def faults(self) -> Iterator[Fault]:
            """Yield that both are given, or none."""
            if (self.seconds is None) == (self.time is None):
                yield Fault(
                    'extension kStopOnTime needs either seconds, as in seconds: 7200, or time, as in time: "2h"'
                )

    settings: Conf
    pauses = False  # it looks at the clock only

    def __init__(self, time: float | str | None = None, seconds: float | None = None, **settings: Any):
        super().__init__(str(time) if isinstance(time, Real) else time, seconds, **settings)

    def set_up(self) -> None:
        """Take from the settings when training ends, and the margin before that."""
        self.trigger = AtEnd()
        self._seconds = self.settings.seconds or parse_seconds(self.settings.time)
        self._margin = min(MARGIN_SHARE * self._seconds, MARGIN_SECONDS)

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Stop while the rest of the time is enough for doing so."""
        if not loop.stopped and loop.seconds + loop.seconds_to_stop + self._margin >= self._seconds:
            loop.stop(f"its time of {self._seconds:g} s is nearly over", resumable=True)

    def run(self, loop: LoopView) -> None:
        """Do nothing: the clock is looked at after each step."""


def parse_seconds(time: Any) -> float:
    """Return the seconds that a number, or a text such as "1h 30m", stands for. Raises UserError for others."""
    seconds = _sum_parts(time) if isinstance(time, str) else float(time) if isinstance(time, Real) else 0.0
    if not seconds > 0:
        raise UserError(f'{time!r} is no time to stop after; give seconds above 0, or a text such as "2h" or "90 min"')
    return seconds


def _sum_parts(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    parts = PART.findall(text.lower())
    if PART.sub("", text.lower()) or not all(unit in UNITS for _, unit in parts):
        return 0.0
    return sum(float(number) * UNITS[unit] for number, unit in parts)
