"""The logarithm of the gamma function and its derivative, of arrays of any backend; numpy has neither.

Stirling's series at x + 8, and the recurrence from there to x: in float64 the error is below 1e-11 (Abramowitz and
Stegun, Handbook of Mathematical Functions, 1964, 6.1.41 and 6.3.18).
"""

from __future__ import annotations

import math
from typing import Any

from dsinga.ops import Array

SHIFT = 8


def log_gamma(x: Array, xp: Any) -> Array:
    """Return log Γ(x) of numbers above 0."""
    z = x + SHIFT
    w = 1 / (z * z)
    series = (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680 - w / 1188)))) / z
    result = (z - 0.5) * xp.log(z) - z + 0.5 * math.log(2 * math.pi) + series
    for k in range(SHIFT):
        result = result - xp.log(x + k)
    return result


def digamma(x: Array, xp: Any) -> Array:
    """Return the derivative of log Γ(x) at numbers above 0."""
    z = x + SHIFT
    w = 1 / (z * z)
    result = xp.log(z) - 0.5 / z - w * (1 / 12 - w * (1 / 120 - w * (1 / 252 - w * (1 / 240 - w / 132))))
    for k in range(SHIFT):
        result = result - 1 / (x + k)
    return result
