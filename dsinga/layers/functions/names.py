"""The names by which job files and saved models call functions: "module:function", or a registered name."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import entries, how_to_register, nearest, register
from dsinga.layers.functions.digest import DIGITS, FunctionDigest

LOCAL = re.compile(rf"\w+_[0-9a-f]{{{DIGITS}}}(_[0-9]+)?")  # the names that name_of makes for lambdas and the like
REMEDY = 'use a function of a module, "module:function", or name it by @dsinga.register("function", NAME)'


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
    if LOCAL.fullmatch(name):
        raise UserError(
            f"the function {name!r} has no name outside of the process that wrote this job, and is not the same in "
            f"this one; {REMEDY}, and write the job again"
        )
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
    """Return the name by which :func:`find_function` finds a function.

    One without a module, such as a lambda, is registered, with a digest of its code in the name: no other process finds
    another function by it.
    """
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
    digest = FunctionDigest(function)
    name = f"{base}_{digest.text}"
    if name in entries("function") and digest.is_constant:
        return name  # of a function that computes the same
    numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
    name = next(name for name in numbered if name not in entries("function"))
    register("function", name)(function)
    return name


def local_functions(text: str) -> list[str]:
    """Return the names of functions without a module, such as lambdas, in the text of a job.

    Another process finds them only where it has made the same functions.
    """
    found = dict.fromkeys(re.findall(r'\bfunction: "([^"]*)"', text))
    return [name for name in found if LOCAL.fullmatch(name)]
