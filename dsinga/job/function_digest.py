"""Hashes functions that cannot be imported by name, so that processes can compare them."""

from __future__ import annotations

import dis
import functools
import hashlib
import os
import sys
from collections.abc import Iterable
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

DIGITS = 12
NEW = object().__reduce_ex__(2)[0]  # makes an object of a class, as pickle does
CODE = "co_code co_argcount co_posonlyargcount co_kwonlyargcount co_names co_varnames co_freevars co_consts".split()
TAKES_MORE = CO_VARARGS | CO_VARKEYWORDS  # of the flags, those that the code and the counts do not show


class FunctionDigest:
    """A hash of a function such as a lambda: code, defaults, and the values that it reads.

    Functions of other modules count by name. A value that cannot be compared gives a random digest.

    Attributes:
        is_constant: whether nothing that the function reads can change.
    """

    def __init__(self, function: Any):
        self.is_constant = True
        self._hash = hashlib.sha256()
        self._home = getattr(function, "__module__", None)
        self._seen: list[Any] = []
        self._add(function)

    @property
    def text(self) -> str:
        """The hash, as hexadecimal digits."""
        return self._hash.hexdigest()[:DIGITS]

    def _say(self, data: bytes) -> None:
        self._hash.update(b"%d:" % len(data) + data)

    def _add(self, value: Any) -> None:
        """Add a value, and the name of its type, to the hash."""
        self._say(f"{type(value).__module__}.{type(value).__qualname__}".encode())
        if value is None or type(value) in (bool, int, float, complex, str, bytes):
            self._say(repr(value).encode())
        elif isinstance(value, CodeType):
            self._add_all([value.co_flags & TAKES_MORE, *(getattr(value, name) for name in CODE)])
        elif isinstance(value, ModuleType):
            self._say(value.__name__.encode())
        elif type(value) is tuple:
            self._add_all(value)
        elif type(value) in (set, frozenset):
            self.is_constant &= type(value) is frozenset
            self._add_all(sorted(value, key=repr))
        elif any(seen is value for seen in self._seen):
            self._say(b"again")
        else:
            self._seen.append(value)
            self._add_parts(value)

    def _add_all(self, values: Iterable[Any]) -> None:
        for value in (found := list(values)):
            self._add(value)
        self._say(b"end of %d" % len(found))

    def _add_parts(self, value: Any) -> None:
        """Add a container or an object, which may contain itself, to the hash."""
        if isinstance(value, FunctionType) and value.__module__ != self._home and is_importable(value):
            self._say(f"{value.__module__}:{value.__qualname__}".encode())
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, MethodType):
            self._add_all([value.__func__, value.__self__])
        elif type(value) is functools.partial:
            self._add_all([value.func, value.args, *sorted(value.keywords.items())])
        elif type(value) in (list, dict):
            self.is_constant = False
            self._add_all(value if type(value) is list else value.items())
        elif isinstance(value, type) and not is_importable(value):
            members = sorted(
                (name, member) for name, member in vars(value).items() if callable(member) or name[:2] != "__"
            )
            self._add_all([value.__qualname__, value.__bases__, *members])
        elif not (isinstance(value, type) or is_importable(type(value))) and (parts := _parts_of_object(value)):
            self.is_constant = False
            self._add_all(parts)
        else:
            self.is_constant &= isinstance(value, (type, BuiltinFunctionType, np.ufunc))
            self._say(_pickled(value))

    def _add_function(self, function: FunctionType) -> None:
        cells = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                cells[name] = cell.cell_contents
            except ValueError:  # a name that the outer function has not set yet
                self.is_constant = False
        names = sorted(_global_names(function.__code__) & function.__globals__.keys())
        read = [function.__globals__[name] for name in names]
        self.is_constant &= all(callable(value) or isinstance(value, ModuleType) for value in read)
        keywords = sorted((function.__kwdefaults__ or {}).items())
        self._add_all([function.__code__, function.__defaults__, *keywords, *cells.items(), *names, *read])


def _global_names(code: CodeType) -> set[str]:
    """Return the names of the globals that a function's code reads."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found.union(*(_global_names(const) for const in code.co_consts if isinstance(const, CodeType)))


def is_importable(value: FunctionType | type) -> bool:
    """Whether a function or class can be imported by name from a module other than the script."""
    found: Any = sys.modules.get(value.__module__) if value.__module__ != "__main__" else None
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def _parts_of_object(value: Any) -> list[Any]:
    """Return the class, attributes and items of an object; nothing if it has its own pickling."""
    try:
        make, *parts = value.__reduce_ex__(2)
    except Exception:  # such as that of a lock, or of the user's class
        return []
    return [part if isinstance(part, (tuple, dict, type(None))) else list(part) for part in parts] * (make is NEW)


def _pickled(value: Any) -> bytes:
    """Return the pickle of a value, or random bytes if it has none."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception:  # pickling calls code of the value's class
        return os.urandom(DIGITS)
    return data
