"""What a run tells while it goes on: kept, written and shown."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from dsinga.errors import UserError
from dsinga.monitor.history import History
from dsinga.monitor.metrics_file import MetricsFile, read_metrics
from dsinga.monitor.progress import Progress, show_progress


class RunMonitor(contextlib.ExitStack):
    """Hands what the driver of a run tells to the history, the metrics file and the progress line.

    Args:
        name: of the job.
        steps: how many the run will have.
        workspace: folder for ``metrics.jsonl``; None for no file.
        resume: whether rows are added to those of an earlier run, which are otherwise put aside.
        progress: whether a line, or a picture in a notebook, is shown.
    """

    def __init__(self, name: str, steps: int, workspace: Path | None, resume: bool, progress: bool):
        super().__init__()
        self._name, self._steps = name, steps
        self._workspace, self._resume, self._progress = workspace, resume, progress
        self._file: MetricsFile | None = None
        self._shown: Progress | None = None
        self.history = History()

    def begin(self, step: int) -> None:
        """Take in that the run begins at ``step``. Raises UserError where the workspace cannot be written."""
        if self._workspace:
            try:
                self._open(self._workspace / "metrics.jsonl", step)
            except OSError as error:
                raise UserError(f"the workspace {self._workspace} cannot be written: {error}") from error
        if self._progress:
            self._shown = self.enter_context(show_progress(self._steps, self._name, earlier=self.history))

    def _open(self, path: Path, step: int) -> None:
        if not self._resume:
            put_aside(path.parent)
        self._file = self.enter_context(MetricsFile(path, step if self._resume else None))
        self.history = read_metrics(path)

    def record(self, row: dict[str, Any]) -> None:
        """Take in a row of the history."""
        self.history.append(row)
        if self._file:
            self._file.append(row)
        if self._shown:
            self._shown.event(row)

    def progress(self, row: dict[str, Any]) -> None:
        """Take in how far the run is, which is shown and forgotten."""
        if self._shown:
            self._shown.update(row)


def put_aside(workspace: Path) -> None:
    """Rename what an earlier run left in the workspace to ``*.old``, so that a new run is not mixed with it.

    One earlier run is kept, not more.
    """
    for name in ("metrics.jsonl", "checkpoint"):
        found, old = workspace / name, workspace / f"{name}.old"
        if found.exists():
            if old.is_dir():
                shutil.rmtree(old)
            found.replace(old)
