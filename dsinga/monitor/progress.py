"""Shows the progress of a run or an import: in a terminal, a log or a notebook."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Self, TextIO

from dsinga.base.advice import in_notebook
from dsinga.monitor.history import picture
from dsinga.monitor.rows import NOT_METRICS, Row
from dsinga.monitor.standard_streams import error_stream

# Columns of a row that are shown as a speed, with their units.
SPEEDS = {"samples_per_second": "samples/s", "env_steps_per_second": "env steps/s"}
NOT_VALUES = NOT_METRICS | SPEEDS.keys()


def show_progress(total_steps: int, name: str, out: TextIO | None = None, *, earlier: Iterable[Row] = ()) -> Progress:
    """Return the display of a run's progress that fits where it is shown: notebook, terminal, or log.

    Args:
        total_steps: The last step of the run.
        name: The name of the job.
        out: The stream for lines outside a notebook, by default standard error.
        earlier: The history of a resumed run, where the picture begins.
    """
    out = out or error_stream()
    throughput = ThroughputEstimate(total_steps)
    if in_notebook():
        return Picture(throughput, name, earlier)
    return LiveLine(throughput, name, out) if out.isatty() else PlainLines(throughput, out)


class ProgressDisplay(ABC):
    """A display of progress, used in a ``with`` block by one thread."""

    @abstractmethod
    def remark(self, sentence: str) -> None:
        """Show a sentence, such as why a run stopped early."""

    @abstractmethod
    def close(self) -> None:
        """End the display; its last state stays visible."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Progress(ProgressDisplay):
    """Shows the progress of a run."""

    @abstractmethod
    def update(self, row: Row) -> None:
        """Show the current "step", "samples_per_second", "loss", "accuracy", ..."""

    @abstractmethod
    def show_row(self, row: Row) -> None:
        """Show a row of the history: training metrics, a test or a validation."""


class ThroughputEstimate:
    """Estimates the speed and the time left, from the last ten updates."""

    def __init__(self, total_steps: int, clock: Callable[[], float] = time.monotonic):
        self.total_steps = total_steps
        self._clock = clock
        self._recent: deque[tuple[int, float]] = deque(maxlen=10)
        self._speeds: list[str] = []

    def update(self, row: Row) -> None:
        """Note the time at which a step was done."""
        self._recent.append((row["step"], self._clock()))
        speeds = [f"{row[name]:,.0f} {unit}" for name, unit in SPEEDS.items() if row.get(name) is not None]
        self._speeds = speeds[-1:]  # the samples of an agent are steps of environments

    def __str__(self) -> str:
        parts = [*self._speeds]
        if len(self._recent) > 1:
            (first_step, first_time), (step, now) = self._recent[0], self._recent[-1]
            if first_step < step < self.total_steps:
                seconds = (self.total_steps - step) * (now - first_time) / (step - first_step)
                parts.append(f"{duration(seconds)} left")
        return "  ".join(parts)


class PlainLines(Progress):
    """Prints one line per row of the history, for logs, pipes and batch jobs."""

    def __init__(self, throughput: ThroughputEstimate, out: TextIO):
        self._throughput = throughput
        self._out = out

    def update(self, row: Row) -> None:
        self._throughput.update(row)

    def show_row(self, row: Row) -> None:
        tail = f"  {self._throughput}" if row["phase"] == "train" else ""
        print(f"{event_line(row, self._throughput.total_steps)}{tail}".rstrip(), file=self._out, flush=True)

    def remark(self, sentence: str) -> None:
        print(sentence, file=self._out, flush=True)

    def close(self) -> None:
        self._out.flush()


class ProgressBar(ProgressDisplay):
    """A progress bar at the bottom of a terminal, with lines above it."""

    def __init__(self, total: int, name: str, out: TextIO):
        from rich.console import Console  # imported here, since only a terminal needs it
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        # Of a line that is wider than the terminal, the bar and the end are left out, not the title and the steps.
        widths = [Column(no_wrap=True, min_width=min(width, 24)) for width in (len(name), 2 * len(str(total)) + 1)]
        title = TextColumn("{task.description}", markup=False, table_column=widths[0])
        tail = TextColumn("{task.fields[tail]}", markup=False)
        columns = (title, BarColumn(), MofNCompleteColumn(table_column=widths[1]), tail)
        # The program's standard output is not redirected to the bar's terminal, since it may be piped.
        self._bar = RichProgress(*columns, console=Console(file=out, highlight=False), redirect_stdout=False)
        self._task = self._bar.add_task(name, total=total, tail="")
        self._bar.start()

    def remark(self, sentence: str) -> None:
        self._bar.console.print(sentence, markup=False)

    def close(self) -> None:
        self._bar.stop()


class LiveLine(ProgressBar, Progress):
    """A progress bar for a run, with lines for tests and validations above it."""

    def __init__(self, throughput: ThroughputEstimate, name: str, out: TextIO):
        super().__init__(throughput.total_steps, name, out)
        self._throughput = throughput

    def update(self, row: Row) -> None:
        self._throughput.update(row)
        self._bar.update(self._task, completed=row["step"], tail=f"{epoch_text(row)}{values(row)}  {self._throughput}")

    def show_row(self, row: Row) -> None:
        if row["phase"] != "train":
            self.remark(event_line(row, self._throughput.total_steps))


class Picture(Progress):
    """Curves of the metrics below a notebook's cell, redrawn at most twice a second."""

    def __init__(self, throughput: ThroughputEstimate, name: str, earlier: Iterable[Row] = ()):
        from IPython.display import DisplayHandle

        self._throughput = throughput
        self._name = name
        self._rows = list(earlier)
        self._remarks: list[str] = []
        self._latest: Row = {"step": max((row["step"] for row in self._rows), default=0)}
        self._draw_time = time.monotonic()
        self._handle = DisplayHandle()
        self._handle.display(self)

    def update(self, row: Row) -> None:
        self._throughput.update(row)
        self._latest = row
        if time.monotonic() - self._draw_time > 0.5:
            self._draw_time = time.monotonic()
            self._handle.update(self)

    def show_row(self, row: Row) -> None:
        self._rows.append(row)

    def remark(self, sentence: str) -> None:
        self._remarks.append(sentence)

    def close(self) -> None:
        self._handle.update(self)

    def __repr__(self) -> str:
        row = self._latest
        total = self._throughput.total_steps
        state = f"{self._name}: step {row['step']}/{total}  {epoch_text(row)}{values(row)}  {self._throughput}".rstrip()
        return "\n".join([state, *self._remarks])

    def _repr_html_(self) -> str:
        return f'{picture(self._rows)}<div style="white-space: pre-wrap">{escape(repr(self))}</div>'


def values(row: Row) -> str:
    """Write the metrics of a row as text: "loss 0.2134 accuracy 0.941"."""
    return "  ".join(f"{name} {value:.4g}" for name, value in row.items() if name not in NOT_VALUES)


def event_line(row: Row, total_steps: int) -> str:
    """Write a row of the history as text: "step 200/400 epoch 5 test loss 0.31 accuracy 0.951"."""
    return f"step {row['step']}/{total_steps}  {epoch_text(row)}{row['phase']}  {values(row)}"


def epoch_text(row: Row) -> str:
    """Write the epoch of a row as "epoch 5 ", "" without one."""
    return f"epoch {row['epoch']:g}  " if "epoch" in row else ""


def duration(seconds: float) -> str:
    """Write a duration as hours, minutes and seconds: 3725 is "1:02:05"."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"


@contextlib.contextmanager
def show_import(name: str, out: TextIO | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar for an import if ``out`` (default: standard error) is a terminal.

    It yields a function of the amount done and the total (0 if unknown).
    """
    out = out or error_stream()
    if not out.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=out), redirect_stdout=False) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
