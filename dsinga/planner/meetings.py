"""What workers lose where they meet: who comes first waits for who comes last, and then for its thread to wake.

Two that do the same never take the same time: each is held up by what else its machine does. That is measured by having
them compute the same for a while, meet, and so on. Such delays add up like the steps of a random walk, so what a
meeting costs grows with the square root of the time since the one before.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

NUMBERS = 1 << 16  # of which a worker computes the hyperbolic tangents: a quarter of a millisecond, in a core's cache
BLOCKS = 6  # of meetings, the first of which is not counted
MEETINGS = {8: 12, 96: 4}  # in a block: after so often NUMBERS, so many


class Lateness(NamedTuple):
    """What a meeting costs, in seconds, after a short stretch of computing and after a long one, both in seconds."""

    short: float
    long: float
    after_short: float
    after_long: float

    def seconds(self, stretch: float) -> float:
        """Return by how much who computes for ``stretch`` seconds is late for a meeting, as others see it."""
        near, far = math.sqrt(self.short), math.sqrt(self.long)
        rise = max(self.after_long - self.after_short, 0.0) / (far - near)
        return max(self.after_short + rise * (min(math.sqrt(stretch), far) - near), 0.0)


PUNCTUAL = Lateness(1e-3, 2e-3, 0.0, 0.0)


def time_meetings(meet: Callable[[], None]) -> list[tuple[float, float]]:
    """Compute and meet again and again, as others do at the same time; ``meet`` returns when all have called it.

    Returns, for each length of stretch, the seconds of computing and the seconds that a meeting takes besides.
    """
    numbers = np.linspace(-1, 1, NUMBERS, dtype=np.float32)
    made = np.empty_like(numbers)

    def block(times: int, meetings: int) -> tuple[float, float]:
        meet()
        computing, started = 0.0, time.perf_counter()
        for _ in range(meetings):
            begun = time.perf_counter()
            for _ in range(times):
                np.tanh(numbers, out=made)
            computing += time.perf_counter() - begun
            meet()
        return computing / meetings, (time.perf_counter() - started - computing) / meetings

    found = [[block(*one) for one in MEETINGS.items()] for _ in range(BLOCKS)][1:]
    return [_medians(blocks) for blocks in zip(*found, strict=True)]


def lateness(found: Sequence[Sequence[tuple[float, float]]], told: float) -> Lateness:
    """Return what meetings cost by the times of those who met, besides ``told`` seconds for the messages."""
    (short, after_short), (long, after_long) = (
        tuple(statistics.fmean(column) for column in zip(*one, strict=True)) for one in zip(*found, strict=True)
    )
    return Lateness(short, long, max(after_short - told, 0.0), max(after_long - told, 0.0))


def _medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    computing, meeting = (statistics.median(column) for column in zip(*pairs, strict=True))
    return computing, meeting
