"""How OpenMP threads wait: the setting that the library reads, and spare threads while cores are scarce."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("dsinga.ops.onednn.library", exc_type=Exception)

from dsinga.ops.onednn import library
from dsinga.ops.onednn.waiting import (
    BUSY_CHECKS,
    BUSY_SHARE,
    IDLE_CHECKS,
    IDLE_SHARE,
    SPIN_COUNT,
    SpareThreads,
    SpinLimiter,
    core_wait_seconds,
)

TASKS = Path("/proc/self/task")
PRINT_LIMITED = "from dsinga.ops.onednn.library import limits_spinning; print(limits_spinning)"


def run(code: str, **environment: str) -> tuple[str, str]:
    """Return the last line that code prints, and what OpenMP says about its settings when it is loaded."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environment, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return (done.stdout.splitlines() or [""])[-1], done.stderr


def spin_counts(said: str) -> list[str]:
    return re.findall(r"GOMP_SPINCOUNT = '(\d+)'", said)


@pytest.mark.parametrize(
    ("environment", "limited", "count"),
    [
        ({}, "True", str(SPIN_COUNT)),
        ({"GOMP_SPINCOUNT": str(SPIN_COUNT)}, "True", str(SPIN_COUNT)),  # from a parent process
        ({"GOMP_SPINCOUNT": "77"}, "False", "77"),
        ({"OMP_WAIT_POLICY": "passive"}, "False", "0"),
        ({"OMP_WAIT_POLICY": "active"}, "False", "30000000000"),
    ],
    ids=str,
)
def test_threads_spin_for_a_moment_unless_the_user_has_set_how_they_wait(environment, limited, count):
    printed, said = run(PRINT_LIMITED, **environment)
    assert (printed, spin_counts(said)) == (limited, [count])


def wait_until(arrived: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not arrived():
        assert time.monotonic() < deadline, f"waited 60 s until {what}"
        os.sched_yield()


def threads() -> set[str]:
    return {task.name for task in TASKS.iterdir()}


def test_spare_threads_are_more_than_the_cores_and_end():
    before, count = threads(), len(os.sched_getaffinity(0)) + 1  # threads of other tests may end meanwhile
    spare = SpareThreads(library.lib)
    wait_until(lambda: len(threads() - before) >= count, "the spare threads have started")
    started = threads() - before
    spare.close()
    wait_until(lambda: len(started & threads()) <= len(started) - count, "they have ended")


class RecordedSpareThreads:
    """Spare threads in name only, which count how often they are created and closed."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def create(self) -> RecordedSpareThreads:
        self.calls.append("create")
        return self

    def close(self) -> None:
        self.calls.append("close")


def test_spinning_is_limited_while_the_machine_is_busy():
    spare = RecordedSpareThreads()
    limiter = SpinLimiter(spare.create)  # type: ignore[arg-type]
    busy, idle, between = BUSY_SHARE + 0.1, IDLE_SHARE / 2, (BUSY_SHARE + IDLE_SHARE) / 2
    for share in [busy, idle] * BUSY_CHECKS:
        limiter.observe(share)
    assert not limiter.is_limiting
    for _ in range(BUSY_CHECKS + 5):
        limiter.observe(busy)
    assert limiter.is_limiting
    for share in [*[idle] * (IDLE_CHECKS - 1), between, *[idle] * (IDLE_CHECKS - 1)]:
        limiter.observe(share)
    assert limiter.is_limiting
    limiter.observe(idle)
    assert spare.calls == ["create", "close"]


def test_the_time_of_waiting_for_a_core_grows():
    first = core_wait_seconds()
    second = core_wait_seconds()
    if first is None or second is None:
        pytest.skip("the system does not say how long a thread has waited for a core")
    assert 0 <= first <= second
