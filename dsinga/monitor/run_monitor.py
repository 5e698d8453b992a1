"""Defines RunMonitor, which keeps a run's history, writes ``metrics.jsonl`` and shows progress."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dsinga.base.advice import short_path
from dsinga.base.durable_files import replace_file
from dsinga.base.errors import RunError, UserError
from dsinga.base.regular_files import TABLE_BYTES, parse_json, read_regular
from dsinga.monitor.history import History
from dsinga.monitor.progress import Progress, show_progress
from dsinga.monitor.rows import RECOVERY, Row
from dsinga.monitor.standard_streams import error_stream
from dsinga.monitor.workspace_lock import WorkspaceLock, locked_workspace


class MetricsFile:
    """Writes rows of metrics to a JSON-lines file, each at once.

    With ``resumed_step``, the earlier run's rows up to this step are kept. Otherwise the file starts empty. It is
    replaced atomically.

    NaN and infinity, which JSON lacks, are written as null and read as NaN.

    If the disk is full, rows are written later; ``fault`` says why.
    """

    def __init__(self, path: str | os.PathLike[str], resumed_step: int | None = None):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if resumed_step is None or not self.path.exists():
            rows = []
        else:
            rows = [row for row in read_metrics(self.path) if row.get("step", 0) <= resumed_step]
        replace_file(self.path, "".join(map(_to_line, rows)))
        self._file = open(self.path, "ab", buffering=0)
        self._waiting = bytearray()
        self.fault = ""

    def append(self, row: Row) -> None:
        """Write a row as one line; numpy scalars become numbers."""
        self.extend([row])

    def extend(self, rows: Iterable[Row]) -> None:
        """Write several rows."""
        self._waiting += "".join(map(_to_line, rows)).encode()
        self._write()

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        if not self._file.closed:
            self._write()
            self._file.close()

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]  # a part, where the disk becomes full
        except OSError as error:
            self.fault = f"{self.path} cannot be written: {error.strerror or error}"
        else:
            self.fault = ""

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_metrics(path: str | os.PathLike[str]) -> History:
    """Read the metrics of a run from its ``metrics.jsonl`` or workspace, also while it trains.

    Raises UserError, with file and line, if it cannot be read.

    Examples:
        >>> import numpy as np
        >>> import dsinga
        >>> from dsinga import nn
        >>> model = nn.Sequential([nn.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> history = model.fit(np.ones((32, 3)), np.ones((32, 1)), workspace="run", progress=False)
        >>> dsinga.monitor.read_metrics("run")[-1]["step"]
        1
    """
    path = os.path.join(path, "metrics.jsonl") if os.path.isdir(path) else path
    try:
        *lines, _unfinished = read_regular(path, TABLE_BYTES).split(b"\n")
    except FileNotFoundError:
        raise UserError(f"{path} was not found; give the workspace of a run, or its metrics.jsonl") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}; move it away") from None
    rows = History()
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line)
        except ValueError as error:
            fault = f"not a row of metrics: {str(error)[:200]}"
            raise UserError(f"{path}:{number}: {fault}; correct or delete the line") from None
        if not isinstance(row, dict) or not _is_row(row):
            raise UserError(
                f"{path}:{number}: a row of metrics is a JSON object with a step, a phase and numbers, not "
                f"{line[:40].decode(errors='replace')!r}; correct or delete the line"
            )
        rows.append({name: math.nan if value is None else value for name, value in row.items()})
    return rows


def _is_row(row: Row) -> bool:
    numbers = [value for name, value in row.items() if name not in ("phase", "lost") and value is not None]
    return (
        isinstance(row.get("phase"), str)
        and type(row.get("step")) is int
        and all(isinstance(number, (int, float)) and abs(number) < math.inf for number in numbers)
    )


def _to_line(row: Row) -> str:
    return json.dumps({name: _to_json(value) for name, value in row.items()}, allow_nan=False) + "\n"


def _to_json(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value  # converts numpy scalars
    return None if isinstance(value, float) and not math.isfinite(value) else value


_log = logging.getLogger(__name__)

# What a run writes into its workspace.
RUN_FILES = ("metrics.jsonl", "timings.json", "checkpoint", "best.safetensors", "metrics.csv")


class RunMonitor(contextlib.ExitStack):
    """Passes a run's rows to its history, the metrics file and the display, within a ``with`` block.

    Args:
        workspace: folder for ``metrics.jsonl``; None for no file.
        resume: whether rows follow an earlier run's; else that moves to a folder ``run-1``, ``run-2``, ....
        progress: whether to show a progress line, or a picture in a notebook.

    Attributes:
        workspace_fault: says that the workspace was moved or deleted, else "".
    """

    def __init__(self, name: str, steps: int, workspace: Path | None, resume: bool, progress: bool):
        super().__init__()
        self._name, self._steps = name, steps
        self._workspace, self._resume, self._progress = workspace, resume, progress
        self._file: MetricsFile | None = None
        self._lock: WorkspaceLock | None = None
        self.workspace_fault = ""
        self._warned = False  # of rows that cannot be written
        self._earlier_run: Path | None = None
        self._display: Progress | None = None
        self.history = History()

    def begin(self, step: int) -> None:
        """Open the metrics file and the display, before training begins at ``step``."""
        if self._workspace:
            try:
                self._lock = self.enter_context(locked_workspace(self._workspace))
                self._open(self._workspace / "metrics.jsonl", step)
            except FileExistsError:
                raise UserError(f"the workspace {short_path(self._workspace)} is a file; give a folder") from None
            except OSError as error:
                raise UserError(f"the workspace {short_path(self._workspace)} cannot be written: {error}") from error
        if self._progress:
            with contextlib.suppress(OSError, ValueError):  # a closed terminal or stream
                self._display = show_progress(self._steps, self._name, earlier=self.history)
            self.callback(self._show, "close")
        if folder := self._earlier_run:
            self.remark(f"the earlier run in {short_path(folder.parent)} is kept in {short_path(folder)}")

    def _open(self, path: Path, step: int) -> None:
        if not self._resume:
            self._earlier_run = keep_earlier_run(path.parent)
        self._open_file(path, step if self._resume else None)
        self.history = read_metrics(path)

    def _open_file(self, path: Path, resumed_step: int | None) -> MetricsFile:
        self._file = self.enter_context(MetricsFile(path, resumed_step))
        self.callback(self._close_file, self._file)
        return self._file

    def check_workspace(self) -> None:
        """Create the workspace again, with all rows, if it was moved or deleted during the run.

        ``workspace_fault`` then says so. Raises RunError if that is impossible, as after another run has begun there.
        """
        if self._workspace is None or self._lock is None:
            return
        path, is_in_place = self._workspace / "metrics.jsonl", self._lock.is_in_place()
        if is_in_place and path.exists():
            return
        subject = short_path(path) if is_in_place else f"the workspace {short_path(self._workspace)}"
        fault = f"{subject} was moved or deleted while the run was writing it"
        try:
            if not is_in_place:
                self.workspace_fault = fault
                self._lock = self.enter_context(locked_workspace(self._workspace))
                keep_earlier_run(self._workspace)
            self._open_file(path, None).extend(self.history)
        except (OSError, UserError) as error:
            raise RunError(f"{fault}, and it cannot be made again: {error}") from error
        if not is_in_place:
            self.workspace_fault = f"{fault}; it is made again, with all metrics and without the earlier checkpoints"
        _log.warning("%s", self.workspace_fault or f"{fault}; it is written again")

    @property
    def has_workspace(self) -> bool:
        """Whether the run's workspace is where it was, perhaps created again."""
        return self._lock is not None and self._lock.is_in_place()

    def _close_file(self, file: MetricsFile) -> None:
        file.close()
        if file.fault:
            _log.warning("%s; the last rows are missing there", file.fault)

    def waiting(self, sentence: str) -> None:
        """Show that the run waits: in the display, on standard error or in the log."""
        if self._display:
            self._show("remark", sentence)
        elif self._progress:
            with contextlib.suppress(OSError, ValueError):  # a closed terminal or stream
                print(sentence, file=error_stream(), flush=True)
        else:
            _log.info(sentence)

    def record(self, row: dict[str, Any]) -> None:
        """Add a row to the history and the metrics file, and show it."""
        with contextlib.suppress(RunError):  # what ``workspace_fault`` says
            self.check_workspace()
        self.history.append(row)
        if self._file:
            self._file.append(row)
            if self._file.fault and not self._warned:
                self._warned = True
                _log.warning("%s; training goes on, and rows are written when that is possible again", self._file.fault)
        if row["phase"] != RECOVERY:  # of which the log says what there is to say
            self._show("show_row", row)

    def progress(self, row: dict[str, Any]) -> None:
        """Show the current step, speed and metrics, without keeping them."""
        self._show("update", row)

    def remark(self, sentence: str) -> None:
        """Add a sentence about the run to the history, and show it."""
        self.history.remarks.append(sentence)
        self._show("remark", sentence)

    def _show(self, method: str, *arguments: Any) -> None:
        """Call the display; its failure, as in a closed terminal, must not end the run."""
        if self._display is not None:
            try:
                getattr(self._display, method)(*arguments)
            except BlockingIOError:  # a pipe that is full now
                pass
            except (OSError, ValueError):
                self._display = None


def keep_earlier_run(workspace: Path) -> Path | None:
    """Move an earlier run's files out of the way, to ``run-<number>`` in the workspace; return that folder."""
    return move_to_new_folder([workspace / name for name in RUN_FILES], workspace, "run")


def move_to_new_folder(paths: Iterable[Path], workspace: Path, kind: str) -> Path | None:
    """Move files, where they exist, to a folder ``<kind>-<number>`` in a workspace; return it, or None."""
    files = [path for path in paths if path.exists()]
    if not files:
        return None
    folder = next(folder for n in itertools.count(1) if not (folder := workspace / f"{kind}-{n}").exists())
    folder.mkdir()
    for path in files:
        path.replace(folder / path.name)
    return folder
