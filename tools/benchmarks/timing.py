"""Times the iterations of a library in a process of its own, in the form that the environment asks for."""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable

from tools.benchmarks.peers import FLAGS

WARM_UP = 10
BF16, COMPILED = (bool(os.environ.get(name)) for name in FLAGS)


def times(iterate: Callable[[], object], steps: int, warm_up: int = WARM_UP) -> list[float]:
    """Return the milliseconds of each of ``warm_up + steps`` iterations; the first of a process compiles."""
    milliseconds = []
    for _ in range(warm_up + steps):
        started = time.perf_counter()
        iterate()
        milliseconds.append(1e3 * (time.perf_counter() - started))
    return milliseconds


def figures(milliseconds: list[float]) -> dict[str, float]:
    """Return the median after the warm-up, the peak megabytes of this process, and the seconds of the first iteration.

    ``milliseconds`` are those that :func:`times` returns.
    """
    return {**figures_of_turn(milliseconds[WARM_UP:]), "first_s": milliseconds[0] / 1e3}


def figures_of_turn(milliseconds: list[float]) -> dict[str, float]:
    """Return the median of the milliseconds of iterations, and the peak megabytes of this process."""
    return {"ms": statistics.median(milliseconds), "mb": peak_megabytes()}


def peak_megabytes() -> float:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def print_turns(iterate: Callable[[], object], steps: int) -> None:
    """Print the figures of a turn in a line of JSON, and of a further turn for each line of the standard input."""
    compiled = times(iterate, steps)
    print(json.dumps(figures(compiled)), flush=True)
    for _ in sys.stdin:
        turn = figures_of_turn(times(iterate, steps, warm_up=1)[1:])
        print(json.dumps({**turn, "first_s": compiled[0] / 1e3}), flush=True)
