"""Writing and reading ``metrics.jsonl``, the rows of a run as one JSON object per line."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from dsinga.errors import UserError
from dsinga.monitor.history import History, Row


class MetricsFile:
    """Appends rows to a JSON-lines file and flushes each of them to the operating system.

    Without ``resumed_step`` the file starts empty. With it, the rows of the earlier run up to ``resumed_step`` are kept
    and later ones removed, since the resumed run writes them again. The file is replaced atomically, so that a crash
    leaves either all old rows or the kept ones. An incomplete last line, from a crash, is removed.

    JSON has no NaN and no infinity: a loss that diverged is written as null and read back as NaN.
    """

    def __init__(self, path: str | os.PathLike[str], resumed_step: int | None = None):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if resumed_step is None or not self.path.exists():
            rows = []
        else:
            rows = [row for row in read_metrics(self.path) if row.get("step", 0) <= resumed_step]
        replace_file(self.path, "".join(map(_to_line, rows)))
        self._file = open(self.path, "a", encoding="utf-8")

    def append(self, row: Row) -> None:
        """Write ``row`` as one line and flush it. numpy scalars are written as numbers."""
        self._file.write(_to_line(row))
        self._file.flush()

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_metrics(path: str | os.PathLike[str]) -> History:
    """Return the rows of a ``metrics.jsonl``; an incomplete last line, from a killed run, is left out.

    Raises UserError, with file and line, if a line is not a JSON object.
    """
    *lines, _unfinished = Path(path).read_text(encoding="utf-8").split("\n")
    rows = History()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not a row of metrics: {error}; correct or delete the line") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: a row of metrics must be a JSON object, not {line[:40]!r}")
        rows.append({name: math.nan if value is None else value for name, value in row.items()})
    return rows


def _to_line(row: Row) -> str:
    return json.dumps({name: _to_json(value) for name, value in row.items()}, allow_nan=False) + "\n"


def _to_json(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value  # converts numpy scalars
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replace_file(path: Path, text: str) -> None:
    """Replace the contents of the file ``path`` by ``text``: a process killed meanwhile leaves the old contents."""
    draft = path.with_name(path.name + ".draft")
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
