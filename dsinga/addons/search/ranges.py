"""Ranges of numbers that a search draws from, as Python objects and as texts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np

from dsinga.base.arguments import check_bool, check_settings, value_text
from dsinga.base.errors import UserError

NAMES = ("uniform", "loguniform", "randint")
CALL = re.compile(r"(loguniform|uniform|randint)\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\)")
LARGEST = 1e300  # so that high - low is a number, too
MOST_STEPS = 2**53


@check_settings
@dataclass(frozen=True)
class SearchRange:
    """The numbers from ``low`` to ``high``, both included, that a search draws from.

    ``SearchRange(0, 0.5)`` has all numbers between, ``SearchRange(1e-4, 1e-1, log=True)`` numbers on a logarithmic
    scale, as for learning rates, ``SearchRange(16, 128, step=16)`` whole numbers.

    Args:
        low: the lowest number, included.
        high: the highest number, included.
        log: whether numbers are evenly distributed on a logarithmic scale.
        step: the distance of neighbouring numbers; None for all numbers between ``low`` and ``high``. If ``low`` and
            ``step`` are whole numbers, all numbers are. On a logarithmic scale it is 1 or None.

    Raises UserError for falling bounds, a logarithm of 0 or less, and a step that does not fit. Two whole numbers need
    a step: 1 and 9 may mean 1, 2, ..., 9 or 1.0 to 9.0.
    """

    low: float
    high: float
    log: bool = field(default=False, kw_only=True)
    step: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name, number in (("low", self.low), ("high", self.high), ("step", 1 if self.step is None else self.step)):
            if not isinstance(number, Real) or isinstance(number, bool) or not abs(number) <= LARGEST:
                raise UserError(f"{name} of a SearchRange is a finite number, not {value_text(number)}")
        check_bool("log", self.log)
        if self.low > self.high:
            raise UserError(f"high must be at least low, unlike that of {self}")
        if self.log and self.low <= 0:
            raise UserError(f"low must be above 0 on a logarithmic scale, unlike that of {self}")
        if self.step is None and _are_whole(self.low, self.high):
            between = f"{self.low}.0 and {self.high}.0 for all numbers between"
            raise UserError(f"give step=1 for whole numbers, or {between}, in place of {self}")
        if self.step is not None and (self.step <= 0 or not (self.low == self.high or 1 <= self._steps <= MOST_STEPS)):
            raise UserError(f"step must be above 0 and at most high - low, unlike that of {self}")
        if self.log and (self.step not in (None, 1) or self.is_whole != (self.step is not None)):
            raise UserError(
                f"on a logarithmic scale low is whole and step is 1, or step is None, unlike those of {self}"
            )

    @property
    def is_whole(self) -> bool:
        """Whether the numbers are whole ones."""
        return _are_whole(self.low, self.step)

    @property
    def highest(self) -> float:
        """The highest number that can be drawn, at the last step."""
        return self.nearest(self.low + self._steps * self.step) if self.step else self.high

    @property
    def _steps(self) -> int:
        return math.floor((self.high - self.low) / self.step + 1e-9) if self.step else 0

    def nearest(self, value: float) -> float:
        """Round a value to the nearest step; return it unchanged without steps."""
        if self.step is None:
            return value
        number = self.low + round((value - self.low) / self.step) * self.step
        return number if self.is_whole else float(f"{number:.12g}")  # 0.3, not 0.30000000000000004

    def rvs(self, random_state: np.random.Generator) -> float:
        """Draw a number of the range with a numpy Generator, like scipy's distributions."""
        if self.step is not None and not self.log:
            return self.nearest(self.low + int(random_state.integers(self._steps + 1)) * self.step)
        if not self.log:
            return random_state.uniform(self.low, self.high)
        room = 0.5 if self.is_whole else 0  # so that the bounds are drawn as often as the numbers between
        low, high = self.low - room, self.high + room
        value = math.exp(random_state.uniform(math.log(low), math.log(high)))
        return min(max(self.nearest(value), self.low), self.high)


def _are_whole(*numbers: Any) -> bool:
    return all(isinstance(number, Integral) for number in numbers)


def parse_range(text: str) -> SearchRange | None:
    """Parse a text such as "loguniform(1e-4, 1e-1)" as a range; None for other texts.

    ``high`` is included in ``uniform`` and ``loguniform``, but not in ``randint``, as in scipy.
    """
    call = CALL.fullmatch(text.strip())
    if call is None:
        return None
    name, first, last = call.groups()
    text = f"{name}({first}, {last})"
    try:
        low, high = float(first), float(last)
    except ValueError:
        raise UserError(f"{text} must have two numbers, as in {name}(1, 10)") from None
    is_log = name == "loguniform"
    if not (low < high and math.isfinite(high - low)) or (is_log and low <= 0):
        raise UserError(f"{text} must rise{' from above 0' if is_log else ''}, as in {name}(1, 10)")
    return SearchRange(int(low), int(high) - 1, step=1) if name == "randint" else SearchRange(low, high, log=is_log)
