"""The file that keeps the names of a model's classes and columns, with which other records are opened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsinga.base.durable_files import write_file
from dsinga.base.errors import UserError
from dsinga.base.regular_files import read_json
from dsinga.data import RecordNames

MARK = "$mark"  # a key: no input is called so


def write_names(names: Mapping[str, RecordNames], path: Path, mark: str) -> None:
    """Write the names of each input, if there are any, as JSON that says by ``mark`` what params they are for.

    Raises OSError.
    """
    if known := {name: each._asdict() for name, each in names.items() if any(each)}:
        write_file(path, json.dumps({MARK: mark, **known}, indent=1, ensure_ascii=False) + "\n")


def read_names(path: Path) -> dict[str, RecordNames]:
    """Return the names that :func:`write_names` wrote, none without a file; raise UserError for a damaged file."""
    if not path.is_file():
        return {}
    try:
        described = read_json(path)
        described.pop(MARK, None)
        for each in described.values():
            if columns := each.pop("columns", ()):  # as earlier versions wrote them
                each["order"] = [["row"], ["column", *columns]]
        names = {name: RecordNames(**{key: _names(each[key]) for key in each}) for name, each in described.items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({str(error)[:100]}); save the model again") from error
    return names


def _names(value: Any) -> Any:
    """Return names in nested lists as tuples. Raises TypeError for anything else."""
    if not isinstance(value, (str, list)):
        raise TypeError("a name is no text")
    return value if isinstance(value, str) else tuple(map(_names, value))
