"""The names by which job files and saved models call functions: "module:function", or a registered name."""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import entries, how_to_register, nearest, register


class CallableLayer:
    """Base of classes of layers that jobs may name, to be made from the arguments in the job."""


def find_function(name: str) -> Any:
    """Return the function or layer class of a name: registered, or "module:function", which is imported.

    Jobs may come from elsewhere, so that functions of the standard library, and other classes, are refused. Raises
    UserError where there is none.
    """
    known = entries("function")
    if name in known:
        return known[name]
    module, colon, path = name.partition(":")
    if not colon:
        remedy = 'or write "module:function"'
        raise UserError(
            f"there is no function {name!r}{nearest(name, known)}; {how_to_register('function', name)}, {remedy}"
        )
    if module != "__main__" and module.partition(".")[0] in sys.stdlib_module_names:
        raise UserError(f"the function {name!r} is one of the standard library, which jobs cannot call")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"the function {name!r} cannot be imported: {error}; put the folder of {module}.py into PYTHONPATH"
        ) from None
    for part in path.split("."):
        found = getattr(found, part, None)
    home = str(getattr(found, "__module__", None) or module)
    if home != "__main__" and home.partition(".")[0] in sys.stdlib_module_names:
        raise UserError(f"the function {name!r} is one of the standard library, which jobs cannot call")
    if isinstance(found, type) and not issubclass(found, CallableLayer):
        raise UserError(f"the class {name!r} is no layer: it does not inherit nn.Layer")
    if not callable(found):
        raise UserError(f"the module {module!r} has no function {path!r}; define it there before the job is read")
    return found


def name_of(function: Any) -> str:
    """Return the name by which :func:`find_function` finds a function; one without a module is registered."""
    for name, known in entries("function").items():
        if known is function:
            return name
    owner: Any = function if hasattr(function, "__qualname__") else type(function)
    name = f"{owner.__module__}:{owner.__qualname__}"
    try:
        if find_function(name) is function:
            return name
    except UserError:
        pass
    base = owner.__qualname__.rpartition(".")[2].strip("<>")
    names = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(1)))
    name = next(name for name in names if name not in entries("function"))
    register("function", name)(function)
    return name
