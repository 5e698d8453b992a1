"""A file of rates measured on this machine, so that planning measures them once."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dsinga.base.durable_files import cache_folder, replace_file
from dsinga.base.regular_files import read_json
from dsinga.base.version import __version__

PROCESSOR_TIMES = Path("/proc/stat")  # Linux: ticks of all cores since the start
USER, NICE, SYSTEM, INTERRUPTS, SOFT_INTERRUPTS, STOLEN = 1, 2, 3, 6, 7, 8  # columns of the first line
# Others disturb a measurement if they use more than this share of a core, and leave less than this share of one idle.
SHARE, IDLE_SHARE = 0.2, 0.5
TICK_SECONDS = 0.03  # the system counts in ticks of 10 ms, for each core


class ProcessorTimes(NamedTuple):
    """Seconds of the clock, of the cores used by all processes, and by this process."""

    clock: float
    everybody: float
    process: float


def read_processor_times() -> ProcessorTimes | None:
    """Read the processor times so far; None if the system does not report them."""
    try:
        columns = PROCESSOR_TIMES.read_text(encoding="ascii").split(maxsplit=11)
        ticks = sum(int(columns[k]) for k in (USER, NICE, SYSTEM, INTERRUPTS, SOFT_INTERRUPTS, STOLEN))
        return ProcessorTimes(time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time())
    except (OSError, ValueError, IndexError):
        return None


def disturbed(before: ProcessorTimes | None, after: ProcessorTimes | None, cores: int) -> bool:
    """Whether other processes used cores that this process may have needed."""
    if before is None or after is None:
        return False
    clock, everybody, process = (late - early for early, late in zip(before, after, strict=True))
    others = everybody - process
    return others > SHARE * clock + TICK_SECONDS and cores * clock - everybody < IDLE_SHARE * clock


def start_watching() -> Callable[[], bool]:
    """Start to watch for other work on the cores; the returned function says whether there was any."""
    before, cores = read_processor_times(), os.cpu_count() or 1
    return lambda: disturbed(before, read_processor_times(), cores)


ATTEMPTS = 2  # to measure while nothing else uses the cores
REPEAT_SECONDS = 10.0  # for all second attempts: a machine that stays busy disturbs them, too
ANNOUNCE_SECONDS = 5.0  # between two announcements of a measurement

BUSY = "the machine is busy with other work: measured times will be too long, and are not kept"

Figures = tuple[float, ...]


class RateStore:
    """A cache of measured figures by a text key; :meth:`save` writes it to the file ``path``, if any.

    If other work disturbed the process, figures are measured again, for up to ``REPEAT_SECONDS`` in all. If the machine
    stays busy, figures are not written.

    Unreadable files, and files of another version of dsinga or numpy, count as empty.
    """

    def __init__(self, path: Path | None = None, announce: Callable[[str], None] | None = None):
        self.path = path
        self._announce = announce or (lambda sentence: None)
        self._announced_at = -ANNOUNCE_SECONDS
        self._repeat_seconds = 0.0
        self.measured = 0  # how many keys were missing
        self.doubtful: set[str] = set()  # keys with figures measured while the machine was busy
        self._figures = _read(path) if path else {}

    def get(self, key: str, measure: Callable[[], Sequence[float]], what: str = "") -> Figures:
        """Return the figures of ``key``; if they are missing, call ``measure``."""
        if key not in self._figures:
            self.measured += 1
            if time.monotonic() - self._announced_at >= ANNOUNCE_SECONDS:
                self._announced_at = time.monotonic()
                self._announce(f"measuring {what or key}, measurement {self.measured}")
            self._figures[key] = self._measure(key, measure)
        return self._figures[key]

    def _measure(self, key: str, measure: Callable[[], Sequence[float]]) -> Figures:
        """Measure until an attempt is undisturbed; otherwise return the figures with the smallest sum."""
        attempts: list[Figures] = []
        while len(attempts) < ATTEMPTS and (not attempts or self._repeat_seconds < REPEAT_SECONDS):
            disturbed, started = start_watching(), time.monotonic()
            attempts.append(tuple(measure()))
            self._repeat_seconds += time.monotonic() - started if len(attempts) > 1 else 0.0
            if not disturbed():
                return attempts[-1]
        if not self.doubtful:
            self._announce(BUSY)
        self.doubtful.add(key)
        return min(attempts, key=sum)

    @property
    def warning(self) -> str:
        """A warning about doubtful figures; empty if there are none."""
        if not self.doubtful:
            return ""
        return (
            f"the machine was busy with other work during {len(self.doubtful)} of {self.measured} measurements, so "
            "that these times are too long; they are not kept: repeat this when the machine is idle"
        )

    def save(self) -> None:
        """Merge newly measured figures into the file."""
        if self.path is None or self.measured == len(self.doubtful):
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            certain = {key: figures for key, figures in self._figures.items() if key not in self.doubtful}
            _write(self.path, {**_read(self.path), **certain})


def rates_file(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of this machine's file, in ``folder`` or else in the user's cache folder."""
    return (Path(folder) if folder else cache_folder()) / f"rates-{platform.node() or 'machine'}.json"


def _versions() -> dict[str, str]:
    return {"dsinga": __version__, "numpy": np.__version__}


def _read(path: Path) -> dict[str, Figures]:
    try:
        content = read_json(path)
        if content["versions"] != _versions():
            return {}
        return {str(key): tuple(map(float, figures)) for key, figures in content["figures"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write(path: Path, figures: Mapping[str, Figures]) -> None:
    replace_file(path, json.dumps({"versions": _versions(), "figures": dict(sorted(figures.items()))}, indent=1))
