"""A setting of a search, as text to show, and as text that a resumed search recognises."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from dask.base import is_dask_collection, tokenize

from dsinga.base.redaction import redact

LONGEST_CELL, LONGEST_IDENTITY = 200, 100  # characters
# Where an object is in memory, as its text says, which differs from process to process.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Setting(dict[str, Any]):
    """One setting of a search: values by the path of a job's field, or the name of an argument.

    ``places`` has the place of each value that was chosen from a list, by name, counted through all spaces.
    """

    def __init__(self, values: Mapping[str, Any], places: Mapping[str, int] | None = None):
        super().__init__(values)
        self.places = places or {}


def _places(setting: Mapping[str, Any]) -> Mapping[str, int]:
    return setting.places if isinstance(setting, Setting) else {}


def identity(setting: Mapping[str, Any]) -> dict[str, str]:
    """Return texts that identify a setting's values in any process: place, type and contents of each."""
    places = _places(setting)
    return {name: f"{places.get(name, 'drawn')}: {_contents(value)}" for name, value in setting.items()}


def untold(setting: Mapping[str, Any]) -> str:
    """Return the name of a drawn value that no other process could recognise; "" if there is none."""
    drawn = (name for name in setting if name not in _places(setting))
    return next((name for name in drawn if _ADDRESS.search(repr(setting[name]))), "")


def _contents(value: Any) -> str:
    """Return a value's type and contents as text without secrets, the same in each process."""
    if hasattr(value, "__array__") and not is_dask_collection(value):
        text = f"{type(value).__name__} {tokenize(value)}"
    elif isinstance(value, (list, tuple)):
        text = f"[{', '.join(map(_contents, value))}]"
    elif isinstance(value, Mapping):
        text = f"{{{', '.join(f'{name!r}: {_contents(part)}' for name, part in value.items())}}}"
    else:
        text = _ADDRESS.sub("", repr(value))
    text = redact(text)
    return text if len(text) <= LONGEST_IDENTITY else hashlib.sha256(text.encode()).hexdigest()


def distinct_labels(settings: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the values of settings for tables, by number; choices that look alike get their place as text."""
    places: dict[tuple[str, str], set[int | None]] = defaultdict(set)
    for setting in settings.values():
        for name, value in setting.items():
            places[name, cell(value)].add(_places(setting).get(name))

    def label(setting: Mapping[str, Any], name: str) -> Any:
        text = cell(setting[name])
        return setting[name] if len(places[name, text]) == 1 else f"{text} [{_places(setting).get(name)}]"

    return {number: {name: label(setting, name) for name in setting} for number, setting in settings.items()}


def describe_setting(setting: Mapping[str, Any]) -> str:
    """Return a setting as text: "updater.momentum=0.9, seed=1"."""
    return ", ".join(f"{name}={cell(value)}" for name, value in setting.items())


def cell(value: Any) -> str:
    """Format a value as one line of text for a table, without secrets."""
    if value is None:
        return ""
    if isinstance(value, (float, str)):
        return f"{value:.4g}" if isinstance(value, float) else redact(" ".join(value.splitlines()))
    text = " ".join(redact(str(value)).split())
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}..."
