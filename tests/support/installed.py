"""Which built-in components are there: add-ons can be taken out of a checkout, and tests of the core pass without."""

import functools
import importlib.util

from dsinga.base.components import built_in


@functools.cache
def is_installed(kind: str, name: str) -> bool:
    """Whether the module of a built-in component is there; True for names that are not built in."""
    row = built_in(kind).get(name)
    try:
        return row is None or importlib.util.find_spec(row.module) is not None
    except ModuleNotFoundError:  # of its folder
        return False
