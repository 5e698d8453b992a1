"""Finds users' functions by their names in jobs, and calls them on numpy arrays."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import find, how_to_register, imported, nearest, register, unregister, user_errors
from dsinga.job.function_digest import DIGITS, FunctionDigest

LOCAL = re.compile(rf"\w+_[0-9a-f]{{{DIGITS}}}(_[0-9]+)?")  # the names that name_of makes for lambdas and the like
# The names of functions that run code in what they are given.
RUNS_CODE = re.compile(
    r"^(_*(full_|unsafe_)?loads?|eval|exec|execfile|system|popen|run_path|import_file)$|pickle|deserial"
)
REMEDY = 'use a function of a module, "module:function", or name it by @dsinga.register("function", NAME)'


MOST_LOCAL = 64  # functions without a module that are kept although no model has them
_local: WeakValueDictionary[str, Any] = WeakValueDictionary()  # all of these that live


class CallableLayer:
    """Base of layer classes that a job may name, with arguments for the constructor."""


class LayerWeight(NamedTuple):
    """A param that a user's layer has requested by ``add_weight``, before it has values."""

    role: str
    shape: tuple[int, ...]
    initializer: Any
    trainable: bool

    @property
    def initial(self) -> float:
        """The constant that the param starts with if the job names no initialiser."""
        return 1.0 if self.initializer == "ones" else 0.0


def find_function(name: str) -> Any:
    """Find a user's function or layer class: a registered name, or "module:function" to import.

    Functions of the standard library and other classes are refused, because jobs may come from others.
    """
    known = {**_local, **imported("function")}
    module, colon, path = name.partition(":")
    if name in known or (not colon and find("function", name)):
        return known[name] if name in known else find("function", name)
    if LOCAL.fullmatch(name):
        raise UserError(
            f"the function {name!r} has no name outside of the process that wrote this job, and is not the same in "
            f"this one; {REMEDY}, and write the job again"
        )
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        remedy = 'or write "module:function"'
        raise UserError(
            f"there is no function {name!r}{nearest(name, known)}; {how_to_register('function', name)}, {remedy}"
        )
    _check_home(name, module, path)
    with user_errors(f"the function {name!r} cannot be imported: "):
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part, None)
    _check_home(name, str(getattr(found, "__module__", None) or module), getattr(found, "__qualname__", path))
    if isinstance(found, type) and not issubclass(found, CallableLayer):
        raise UserError(f"the class {name!r} is no layer: it does not inherit nn.Layer")
    if not callable(found):
        raise UserError(f"the module {module!r} has no function {path!r}; define it there before the job is read")
    return found


def _check_home(name: str, module: str, path: str) -> None:
    """Refuse a function that would let somebody else's job run arbitrary code."""
    package, last = module.partition(".")[0], path.rpartition(".")[2]
    if module != "__main__" and package in sys.stdlib_module_names:
        raise UserError(f"the function {name!r} is one of the standard library, which jobs cannot call")
    if RUNS_CODE.search(last) or "pickle" in module:
        raise UserError(
            f"the function {name!r} is called {last!r} in {module}, as functions are that read pickles or run what "
            "they read, which jobs cannot call; give your own function another name"
        )


def name_of(function: Any) -> str:
    """Return the name under which jobs and other processes find a user's function.

    A lambda is registered under a hash of its code.
    """
    taken = {**_local, **imported("function")}
    for name, known in taken.items():
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
    if name in taken and digest.is_constant:
        return name  # of a function that computes the same
    numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
    name = next(name for name in numbered if name not in taken)
    register("function", name)(function)
    with contextlib.suppress(TypeError):  # of what has no weak references, such as a function in C
        _local[name] = function
    for oldest in [name for name in imported("function") if name in _local][:-MOST_LOCAL]:
        unregister("function", oldest)
    return name


def local_functions(text: str) -> list[str]:
    """Return the names of functions in a job's text that only this process has, such as lambdas."""
    found = dict.fromkeys(re.findall(r'\bfunction: "([^"]*)"', text))
    return [name for name in found if LOCAL.fullmatch(name)]


def value_of(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Call a user's function of numpy arrays or PyTorch tensors, without gradients; return a numpy array."""
    try:
        return np.asarray(function(*arrays))
    except Exception:
        if "torch" not in sys.modules:
            raise
        return value_by_torch(function, arrays)


def value_by_torch(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Call a user's function of PyTorch tensors; return a numpy array."""
    import torch

    with torch.no_grad():
        value = function(*(torch.tensor(array) for array in arrays))
    return np.asarray(value)
