"""How far a run is, while it runs: a live line in a terminal, plain lines in a log, a picture in a notebook."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from html import escape
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from dsinga.monitor.curve import draw_curves
from dsinga.monitor.history import Row

NOT_SHOWN = {"step", "phase", "time"}


def show_progress(
    total_steps: int, name: str, *, start: int = 0, batchsize: int | None = None, out: TextIO | None = None
) -> Progress:
    """Return the Progress that suits where the run was started: notebook, terminal, or neither (a log, a pipe).

    Args:
        total_steps: The step at which the run will be done.
        name: What is trained, in a word or two.
        start: The step at which it starts, above 0 for a resumed run.
        batchsize: Records a step, over all workers; without it no samples per second are shown.
        out: Where lines go if this is no notebook; standard error by default, so that output can be piped.
    """
    out = out or sys.stderr
    pace = Pace(total_steps, start, batchsize)
    if in_notebook():
        return Picture(pace, name)
    return LiveLine(pace, name, out) if out.isatty() else PlainLines(pace, out)


class Progress(ABC):
    """Shown progress; a context manager that closes at its end. Its methods belong to one thread."""

    @abstractmethod
    def update(self, row: Row) -> None:
        """Show a row of training: "step" and "time" (seconds since the start), "loss", "accuracy", ..."""

    @abstractmethod
    def event(self, row: Row) -> None:
        """Show a row of another phase, a test or a validation."""

    @abstractmethod
    def advance(self, step: int) -> None:
        """Show that ``step`` is reached, of which there is no row."""

    @abstractmethod
    def close(self) -> None:
        """End the display; what it last showed stays."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Pace:
    """Steps a second over the last few rows, so that a slow start or a long test is soon forgotten."""

    def __init__(self, total_steps: int, start: int = 0, batchsize: int | None = None):
        self.total_steps = total_steps
        self.start = start
        self._batchsize = batchsize
        self._recent = deque([(start, 0.0)], maxlen=10)

    def describe(self, row: Row) -> str:
        """Take note of a row, and return "12,300 samples/s  0:01:05 left", as far as it is known."""
        self._recent.append((row["step"], row.get("time", 0.0)))
        (first_step, first_time), (step, now) = self._recent[0], self._recent[-1]
        if now <= first_time or step <= first_step:
            return ""
        rate = (step - first_step) / (now - first_time)
        parts = [f"{rate * self._batchsize:,.0f} samples/s"] if self._batchsize else []
        if step < self.total_steps:
            parts.append(f"{clock((self.total_steps - step) / rate)} left")
        return "  ".join(parts)


class PlainLines(Progress):
    """One line for every row: for logs, pipes and batch jobs."""

    def __init__(self, pace: Pace, out: TextIO):
        self._pace = pace
        self._out = out

    def update(self, row: Row) -> None:
        self._write(f"step {row['step']}/{self._pace.total_steps}  {values(row)}  {self._pace.describe(row)}")

    def event(self, row: Row) -> None:
        self._write(event_line(row))

    def advance(self, step: int) -> None:
        pass  # a log has no bar to move

    def close(self) -> None:
        self._out.flush()

    def _write(self, line: str) -> None:
        print(line.rstrip(), file=self._out, flush=True)


class LiveLine(Progress):
    """A bar at the bottom of the terminal that moves; tests and validations scroll by above it."""

    def __init__(self, pace: Pace, name: str, out: TextIO):
        self._pace = pace
        named, tail = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[tail]}", markup=False)
        columns = (named, BarColumn(), MofNCompleteColumn(), tail)
        # What the program prints to standard output stays there, even while the bar is on a terminal: it may be piped.
        self._bar = Bar(*columns, console=Console(file=out, highlight=False), redirect_stdout=False)
        self._task = self._bar.add_task(name, total=pace.total_steps, completed=pace.start, tail="")
        self._bar.start()

    def update(self, row: Row) -> None:
        tail = f"{values(row)}  {self._pace.describe(row)}"
        self._bar.update(self._task, completed=row["step"], tail=tail)

    def event(self, row: Row) -> None:
        self._bar.console.print(event_line(row), markup=False)

    def advance(self, step: int) -> None:
        self._bar.update(self._task, completed=step)

    def close(self) -> None:
        self._bar.stop()


class Picture(Progress):
    """The curves under the notebook's cell, and a line of text below; drawn anew at most twice a second."""

    def __init__(self, pace: Pace, name: str):
        from IPython.display import DisplayHandle

        self._pace = pace
        self._name = name
        self._rows: list[Row] = []
        self._step = pace.start
        self._tail = ""
        self._drawn = time.monotonic()
        self._handle = DisplayHandle()
        self._handle.display(self)

    def update(self, row: Row) -> None:
        self._tail = self._pace.describe(row)
        self._rows.append(row)
        self.advance(row["step"])

    def event(self, row: Row) -> None:
        self._rows.append(row)

    def advance(self, step: int) -> None:
        self._step = step
        if time.monotonic() - self._drawn > 0.5:
            self._drawn = time.monotonic()
            self._handle.update(self)

    def close(self) -> None:
        self._handle.update(self)

    def __repr__(self) -> str:
        return f"{self._name}: step {self._step}/{self._pace.total_steps}  {self._tail}".rstrip()

    def _repr_html_(self) -> str:
        return f"{draw_curves(self._rows)}<div>{escape(repr(self))}</div>"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; imports nothing where IPython is not in use."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def values(row: Row) -> str:
    """Write the numbers of a row: "loss 0.2134  accuracy 0.941"."""
    return "  ".join(f"{name} {value:.4g}" for name, value in row.items() if name not in NOT_SHOWN)


def event_line(row: Row) -> str:
    """Write a row of a test or validation: "step 200  test  loss 0.31  accuracy 0.951"."""
    return f"step {row['step']}  {row.get('phase', '')}  {values(row)}"


def clock(seconds: float) -> str:
    """Write a duration as hours, minutes and seconds: 3725 is "1:02:05"."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
