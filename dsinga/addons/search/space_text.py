"""The space of a search as text: values after ``--set``, and files of settings."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.addons.search.space import MOST_VALUES
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.base.regular_files import METADATA_BYTES, open_regular, read_regular_text

Draw = Callable[[np.random.Generator], Any]

CALL = re.compile(r"(loguniform|uniform|randint)\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\)")
DISTRIBUTIONS = ("uniform", "loguniform", "randint")
FUNCTION = re.compile(r"([a-zA-Z_]+)\(.*\)")
OPENING, CLOSING = "([{", ")]}"


def parse_space(overrides: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the overrides with one value, and the values by path of those with several, or with a distribution.

    "path=a,b,c" are three values; a comma within brackets or quotes separates none. Distributions are
    ``uniform(low, high)``, ``loguniform(low, high)`` and ``randint(low, high)``, whose ``high`` is left out.
    """
    single, space = [], dict[str, Any]()
    for override in overrides:
        path, _, text = override.partition("=")
        if "[" in path and "]" not in path:  # the value begins behind the bracket of a layer's name
            head, _, tail = override.partition("]")
            path, _, text = tail.partition("=")
            path = f"{head}]{path}"
        values = parse_values(text)
        if isinstance(values, list) and len(values) == 1:
            single.append(override)
        else:
            space[path.strip()] = values
    return single, space


def parse_values(text: str) -> list[Any] | Draw:
    """Return the values of a text, or the distribution that it names."""
    call = CALL.fullmatch(text.strip())
    if call is not None:
        return _distribution(call[1], call[2], call[3])
    function = FUNCTION.fullmatch(text.strip())
    if function is not None:
        hint = nearest(function[1], DISTRIBUTIONS) if function[1] not in DISTRIBUTIONS else ""
        raise UserError(f"{text.strip()!r} is no distribution{hint}; give one as in {DISTRIBUTIONS[0]}(1, 10)")
    return [_value(part) for part in _split(text)]


def read_space(path: str | os.PathLike[str]) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the space in a file: YAML or JSON with a dict of lists, or a list of dicts; CSV with a setting a line.

    A text such as "loguniform(1e-4, 1e-1)" is a distribution. Raises UserError for a file that is none of these.
    """
    path = Path(path)
    try:
        if path.suffix == ".csv":
            return _read_table(path)
        content = _load_yaml(read_regular_text(path))
    except UserError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"the settings {path} cannot be read: {error}") from error
    except Exception as error:  # yaml's own errors
        raise UserError(f"{path} is no YAML file: {error}") from error
    spaces = content if isinstance(content, list) else [content]
    if not spaces or not all(isinstance(space, Mapping) for space in spaces):
        raise UserError(f"{path} has neither a dict of values by path nor a list of such")
    read = [{str(name): _read_values(values) for name, values in space.items()} for space in spaces]
    return read if isinstance(content, list) else read[0]


def _read_table(path: Path) -> list[dict[str, Any]]:
    """Return the settings of a CSV file; raise UserError for a line that has not as many values as the first."""
    with io.TextIOWrapper(open_regular(path, METADATA_BYTES), encoding="utf-8-sig", newline="") as file:
        reader, settings = csv.DictReader(file), []
        for row in reader:
            if None in row or None in row.values():
                count = len(reader.fieldnames or ())
                raise UserError(f"{path}:{reader.line_num}: a line has as many values as the first line, {count}")
            settings.append({name: _value(text) for name, text in row.items()})
        return settings


def _load_yaml(text: str) -> Any:
    """Return what a YAML text has; JSON is a part of it. Mappings that merge others have a bounded number of values."""
    import yaml  # which Dask brings

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
        def flatten_mapping(self, node: Any) -> None:
            super().flatten_mapping(node)
            if len(node.value) > MOST_VALUES:
                raise yaml.constructor.ConstructorError(None, None, "too many merged values", node.start_mark)

    return yaml.load(text, Loader)


def _read_values(values: Any) -> Any:
    call = CALL.fullmatch(values.strip()) if isinstance(values, str) else None
    return values if call is None else _distribution(call[1], call[2], call[3])


def _distribution(name: str, first: str, last: str) -> Draw:
    text = f"{name}({first}, {last})"
    try:
        low, high = float(first), float(last)
    except ValueError:
        raise UserError(f"{text} must have two numbers, as in {name}(1, 10)") from None
    if not (low < high and math.isfinite(high - low)) or (name == "loguniform" and low <= 0):
        raise UserError(f"{text} must rise{' from above 0' if name == 'loguniform' else ''}, as in {name}(1, 10)")
    if name == "randint":
        return lambda random: int(random.integers(int(low), int(high)))
    if name == "uniform":
        return lambda random: random.uniform(low, high)
    return lambda random: math.exp(random.uniform(math.log(low), math.log(high)))


def _split(text: str) -> list[str]:
    """Return the parts of a text between commas that are in no brackets and no quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        depth += 0 if quote else (char in OPENING) - (char in CLOSING)
        if char == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _value(text: str) -> Any:
    """Return a number as such, any other text as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
