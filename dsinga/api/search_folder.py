"""The files of a search: a folder for each setting, in which its outcome is kept, and a table of all."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any

from dsinga.api.search_result import SearchResult, describe
from dsinga.api.search_space import Setting
from dsinga.durable_files import replace_file
from dsinga.errors import UserError
from dsinga.monitor import History, Row, read_metrics
from dsinga.redaction import redact
from dsinga.regular_files import read_regular_text

# The files of a search in its workspace, and of a setting in its folder there.
TABLE, OUTCOME_FILE = "search.csv", "setting.json"
FOLDERS = "setting-*"


def setting_folder(workspace: Path, number: int, count: int) -> Path:
    """Return the workspace of the run with setting ``number`` of ``count``: setting-07 of 20."""
    return workspace / f"setting-{number:0{len(str(count - 1))}}"


def keep_earlier_search(workspace: Path) -> Path | None:
    """Move what an earlier search has left in the workspace to its folder ``search-<number>``; return that, or None."""
    files = [path for path in (*workspace.glob(FOLDERS), workspace / TABLE) if path.exists()]
    if not files:
        return None
    folder = next(path for n in itertools.count(1) if not (path := workspace / f"search-{n}").exists())
    folder.mkdir()
    for path in files:
        path.replace(folder / path.name)
    return folder


def write_outcome(folder: Path, setting: Setting, row: Row) -> None:
    """Write the outcome of a run to its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / OUTCOME_FILE, json.dumps({"setting": _plain(setting), "row": _plain(row)}, indent=1) + "\n")


def read_outcome(folder: Path, setting: Setting) -> tuple[Row, History] | None:
    """Return the row and the history of a run that has finished or was stopped, None where the folder has none.

    Raises UserError where the folder is of another setting.
    """
    path = folder / OUTCOME_FILE
    try:
        kept = json.loads(read_regular_text(path))
        kept_setting, row = kept["setting"], kept["row"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error!r}; remove the folder to train its setting again") from error
    if kept_setting != _plain(setting):
        raise UserError(
            f"{folder} is of the setting {describe(kept_setting)}, not {describe(setting)}; go on with the same "
            "settings, or give another workspace"
        )
    if row["state"] not in ("finished", "stopped"):
        return None
    metrics = folder / "metrics.jsonl"
    return row, read_metrics(metrics) if metrics.exists() else History()


def write_table(workspace: Path, result: SearchResult) -> None:
    """Write the rows of a search as a CSV file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, result.columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_redacted, result))
    workspace.mkdir(parents=True, exist_ok=True)
    replace_file(workspace / TABLE, text.getvalue())


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them, without secrets; objects are their descriptions."""
    plain: dict[str, Any] = json.loads(json.dumps(values, default=repr))
    return _redacted(plain)


def _redacted(values: dict[str, Any]) -> dict[str, Any]:
    return {name: redact(value) if isinstance(value, str) else value for name, value in values.items()}
