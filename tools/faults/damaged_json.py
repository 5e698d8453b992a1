"""Damages the structure of JSON documents: values of other types, huge and nested ones, keys and items removed."""

from __future__ import annotations

import json
import random as random_module
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.faults.damage import damage_bytes

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 1 << 31, 1 << 70, -(1 << 63), 0.5, 1e308, float("nan"), float("inf"), "", "0",
    "x" * 3000, "\x00", "../..", "float32", "int32", "uint8", "<i4", ">f4", "big", "blosc", [], [0], [1, 2], [[]], {},
    {"name": "bytes"}, {"name": "x"}, "NaN",
)  # fmt: skip


def damage_json(random: random_module.Random, path: Path, other: Any = None) -> str:
    """Change one place of the JSON document ``path``; return what was done.

    ``other`` is a document of which parts are taken, at the place that has the same path.
    """
    document = _read(path)
    places = list(_places(document)) if isinstance(document, (dict, list)) else []
    if not places:
        return damage_bytes(random, path)
    holder, key = random.choice(places)
    kind = random.choice(("value", "remove", "number", "number", "nested", "copy", "text"))
    value = holder[key]
    if kind == "remove":
        del holder[key]
    elif kind == "number" and type(value) in (int, float):
        holder[key] = random.choice((value + 1, value - 1, value * 2, -value, 0, value * (1 << 40)))
    elif kind == "text" and isinstance(value, str) and value:
        at = random.randrange(len(value))
        holder[key] = value[:at] + random.choice("aA0/_.\n\u00e9") + value[at + random.randrange(2) :]
    elif kind == "copy" and other is not None:
        holder[key] = random.choice([outer[name] for outer, name in _places(other)])
    elif kind == "nested":
        depth = random.choice((50, 500, 5000, 200_000))
        holder[key] = "NESTED"
        text = json.dumps(document).replace('"NESTED"', "[" * depth + "]" * depth)
        path.write_text(text, encoding="utf-8")
        return f"{path.name}: {key!r} nested {depth} deep"
    else:
        holder[key] = random.choice(VALUES)
    path.write_text(json.dumps(document), encoding="utf-8")
    shown = "removed" if kind == "remove" else repr(holder[key])[:60]
    return f"{path.name}: {key!r} from {value!r:.60} to {shown}"


def _read(path: Path) -> Any:
    """Return the JSON document of a file, or None if an earlier damage has left none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each dict with each of its keys, and each list with each of its indices, of a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield document, key
        if isinstance(value, (dict, list)):
            yield from _places(value)
