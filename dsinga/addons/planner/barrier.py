"""The cost of a barrier: the time that workers lose each time they wait for each other.

Two workers with the same work never take the same time, since the operating system interrupts each of them now and
then. The faster one waits for the slower one, and then for its own thread to wake up. To measure that, workers compute
the same for a while, meet at a barrier, and repeat. The delays between two barriers add up like the steps of a random
walk, so the cost of a barrier grows with the square root of the time since the previous one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

NUMBERS = 1 << 16  # float32 whose tanh is computed: about 0.25 ms, and they fit into a core's cache
BLOCKS = 6  # repetitions; the first one is a warm-up
BARRIERS = {8: 12, 96: 4}  # passes over NUMBERS before each barrier -> barriers in a block


class BarrierCost(NamedTuple):
    """Seconds that a barrier costs after ``short`` and after ``long`` seconds of computing, as measured."""

    short: float
    long: float
    after_short: float
    after_long: float

    def seconds(self, computed: float) -> float:
        """Return the cost of a barrier after ``computed`` seconds of computing, interpolated by the square root."""
        near, far = math.sqrt(self.short), math.sqrt(self.long)
        rise = max(self.after_long - self.after_short, 0.0) / (far - near)
        return max(self.after_short + rise * (min(math.sqrt(computed), far) - near), 0.0)


FREE_BARRIER = BarrierCost(1e-3, 2e-3, 0.0, 0.0)


def time_barriers(wait: Callable[[], object]) -> list[tuple[float, float]]:
    """Compute and wait at a barrier repeatedly, while other threads or processes call this function as well.

    ``wait`` is the barrier: it returns when every participant has called it. Returns (seconds of computing, seconds
    that the barrier adds) for the short and for the long interval between barriers, medians over the blocks.
    """
    numbers = np.linspace(-1, 1, NUMBERS, dtype=np.float32)
    tanh = np.empty_like(numbers)

    def block(passes: int, barriers: int) -> tuple[float, float]:
        wait()
        computing, started = 0.0, time.perf_counter()
        for _ in range(barriers):
            compute_started = time.perf_counter()
            for _ in range(passes):
                np.tanh(numbers, out=tanh)
            computing += time.perf_counter() - compute_started
            wait()
        return computing / barriers, (time.perf_counter() - started - computing) / barriers

    blocks = [[block(*setting) for setting in BARRIERS.items()] for _ in range(BLOCKS)][1:]
    return [_medians(pairs) for pairs in zip(*blocks, strict=True)]


def barrier_cost(timings: Sequence[Sequence[tuple[float, float]]], message_seconds: float) -> BarrierCost:
    """Return the cost of a barrier, given what :func:`time_barriers` returned to each participant.

    ``message_seconds``, which the messages of the barrier take, are subtracted.
    """
    (short, after_short), (long, after_long) = (
        tuple(statistics.fmean(column) for column in zip(*pairs, strict=True)) for pairs in zip(*timings, strict=True)
    )
    return BarrierCost(short, long, max(after_short - message_seconds, 0.0), max(after_long - message_seconds, 0.0))


def _medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    computing, waiting = (statistics.median(column) for column in zip(*pairs, strict=True))
    return computing, waiting
