"""How far an import of records is: a bar in a terminal, silence elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TextIO


@contextlib.contextmanager
def show_import(name: str, out: TextIO | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show a bar called ``name``, on standard error by default, while the context lasts.

    Yields the function to call with how much is done and of how much, 0 if unknown; the unit does not matter.
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
