"""Notices other work on this machine's cores during a measurement, which makes the measured times too long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PROCESSOR_TIMES = Path("/proc/stat")  # Linux: ticks of all cores since the start
USER, NICE, SYSTEM, INTERRUPTS, SOFT_INTERRUPTS, STOLEN = 1, 2, 3, 6, 7, 8  # columns of the first line
# Others disturb a measurement if they use more than this share of a core, and leave less than this share of one idle.
SHARE, IDLE_SHARE = 0.2, 0.5
TICK_SECONDS = 0.03  # the system counts in ticks of 10 ms, for each core


class ProcessorTimes(NamedTuple):
    """Seconds of the clock, and of the cores of this machine: used by all processes, and by this one."""

    clock: float
    everybody: float
    process: float


def read_processor_times() -> ProcessorTimes | None:
    """Return the seconds until now; None if the system cannot say."""
    try:
        columns = PROCESSOR_TIMES.read_text(encoding="ascii").split(maxsplit=11)
        ticks = sum(int(columns[k]) for k in (USER, NICE, SYSTEM, INTERRUPTS, SOFT_INTERRUPTS, STOLEN))
        return ProcessorTimes(time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time())
    except (OSError, ValueError, IndexError):
        return None


def disturbed(before: ProcessorTimes | None, after: ProcessorTimes | None, cores: int) -> bool:
    """Whether other processes used cores between two moments that this process may have needed."""
    if before is None or after is None:
        return False
    clock, everybody, process = (late - early for early, late in zip(before, after, strict=True))
    others = everybody - process
    return others > SHARE * clock + TICK_SECONDS and cores * clock - everybody < IDLE_SHARE * clock


def start_watching() -> Callable[[], bool]:
    """Return a function that says whether other work has disturbed this process since now."""
    before, cores = read_processor_times(), os.cpu_count() or 1
    return lambda: disturbed(before, read_processor_times(), cores)
