"""Lists the settings that a search tries, from a space given as a dict, texts or a file."""

from __future__ import annotations

import bisect
import csv
import io
import itertools
import math
import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set, ValuesView
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.addons.search.ranges import NAMES, SearchRange, parse_range
from dsinga.addons.search.setting import Setting
from dsinga.base.advice import option
from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.base.regular_files import METADATA_BYTES, open_regular, read_regular_text

MOST_SETTINGS = 100_000  # the settings of a search, each with a row in memory
MOST_VALUES, DEEPEST = 250_000, 100  # values of a setting, and lists within each other

Space = Mapping[str, Any]


def make_settings(space: Space | Sequence[Space], samples: int | None = None, seed: int = 0) -> list[Setting]:
    """List the settings of a space, or of several spaces one after another.

    A space maps a name to its values: a list, a distribution, or a single value. A distribution is a
    :class:`SearchRange`, an object with ``rvs(random_state=...)``, as in scipy.stats, or a function of a
    :class:`numpy.random.Generator`.

    Args:
        space: the space, or a list of spaces. A list of dicts with single values is a list of settings.
        samples: the number of settings drawn. Without distributions they differ; with distributions, values of lists
            are drawn with equal chance. None for all combinations, the last name changing fastest.
        seed: the random seed of the samples.
    """
    spaces = [space] if isinstance(space, Mapping) else list(space)
    if not spaces:
        raise UserError("a search needs at least one setting; give a dict of lists, as in {'seed': [0, 1]}")
    for part in spaces:
        check_space(part, samples)
    check_whole("seed", seed, 0)
    if not any(spaces):
        raise UserError("a search needs values to try; name a field of the job with some, as in {'seed': [0, 1]}")
    count = sum(map(_count, spaces)) if samples is None else samples
    if count > MOST_SETTINGS:
        remedy = f"draw some of them with {option('samples', '100')}" if samples is None else "draw fewer"
        raise UserError(f"a search has at most {MOST_SETTINGS:,} settings, not {count:,}; {remedy}")
    offsets, ends = _offsets(spaces), list(itertools.accumulate(map(_count, spaces)))
    numbers: Sequence[int] = range(ends[-1])
    if samples is not None:
        random = np.random.default_rng(seed)
        has_distributions = any(is_distribution(values) for part in spaces for values in part.values())
        if has_distributions or ends[-1] > np.iinfo(np.int64).max:  # among so many combinations none is drawn twice
            drawn = (int(random.integers(len(spaces))) for _ in range(samples))
            return [_draw(spaces[part], offsets[part], random) for part in drawn]
        numbers = random.choice(ends[-1], size=min(samples, ends[-1]), replace=False).tolist()
    starts, parts = [0, *ends], [bisect.bisect_right(ends, number) for number in numbers]
    pairs = zip(parts, numbers, strict=True)
    return [_combination(spaces[part], offsets[part], number - starts[part]) for part, number in pairs]


def check_space(space: Any, samples: int | None) -> None:
    """Raise UserError for an object that is no space, or a name without values to try."""
    if not isinstance(space, Mapping):
        raise UserError(f"what a search tries is a dict of lists, or a list of dicts, not {reprlib.repr(space)}")
    if samples is not None and samples < 1:
        raise UserError(f"a search draws at least 1 sample, not {samples}")
    for name, values in space.items():
        if not isinstance(name, str):
            raise UserError(f"the names of what a search tries are strings, not {name!r}")
        if isinstance(values, type):
            raise UserError(f"{name!r} has the class {values.__name__}; give one made by it, as SearchRange(0.0, 0.5)")
        if is_distribution(values):
            if samples is None:
                raise UserError(
                    f"{name!r} has a distribution; say how many settings are drawn, as in {option('samples', '20')}"
                )
        elif isinstance(values, (Set, Iterator, ValuesView)):
            raise UserError(f"{name!r} has a {type(values).__name__}; give a list of values")
        elif not len(choices_of(values)):
            raise UserError(f"{name!r} has no values to try; give at least one")
        else:
            _check_size(name, values)


def _check_size(name: str, values: Any) -> None:
    count, pending = 0, [(values, 0)]
    while pending:
        value, depth = pending.pop()
        count += 1
        if depth > DEEPEST:
            raise UserError(f"{name!r} has lists nested more than {DEEPEST} deep, or one in itself; give plain values")
        if count > MOST_VALUES:
            raise UserError(f"{name!r} has more than {MOST_VALUES:,} values in lists of lists; give fewer")
        if isinstance(value, SearchRange):
            raise UserError(f"{name!r} has a SearchRange in a list; give it in place of the list")
        if isinstance(value, (list, tuple, Mapping)):
            items = value.values() if isinstance(value, Mapping) else value
            pending += [(item, depth + 1) for item in items]


def ranges_of(space: Space | Sequence[Space]) -> dict[str, SearchRange]:
    """Return the ranges in a space, or in several, by name."""
    spaces = [space] if isinstance(space, Mapping) else space
    return {name: value for part in spaces for name, value in part.items() if isinstance(value, SearchRange)}


def is_distribution(values: Any) -> bool:
    """Whether values are drawn, rather than listed."""
    return hasattr(values, "rvs") or callable(values)


def choices_of(values: Any) -> Sequence[Any]:
    """Return the values of a list, range, array or series; anything else, such as a frame, is one value."""
    if (getattr(values, "ndim", 0) or hasattr(values, "to_list")) and not hasattr(values, "columns"):
        return list(values)
    return values if isinstance(values, (list, tuple, range)) else [values]


def _count(space: Space) -> int:
    return math.prod(len(choices_of(values)) for values in space.values())


def _offsets(spaces: Sequence[Space]) -> list[dict[str, int]]:
    offsets, counts = [], Counter[str]()
    for space in spaces:
        offsets.append(dict(counts))
        counts.update({name: len(choices_of(values)) for name, values in space.items() if not is_distribution(values)})
    return offsets


def choose(space: Space, places: Mapping[str, int], offset: Mapping[str, int], drawn: Mapping[str, Any]) -> Setting:
    """Create a setting from places in lists of choices and from drawn values."""
    values = {name: plain(choices_of(space[name])[places[name]] if name in places else drawn[name]) for name in space}
    return Setting(values, {name: place + offset.get(name, 0) for name, place in places.items()})


def _combination(space: Space, offset: Mapping[str, int], number: int) -> Setting:
    places = {}
    for name in reversed(list(space)):
        number, places[name] = divmod(number, len(choices_of(space[name])))
    return choose(space, places, offset, {})


def _draw(space: Space, offset: Mapping[str, int], random: np.random.Generator) -> Setting:
    places, drawn = dict[str, int](), dict[str, Any]()
    for name, values in space.items():
        if hasattr(values, "rvs"):
            drawn[name] = values.rvs(random_state=random)
        elif callable(values):
            drawn[name] = values(random)
        else:
            places[name] = int(random.integers(len(choices_of(values))))
    return choose(space, places, offset, drawn)


def plain(value: Any) -> Any:
    """Convert a numpy number to a Python one, which messages and files can show."""
    return value.item() if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 else value


FUNCTION = re.compile(r"([a-zA-Z_]+)\(.*\)")
OPENING, CLOSING = "([{", ")]}"


def parse_space(overrides: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split overrides from the command line: overrides with one value, and the values to search by path.

    "path=a,b,c" has three values; commas within brackets or quotes do not separate.
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


def parse_values(text: str) -> list[Any] | SearchRange:
    """Parse a text as a list of values, or as the range that it names."""
    drawn = parse_range(text)
    if drawn is not None:
        return drawn
    function = FUNCTION.fullmatch(text.strip())
    if function is not None:
        hint = nearest(function[1], NAMES) if function[1] not in NAMES else ""
        raise UserError(f"{text.strip()!r} is no distribution{hint}; give one as in {NAMES[0]}(1, 10)")
    return [_value(part) for part in _split(text)]


def read_space(path: str | os.PathLike[str]) -> dict[str, Any] | list[dict[str, Any]]:
    """Read the space in a file: YAML or JSON with a dict of lists, or a list of dicts; CSV with a setting per line."""
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
    read = [
        {str(name): (isinstance(values, str) and parse_range(values)) or values for name, values in space.items()}
        for space in spaces
    ]
    return read if isinstance(content, list) else read[0]


def _read_table(path: Path) -> list[dict[str, Any]]:
    with io.TextIOWrapper(open_regular(path, METADATA_BYTES), encoding="utf-8-sig", newline="") as file:
        reader, settings = csv.DictReader(file), []
        for row in reader:
            if None in row or None in row.values():
                count = len(reader.fieldnames or ())
                raise UserError(f"{path}:{reader.line_num}: a line has as many values as the first line, {count}")
            settings.append({name: _value(text) for name, text in row.items()})
        return settings


def _load_yaml(text: str) -> Any:
    """Parse a YAML text, which may be JSON; merged mappings may not exceed a number of values."""
    import yaml  # Dask brings it

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
        def flatten_mapping(self, node: Any) -> None:
            super().flatten_mapping(node)
            if len(node.value) > MOST_VALUES:
                raise yaml.constructor.ConstructorError(None, None, "too many merged values", node.start_mark)

    return yaml.load(text, Loader)


def _split(text: str) -> list[str]:
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
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
