"""Axes of pictures: maps from values to pixels, round numbers for ticks, and numbers as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class PlotArea(NamedTuple):
    """A panel's plotting area, in pixels."""

    left: float
    top: float
    width: float
    height: float


class Scale(NamedTuple):
    """A linear map from values to pixels: ``low`` to ``start`` and ``high`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel coordinate of ``value``."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


class YAxis(NamedTuple):
    """How a panel's values are shown.

    With ``logarithmic`` the axis is, for values above 0; with ``percent`` a value of 1 is "100%". ``includes`` are
    values that the axis shows in any case; they are for linear axes.
    """

    logarithmic: bool = False
    percent: bool = False
    includes: Sequence[float] = ()

    def text(self, value: float) -> str:
        """Return a value as the axis shows it."""
        return f"{value:.0%}" if self.percent else f"{value:.6g}"


def make_scale(values: Sequence[float], start: float, end: float, margin: float) -> Scale:
    """Return a scale for finite values, with a share ``margin`` of their range as room at both ends."""
    low, high = min(values), max(values)
    if low == high:  # a single value gets room on both sides
        spread = abs(low) * 0.1 or 1.0
        return Scale(low - spread, high + spread, start, end)
    room = (high - low) * margin
    return Scale(low - room, high + room, start, end)


def ticks(low: float, high: float, max_intervals: int) -> list[float]:
    """Return at most ``max_intervals + 1`` round numbers within [low, high], 1, 2 or 5 times a power of ten apart."""
    minimum = (high - low) / max_intervals
    power = 10.0 ** math.floor(math.log10(minimum))
    spacing = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= minimum * (1 - 1e-9))
    first, last = math.ceil(low / spacing - 1e-9), math.floor(high / spacing + 1e-9)
    return [i * spacing for i in range(first, last + 1)]


def decade_ticks(low: float, high: float, max_ticks: int) -> list[float]:
    """Return round numbers between the powers of ten ``low`` and ``high``: 1, 2 and 5 times powers of ten if they fit.

    Both limits and the result are logarithms to base ten.
    """
    exponents = range(math.floor(low), math.ceil(high) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        chosen = [exponent + math.log10(factor) for exponent in exponents for factor in factors]
        chosen = [value for value in chosen if low - 1e-9 <= value <= high + 1e-9]
        if len(chosen) <= max_ticks:
            break
    return chosen


def step_text(value: float) -> str:
    """Return a step as text: 800, 1000, 20k, 1.5M."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= 10 * unit:
            return f"{value / unit:.6g}{letter}"
    return f"{value:.7g}"


def power_text(exponent: float) -> str:
    """Return a power of ten as text: 1e-5, 0.01, 1, 1000."""
    return f"{10.0**exponent:g}" if -3 <= exponent <= 4 else f"1e{exponent:.0f}"
