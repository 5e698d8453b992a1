"""The monitor of a run: keeps its history, writes its metrics file and shows its progress."""

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
    """Receives the rows of a run and passes them to the history, the metrics file and the progress display.

    A context manager, which closes the file and the display.

    Args:
        name: name of the job.
        steps: number of steps of the run.
        workspace: folder for ``metrics.jsonl``; None for no file.
        resume: whether rows are appended to those of an earlier run; otherwise these are renamed to ``*.old``.
        progress: whether a progress line is shown, or a picture in a notebook.
    """

    def __init__(self, name: str, steps: int, workspace: Path | None, resume: bool, progress: bool):
        super().__init__()
        self._name, self._steps = name, steps
        self._workspace, self._resume, self._progress = workspace, resume, progress
        self._file: MetricsFile | None = None
        self._display: Progress | None = None
        self.history = History()

    def begin(self, step: int) -> None:
        """Open the metrics file and the display for a run that begins at ``step``.

        Raises UserError if the workspace cannot be written.
        """
        if self._workspace:
            try:
                self._open(self._workspace / "metrics.jsonl", step)
            except OSError as error:
                raise UserError(f"the workspace {self._workspace} cannot be written: {error}") from error
        if self._progress:
            self._display = self.enter_context(show_progress(self._steps, self._name, earlier=self.history))

    def _open(self, path: Path, step: int) -> None:
        if not self._resume:
            rename_old_run(path.parent)
        self._file = self.enter_context(MetricsFile(path, step if self._resume else None))
        self.history = read_metrics(path)

    def record(self, row: dict[str, Any]) -> None:
        """Add a row to the history and the metrics file, and show it."""
        self.history.append(row)
        if self._file:
            self._file.append(row)
        if self._display:
            self._display.event(row)

    def progress(self, row: dict[str, Any]) -> None:
        """Show the current step, speed and metrics, without keeping them."""
        if self._display:
            self._display.update(row)

    def remark(self, sentence: str) -> None:
        """Add a sentence about the run to the history, and show it."""
        self.history.remarks.append(sentence)
        if self._display:
            self._display.remark(sentence)


def rename_old_run(workspace: Path) -> None:
    """Rename what an earlier run left in the workspace to ``*.old``, replacing what is called so already."""
    for name in ("metrics.jsonl", "checkpoint", "best.safetensors"):
        path, old_path = workspace / name, workspace / f"{name}.old"
        if path.exists():
            if old_path.is_dir():
                shutil.rmtree(old_path)
            path.replace(old_path)
