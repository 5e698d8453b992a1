"""The settings of a search: all combinations of values, or random samples of distributions."""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.base.advice import option
from dsinga.base.errors import UserError

MOST_SETTINGS = 100_000  # of a search, each with a row in memory
MOST_VALUES, DEEPEST = 250_000, 100  # values of a setting, and lists within each other, as in a job file

# What is tried, by the path of a field of the job, or by the name of an argument.
Setting = dict[str, Any]
Space = Mapping[str, Any]


def make_settings(space: Space | Sequence[Space], samples: int | None = None, seed: int = 0) -> list[Setting]:
    """Return the settings of a space, or of several spaces one after another.

    A space maps a name to its values: a list, a distribution, or a single value. A distribution is an object with a
    method ``rvs(random_state=...)``, as those of scipy.stats, or a function of a :class:`numpy.random.Generator`.

    Args:
        space: the space, or a list of them. A list of dicts with single values is a list of settings.
        samples: how many settings are drawn. Without distributions they are different ones, at most all that there are;
            with them, a value of a list is drawn as often as any other. None for all combinations, the last name
            changing fastest.
        seed: determines the samples.

    Raises UserError for a space without names, for a list without values, for distributions without ``samples``, and
    for more than 100,000 settings.
    """
    spaces = [space] if isinstance(space, Mapping) else list(space)
    if not spaces:
        raise UserError("a search needs at least one setting; give a dict of lists, as in {'seed': [0, 1]}")
    for part in spaces:
        _check(part, samples)
    if not any(spaces):
        raise UserError("a search needs values to try; name a field of the job with some, as in {'seed': [0, 1]}")
    count = sum(map(_count, spaces)) if samples is None else samples
    if count > MOST_SETTINGS:
        remedy = f"draw some of them with {option('samples', '100')}" if samples is None else "draw fewer"
        raise UserError(f"a search has at most {MOST_SETTINGS:,} settings, not {count:,}; {remedy}")
    if samples is None:
        return [_combination(part, number) for part in spaces for number in range(_count(part))]
    random = np.random.default_rng(seed)
    ends = list(itertools.accumulate(map(_count, spaces)))
    has_distributions = any(_is_distribution(values) for part in spaces for values in part.values())
    if has_distributions or ends[-1] > np.iinfo(np.int64).max:  # of so many combinations none is drawn twice
        return [_draw(spaces[int(random.integers(len(spaces)))], random) for _ in range(samples)]
    numbers = random.choice(ends[-1], size=min(samples, ends[-1]), replace=False)
    return [_combination_of(spaces, ends, int(number)) for number in numbers]


def _check(space: Any, samples: int | None) -> None:
    if not isinstance(space, Mapping):
        raise UserError(f"what a search tries is a dict of lists, or a list of dicts, not {reprlib.repr(space)}")
    if samples is not None and samples < 1:
        raise UserError(f"a search draws at least 1 sample, not {samples}")
    for name, values in space.items():
        if not isinstance(name, str):
            raise UserError(f"the names of what a search tries are strings, not {name!r}")
        if _is_distribution(values):
            if samples is None:
                raise UserError(
                    f"{name!r} has a distribution; say how many settings are drawn, as in {option('samples', '20')}"
                )
        elif not len(_values(values)):
            raise UserError(f"{name!r} has no values to try; give at least one")
        else:
            _check_size(name, values)


def _check_size(name: str, values: Any) -> None:
    """Raise UserError where lists and mappings have too many values within each other, or one has itself in it."""
    count, pending = 0, [(values, 0)]
    while pending:
        value, depth = pending.pop()
        count += 1
        if depth > DEEPEST:
            raise UserError(f"{name!r} has lists nested more than {DEEPEST} deep, or one in itself; give plain values")
        if count > MOST_VALUES:
            raise UserError(f"{name!r} has more than {MOST_VALUES:,} values in lists of lists; give fewer")
        if isinstance(value, (list, tuple, Mapping)):
            items = value.values() if isinstance(value, Mapping) else value
            pending += [(item, depth + 1) for item in items]


def _is_distribution(values: Any) -> bool:
    return hasattr(values, "rvs") or callable(values)


def _values(values: Any) -> Sequence[Any]:
    """Return the values of a list, a range or an array; anything else is one value."""
    if isinstance(values, np.ndarray):
        return list(values)
    return values if isinstance(values, (list, tuple, range)) else [values]


def _count(space: Space) -> int:
    return math.prod(len(_values(values)) for values in space.values())


def _combination(space: Space, number: int) -> Setting:
    """Return one of all combinations of values, by its number."""
    setting = {}
    for name in reversed(list(space)):
        choices = _values(space[name])
        number, place = divmod(number, len(choices))
        setting[name] = _plain(choices[place])
    return {name: setting[name] for name in space}


def _combination_of(spaces: Sequence[Space], ends: Sequence[int], number: int) -> Setting:
    """Return one of all combinations of several spaces; ``ends`` are the numbers of combinations, added up."""
    which = next(place for place, end in enumerate(ends) if number < end)
    return _combination(spaces[which], number - (ends[which - 1] if which else 0))


def _draw(space: Space, random: np.random.Generator) -> Setting:
    setting = {}
    for name, values in space.items():
        if hasattr(values, "rvs"):
            value = values.rvs(random_state=random)
        elif callable(values):
            value = values(random)
        else:
            choices = _values(values)
            value = choices[int(random.integers(len(choices)))]
        setting[name] = _plain(value)
    return setting


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python, which messages and files can show."""
    return value.item() if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 else value
