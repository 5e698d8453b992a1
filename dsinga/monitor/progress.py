"""How far a run is, while it runs: a live line in a terminal, plain lines in a log, a picture in a notebook."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from html import escape
from typing import Any, TextIO

from dsinga.monitor.curve import draw_curves
from dsinga.monitor.history import Row

NOT_VALUES = {"step", "phase", "time", "samples_per_second"}


def show_progress(total_steps: int, name: str, out: TextIO | None = None, *, earlier: Iterable[Row] = ()) -> Progress:
    """Return the Progress that suits where the run was started: notebook, terminal, or neither (a log, a pipe).

    Args:
        total_steps: The step at which the run will be done.
        name: What is trained, in a word or two.
        out: Where lines go if this is no notebook; standard error by default, so that output can be piped.
        earlier: Rows of the history of a run that is resumed, with which a picture begins.
    """
    out = out or sys.stderr
    throughput = ThroughputEstimate(total_steps)
    if in_notebook():
        return Picture(throughput, name, earlier)
    return LiveLine(throughput, name, out) if out.isatty() else PlainLines(throughput, out)


class Progress(ABC):
    """Shown progress; a context manager that closes at its end. Its methods belong to one thread."""

    @abstractmethod
    def update(self, row: Row) -> None:
        """Show where training is: "step", "samples_per_second", and the newest "loss", "accuracy", ..."""

    @abstractmethod
    def event(self, row: Row) -> None:
        """Show a row of the history: of training (every ``disp_freq`` steps), of a test or a validation."""

    @abstractmethod
    def close(self) -> None:
        """End the display; what it last showed stays."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ThroughputEstimate:
    """Samples a second, and the time left by the last few updates: a slow start or a long test is soon forgotten."""

    def __init__(self, total_steps: int, clock: Callable[[], float] = time.monotonic):
        self.total_steps = total_steps
        self._clock = clock
        self._recent: deque[tuple[int, float]] = deque(maxlen=10)
        self._samples: float | None = None

    def update(self, row: Row) -> None:
        """Take note of a row of :meth:`Progress.update`, at the time of this call."""
        self._recent.append((row["step"], self._clock()))
        self._samples = row.get("samples_per_second")

    def __str__(self) -> str:
        parts = [] if self._samples is None else [f"{self._samples:,.0f} samples/s"]
        if len(self._recent) > 1:
            (first_step, first_time), (step, now) = self._recent[0], self._recent[-1]
            if first_step < step < self.total_steps:
                seconds = (self.total_steps - step) * (now - first_time) / (step - first_step)
                parts.append(f"{duration(seconds)} left")
        return "  ".join(parts)


class PlainLines(Progress):
    """One line for every row of the history: for logs, pipes and batch jobs."""

    def __init__(self, throughput: ThroughputEstimate, out: TextIO):
        self._throughput = throughput
        self._out = out

    def update(self, row: Row) -> None:
        self._throughput.update(row)

    def event(self, row: Row) -> None:
        tail = f"  {self._throughput}" if row["phase"] == "train" else ""
        print(f"{event_line(row, self._throughput.total_steps)}{tail}".rstrip(), file=self._out, flush=True)

    def close(self) -> None:
        self._out.flush()


class LiveLine(Progress):
    """A bar at the bottom of the terminal that moves; tests and validations scroll by above it."""

    def __init__(self, throughput: ThroughputEstimate, name: str, out: TextIO):
        from rich.console import Console  # only a terminal has such a line
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self._throughput = throughput
        named, tail = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[tail]}", markup=False)
        columns = (named, BarColumn(), MofNCompleteColumn(), tail)
        # What the program prints to standard output stays there, even while the bar is on a terminal: it may be piped.
        self._bar = Bar(*columns, console=Console(file=out, highlight=False), redirect_stdout=False)
        self._task = self._bar.add_task(name, total=throughput.total_steps, tail="")
        self._bar.start()

    def update(self, row: Row) -> None:
        self._throughput.update(row)
        self._bar.update(self._task, completed=row["step"], tail=f"{values(row)}  {self._throughput}")

    def event(self, row: Row) -> None:
        if row["phase"] != "train":
            self._bar.console.print(event_line(row, self._throughput.total_steps), markup=False)

    def close(self) -> None:
        self._bar.stop()


class Picture(Progress):
    """The curves under the notebook's cell, and a line of text below; drawn anew at most twice a second."""

    def __init__(self, throughput: ThroughputEstimate, name: str, earlier: Iterable[Row] = ()):
        from IPython.display import DisplayHandle

        self._throughput = throughput
        self._name = name
        self._rows = list(earlier)
        self._newest: Row = {"step": max((row["step"] for row in self._rows), default=0)}
        self._drawn = time.monotonic()
        self._handle = DisplayHandle()
        self._handle.display(self)

    def update(self, row: Row) -> None:
        self._throughput.update(row)
        self._newest = row
        if time.monotonic() - self._drawn > 0.5:
            self._drawn = time.monotonic()
            self._handle.update(self)

    def event(self, row: Row) -> None:
        self._rows.append(row)

    def close(self) -> None:
        self._handle.update(self)

    def __repr__(self) -> str:
        row = self._newest
        total = self._throughput.total_steps
        return f"{self._name}: step {row['step']}/{total}  {values(row)}  {self._throughput}".rstrip()

    def _repr_html_(self) -> str:
        return f'{draw_curves(self._rows)}<div style="white-space: pre-wrap">{escape(repr(self))}</div>'


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; imports nothing where IPython is not in use."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def values(row: Row) -> str:
    """Write the numbers of a row: "loss 0.2134  accuracy 0.941"."""
    return "  ".join(f"{name} {value:.4g}" for name, value in row.items() if name not in NOT_VALUES)


def event_line(row: Row, total_steps: int) -> str:
    """Write a row of the history: "step 200/400  test  loss 0.31  accuracy 0.951"."""
    return f"step {row['step']}/{total_steps}  {row['phase']}  {values(row)}"


def duration(seconds: float) -> str:
    """Write a duration as hours, minutes and seconds: 3725 is "1:02:05"."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
