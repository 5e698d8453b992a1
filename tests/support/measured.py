"""Runs tests and writes what each takes, and which functions of ``dsinga/`` each file of tests calls.

``python -m tests.support.measured OUT ARGUMENT...`` runs pytest with the arguments, in one process, and adds a line of
JSON to OUT for each file of tests. :mod:`tests.support.suite_tables` makes tables of it. Seconds are of the processor,
by this process and those that it starts: they hardly depend on what else the machine does.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support import entered

TICKS = 100  # a second, in /proc


def cpu_seconds() -> float:
    """Return the processor seconds of this process, of those that it has waited for, and of those that run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + descendants("self") / TICKS


def descendants(process: str) -> int:
    """Return the ticks of the processes that a process has started and not waited for, and of all below them."""
    ticks = 0
    with contextlib.suppress(OSError):  # it ends
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            for child in children.read_text().split():
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                    ticks += sum(map(int, fields[11:15])) + descendants(child)
    return ticks


class Recorder:
    """A plugin of pytest: notes the seconds of each test, and what a file of tests calls."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.file = ""
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.last = cpu_seconds()

    def lap(self) -> float:
        """Return the seconds since the last call."""
        began = time.process_time()
        now, last = cpu_seconds(), self.last
        self.last = now + time.process_time() - began  # without what looking at other processes takes
        return round(now - last, 4)

    def write(self) -> None:
        """Add a line about the file whose tests have run, and begin anew."""
        called = [f"{module}:{entered.functions(module).get(line, line)}" for module, line in entered.taken()]
        if self.file:
            line = {"file": self.file, "seconds": self.seconds, "entered": called}
            with self.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
        self.seconds = defaultdict(list)

    def pytest_collection_finish(self) -> None:
        """Note what imports and collecting have taken."""
        self.file = "collection"
        self.seconds["collection"].append(self.lap())

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write about the file before, if this is the first test of another one."""
        if (file := nodeid.partition("::")[0]) != self.file:
            self.write()
            self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the seconds of setting up, of the test, or of what follows."""
        self.seconds[report.nodeid].append(self.lap())

    def pytest_sessionfinish(self) -> None:
        """Write about the last file."""
        self.write()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        entered.install(Path(folder))
        status = pytest.main(sys.argv[2:], plugins=[Recorder(Path(sys.argv[1]))])
        entered.marks.cache_clear()
    sys.exit(status)
