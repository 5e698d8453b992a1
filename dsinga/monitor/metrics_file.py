"""Writing and reading ``metrics.jsonl``, the rows of a run as one JSON object per line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dsinga.base.durable_files import replace_file
from dsinga.base.errors import UserError
from dsinga.base.regular_files import TABLE_BYTES, parse_json, read_regular
from dsinga.monitor.history import History, Row


class MetricsFile:
    """Appends rows to a JSON-lines file and flushes each of them to the operating system.

    Without ``resumed_step`` the file starts empty. With it, the rows of the earlier run up to ``resumed_step`` are kept
    and later ones removed, since the resumed run writes them again. The file is replaced atomically, so that a crash
    leaves either all old rows or the kept ones. An incomplete last line, from a crash, is removed.

    JSON has no NaN and no infinity: a loss that diverged is written as null and read back as NaN.

    Rows that cannot be written, because the disk is full, are kept and written later. ``fault`` says why, "" if all
    rows are in the file.
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
        """Write ``row`` as one line to the operating system. numpy scalars are written as numbers."""
        self.extend([row])

    def extend(self, rows: Iterable[Row]) -> None:
        """Write several rows, as :meth:`append` does one."""
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
    """Return the rows of a ``metrics.jsonl``; an incomplete last line, from a killed run, is left out.

    Raises UserError, with file and line, if a line is not a row of metrics, or the file cannot be read.
    """
    try:
        *lines, _unfinished = read_regular(path, TABLE_BYTES).split(b"\n")
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
    """Return whether a JSON object has what every row has: numbers, and the name of the phase."""
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
