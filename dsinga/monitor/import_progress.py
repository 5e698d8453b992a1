"""The progress bar of an import of records; shown in a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TextIO


@contextlib.contextmanager
def show_import(name: str, out: TextIO | None = None) -> Iterator[Callable[[int, int], None]]:
    """Return a context that shows a progress bar titled ``name`` if ``out`` (standard error by default) is a terminal.

    It yields a function to call with the amount done and the total (0 if unknown), in any unit.
    """
    out = out or sys.stderr
    if not out.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=out), redirect_stdout=False) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
