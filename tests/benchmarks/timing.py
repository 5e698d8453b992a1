"""Times the iterations of a library in a process of its own, in the form that the environment asks for."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable

from tests.benchmarks.peers import FLAGS

WARM_UP = 10
BF16, COMPILED = (bool(os.environ.get(name)) for name in FLAGS)


def times(iterate: Callable[[], object], steps: int) -> list[float]:
    """Return the milliseconds of each of ``WARM_UP + steps`` iterations; the first of them compiles."""
    milliseconds = []
    for _ in range(WARM_UP + steps):
        started = time.perf_counter()
        iterate()
        milliseconds.append(1e3 * (time.perf_counter() - started))
    return milliseconds


def figures(milliseconds: list[float]) -> dict[str, float]:
    """Return the median after the warm-up, the peak megabytes of this process, and the seconds of the first iteration.

    ``milliseconds`` are those that :func:`times` returns.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ms": statistics.median(milliseconds[WARM_UP:]), "mb": peak, "first_s": milliseconds[0] / 1e3}
