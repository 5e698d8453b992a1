"""The extension that writes the history of a run to a CSV file, row by row."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dsinga.base.arguments import checked
from dsinga.base.durable_files import replace_file
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.base.regular_files import TABLE_BYTES, read_regular_text
from dsinga.extensions.best_value import checked_number
from dsinga.extensions.extension import ARGUMENTS, Extension, LoopView, State, choose_path
from dsinga.extensions.triggers import AtEnd
from dsinga.job.component import Settings, setting


@register("extension", kCSV=5)
class CSV(Extension):
    """Writes a line for each row of the history, with the columns step, phase, time, loss, and so on.

    A missing metric is an empty cell. If a metric first occurs later, the file is rewritten with a further column. A
    new run renames an earlier file to ``*.old``, unless it is to ``append``; a resumed run keeps the lines up to its
    step.
    """

    class Conf(Settings):
        """Settings of kCSV."""

        path: str | None = setting(None, "the file; by default metrics.csv in the workspace")
        append: bool = setting(False, "whether a new run keeps the lines of earlier ones, and adds its own")

    settings: Conf
    pauses = False

    def set_up(self) -> None:
        """Set the initial state; rows are written as they come."""
        self.trigger = AtEnd()
        self._path = Path()
        self._columns: list[str] = []
        self._earlier = 0  # lines of earlier runs, which a resumed run keeps, too

    def check(self, workspace: Path | None) -> None:
        """Choose the file's path; raise an error if it is a folder."""
        self._path = choose_path(self, workspace, self.settings.path, "metrics.csv", "path")
        if self._path.is_dir():
            raise self.error(f"{self._path} is a folder; give it the path of a file", "path")

    def start(self, loop: LoopView) -> None:
        """Begin a new file, or continue the file of the resumed run."""
        self.check(loop.workspace)
        self._columns = []
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and not loop.step and not self.settings.append:
                self._path.replace(self._path.with_name(f"{self._path.name}.old"))
            rows = self._read()
            if not loop.step:
                self._earlier = len(rows)
            added = [row for row in rows[self._earlier :] if int(row["step"]) <= loop.step]
            self._write_all([*rows[: self._earlier], *added])
        except (OSError, ValueError, KeyError, csv.Error) as error:
            raise self.error(f"the file {self._path} cannot be continued: {error}; name another path") from error

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Append a line for a row of the history."""
        new = [name for name in row if name not in self._columns]
        try:
            if new:
                rows = self._read()
                self._columns += new
                self._write_all([*rows, row])
            else:
                with open(self._path, "a", encoding="utf-8", newline="") as file:
                    file.write(_to_lines([row], self._columns))
        except OSError as error:
            raise self.error(f"the file {self._path} cannot be written: {error}") from error

    def run(self, loop: LoopView) -> None:
        """Do nothing: rows are written already."""

    def state_dict(self) -> State:
        """Return the number of lines of earlier runs, for a checkpoint."""
        return {"earlier": self._earlier}

    def load_state(self, state: State) -> None:
        """Restore the number of lines of earlier runs."""
        self._earlier = checked_number(state.get("earlier", 0))

    def _read(self) -> list[dict[str, str]]:
        """Read the file's complete lines, without one that a killed process broke off; note the columns."""
        if not self._path.exists():
            return []
        text = read_regular_text(self._path, TABLE_BYTES)
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
        self._columns = list(reader.fieldnames or ())
        return list(reader)

    def _write_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        header = _to_lines([{name: name for name in self._columns}], self._columns) if self._columns else ""
        replace_file(self._path, header + _to_lines(rows, self._columns))


def _to_lines(rows: Iterable[Mapping[str, Any]], columns: list[str]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue()


@functools.partial(checked, instead=ARGUMENTS)
def CSVLogger(filename: Any, separator: str = ",", append: bool = False) -> CSV:
    """Create the extension that writes the history as a CSV file; ``append`` keeps the lines of earlier fits."""
    if separator != ",":
        raise UserError(f"CSVLogger writes columns separated by commas, not by {separator!r}; leave separator out")
    return CSV(path=filename, append=append)
