"""The result of a search: a row per setting, the best setting with params, and files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, overload

from dsinga.addons.pictures.panels import shown, to_svg
from dsinga.addons.search.importance import importance
from dsinga.addons.search.metric_values import Rung
from dsinga.addons.search.pictures import draw_search
from dsinga.addons.search.ranges import SearchRange
from dsinga.addons.search.setting import Setting, cell, describe_setting, distinct_labels, identity
from dsinga.addons.search.space import MOST_SETTINGS
from dsinga.api.jobs_with_data import Result
from dsinga.base.advice import option
from dsinga.base.durable_files import explained_writing, replace_file
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import nearest
from dsinga.base.regular_files import read_json
from dsinga.monitor import History, Row, read_metrics
from dsinga.monitor.run_monitor import move_to_new_folder
from dsinga.monitor.workspace_lock import HOLDER, locked_workspace

# The columns of a row before and after the columns of the setting.
NUMBER = "number"
# The states of rows that may have a score, the best first.
STATES = ("finished", "stopped", "cut")
ENDED = STATES[:2]  # runs that a resumed search leaves as they are
OUTCOME = ("rung", "state", "score", "steps", "seconds", "remark")
KINDS = {"score": (float, int, type(None)), "steps": (int,), "seconds": (float, int), "remark": (str,)}
# The files of a search in its workspace, and of a setting in its folder there.
TABLE, OUTCOME_FILE = "search.csv", "setting.json"
FOLDERS = "setting-*"


class SearchResult(Sequence[Row]):
    """The rows of a search, one for each setting, in the order of the settings.

    A row is a dict: "number", a column for each name of the setting, and

    | | |
    | --- | --- |
    | "rung" | with halving: the rung that the run has reached, from 1 |
    | "state" | "finished", "stopped" (by halving), "cut" (on time, with the cluster; ``resume`` goes on), "failed" |
    | "score" | the last value of the metric, or for the best params if the run keeps them; None if unknown |
    | "steps", "seconds" | the steps done, and their time, without waiting for Dask workers |
    | "remark" | why the run was stopped, or has failed; otherwise "" |

    So ``pandas.DataFrame(result)`` is the table. A notebook displays it with pictures.

    Attributes:
        monitor: the metric that settings are compared by, such as "val/loss".
        higher: whether higher values are better.
        histories: the metrics of each run, by the number of the setting.
        best_result: the result of the best run with its params, None without one.
        workspace: the folder of the search, None without one.
        ranges: the ranges of numbers in the space, by name.
    """

    def __init__(self, monitor: str, higher: bool, workspace: Path | None = None):
        self.monitor, self.higher, self.workspace = monitor, higher, workspace
        self._rows: dict[int, Row] = {}
        self._settings: dict[int, Setting] = {}
        self.histories: dict[int, History] = {}
        self.best_result: Result | None = None
        self.ranges: Mapping[str, SearchRange] = {}

    def add(self, row: Row, setting: Setting, history: History) -> bool:
        """Add the row of a setting; return whether it is the best one now."""
        number = row[NUMBER]
        self._rows[number] = row
        self._rows = dict(sorted(self._rows.items()))
        self._settings[number], self.histories[number] = setting, history
        return self.best is row

    @property
    def columns(self) -> list[str]:
        """The names of all columns: "number", the settings' names, "state", "score", "steps", "seconds", "remark"."""
        has_rungs = any("rung" in row for row in self)
        return [NUMBER, *self._names, *(OUTCOME if has_rungs else OUTCOME[1:])]

    @property
    def best(self) -> Row | None:
        """The row of the best setting: finished first, then stopped, then cut; None without any."""
        rows = [row for row in self._rows.values() if row["state"] in STATES and not _is_missing(row["score"])]
        return min(rows, key=self._rank, default=None)  # the first of equal rows

    @property
    def best_setting(self) -> Setting | None:
        """The best setting, by name; None without one."""
        return None if self.best is None else self._settings[self.best[NUMBER]]

    def sorted(self, by: str = "score", reverse: bool = False) -> list[Row]:
        """Return the rows sorted, the best first, or by another column, rising; missing values last.

        Finished settings come before stopped ones, later rungs first, and cut ones.
        """
        if by not in self.columns:
            columns = ", ".join(self.columns)
            raise UserError(f"the result has no column {by!r}{nearest(by, self.columns)} (columns: {columns})")
        known = [row for row in self if not _is_missing(row.get(by))]
        numbers = all(isinstance(row[by], (int, float)) for row in known)

        def rank(row: Row) -> Any:
            return self._rank(row) if by == "score" else row[by] if numbers else cell(row[by])

        rest = [row for row in self if not any(row is known_row for known_row in known)]
        return [*sorted(known, key=rank, reverse=reverse), *rest]

    def _rank(self, row: Mapping[str, Any]) -> tuple[int, int, float]:
        return STATES.index(row["state"]), -row.get("rung", 0), -row["score"] if self.higher else row["score"]

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return list(self._rows.values())[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(list(self._rows.values()))

    def __repr__(self) -> str:
        states = Counter(row["state"] for row in self)
        counts = ", ".join(f"{count} {state}" for state, count in states.items()) or "none has ended"
        return f"<SearchResult of {len(self)} settings ({counts}): {self.describe_best()}>"

    def describe_best(self) -> str:
        """Describe the best setting in a text: "best 7 (seed=1): val/loss 0.31"."""
        best, setting = self.best, self.best_setting
        if best is None or setting is None:
            return "none has a score"
        return f"best {best[NUMBER]} ({describe_setting(setting)}): {self.monitor} {best['score']:.4g}"

    def _repr_html_(self) -> str:
        rows, names = self.sorted(), self.columns
        head = "".join(f"<th>{escape(self.monitor if name == 'score' else name)}</th>" for name in names)
        lines = ("".join(f"<td>{escape(cell(row.get(name)))}</td>" for name in names) for row in rows)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{escape(repr(self)[1:-1])}</p>{shown(self.draw)}{table}"

    def draw(self) -> str:
        """Draw the :meth:`figure` as an SVG element."""
        return to_svg(self.figure())

    def figure(self) -> Any:
        """Draw three pictures of the search as a Matplotlib figure.

        Each setting is a line through an axis for each name and one for the score, the darker the better. Below are the
        metric's curve for each setting, and the :meth:`importance` of each name.
        """
        phase, _, name = self.monitor.partition("/")
        curves = {
            number: [(row["step"], float(row[name])) for row in history.phase(phase) if name in row]
            for number, history in self.histories.items()
        }
        return draw_search(self._labelled(), self._names, self.monitor, self.ranges, curves)

    def importance(self) -> dict[str, float]:
        """Return how much of the variance of the settings' ranks each name explains, the highest share first.

        Interactions of names are in no share. Few settings say little: in one of 20 searches, a name without effect has
        a share above 0.39 with 12 settings, or above 0.15 with 40.
        """
        return importance(self._labelled(), self._names)

    def _labelled(self) -> list[Row]:
        labels = distinct_labels(self._settings)
        return [{**row, **labels[row[NUMBER]]} for row in self.sorted()]

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for setting in self._settings.values() for name in setting))


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def setting_folder(workspace: Path, number: int, count: int) -> Path:
    """Return the workspace of setting ``number`` of ``count``: setting-07 of 20.

    An existing folder with fewer or more zeros is reused.
    """
    widths = (len(str(count - 1)), *range(1, len(str(MOST_SETTINGS))))
    paths = [workspace / f"setting-{number:0{width}}" for width in widths]
    return next((path for path in paths if path.exists()), paths[0])


def keep_earlier_search(workspace: Path) -> Path | None:
    """Move an earlier search's files to ``search-<number>``; return the path, or None.

    Raises WorkspaceHeld if another program trains one of its settings.
    """
    for holder in workspace.glob(f"{FOLDERS}/{HOLDER}"):
        with locked_workspace(holder.parent):
            pass
    return move_to_new_folder([*workspace.glob(FOLDERS), workspace / TABLE], workspace, "search")


def write_outcome(
    folder: Path,
    setting: Setting,
    row: Row | None,
    monitor: str,
    rungs: Sequence[Rung] = (),
    earlier: Sequence[Row] = (),
) -> None:
    """Write a run's outcome to its folder, with the metric, rungs and earlier rows."""
    content: dict[str, Any] = {"setting": _plain(setting), "identity": identity(setting), "monitor": monitor}
    content["row"] = None if row is None else _plain(row)
    if rungs:
        content |= {"rungs": rungs, "earlier": [_plain(each) for each in earlier]}
    with explained_writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / OUTCOME_FILE, json.dumps(content, indent=1) + "\n")


def read_outcome(
    folder: Path, setting: Setting, monitor: str, rungs: Sequence[Rung] = (), states: Sequence[str] = ENDED
) -> tuple[list[Row], History] | None:
    """Read a run's rows, one for each rung it has ended, and its history; None without any.

    A last row counts if its state is in ``states``. Raises UserError if the folder is of another setting, metric or
    rungs, or damaged.
    """
    path = folder / OUTCOME_FILE
    try:
        content = read_json(path)
        kept_setting, kept_identity = content["setting"], content.get("identity")
        if not isinstance(kept_setting, dict) or not isinstance(kept_identity, (dict, type(None))):
            raise ValueError("its setting has no names")
        kept_monitor = str(content.get("monitor", monitor))
        kept_rungs = [Rung(*rung) for rung in content.get("rungs", ())]
        rows = [*content.get("earlier", ()), *([] if content["row"] is None else [content["row"]])]
        for rung, row in enumerate(rows, start=1):
            _check_row(row, rung if kept_rungs else None)
        rows = [row for row in rows if row["state"] in states]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{path} cannot be read: {reason}; remove the folder to train its setting again") from error
    if kept_setting != _plain(setting) if kept_identity is None else kept_identity != identity(setting):
        raise UserError(
            f"{folder} is of the setting {describe_setting(kept_setting)}, not {describe_setting(setting)}; go on with "
            "the same settings, each value of the same type and at its place in the list, or give another workspace"
        )
    if kept_monitor != monitor:
        raise UserError(
            f"{folder} has a score by {kept_monitor}, not {monitor}; go on with {option('monitor', kept_monitor)}, or "
            "give another workspace"
        )
    if kept_rungs != [*rungs]:
        raise UserError(
            f"{folder} is of a search with {_describe_rungs(kept_rungs)}, not {_describe_rungs(rungs)}; go on with the "
            "same halving and steps, or give another workspace"
        )
    metrics = folder / "metrics.jsonl"
    return (rows, read_metrics(metrics) if metrics.exists() else History()) if rows else None


def _check_row(row: Any, rung: int | None) -> None:
    if not isinstance(row, dict) or row.get("state") not in (*STATES, "failed") or row.get("rung") != rung:
        raise ValueError(f"{str(row)[:80]} is not the row of a run{f' of rung {rung}' if rung else ''}")
    for name, kinds in KINDS.items():
        if name not in row or type(row[name]) not in kinds:
            raise ValueError(f"the {name} of its row is {row.get(name)!r}")


def _describe_rungs(rungs: Sequence[tuple[int, int]]) -> str:
    return f"rungs at steps {', '.join(str(steps) for steps, _ in rungs)}" if rungs else "no rungs"


def write_table(workspace: Path, result: SearchResult) -> None:
    """Write the rows of a search as a CSV file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, result.columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_redacted, result))
    with explained_writing(workspace):
        workspace.mkdir(parents=True, exist_ok=True)
        replace_file(workspace / TABLE, text.getvalue())


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Convert values to JSON's types, without secrets; objects become their reprs."""
    plain: dict[str, Any] = json.loads(json.dumps(values, default=repr))
    return _redacted(plain)


def _redacted(values: dict[str, Any]) -> dict[str, Any]:
    return {name: redact(value) if isinstance(value, str) else value for name, value in values.items()}
