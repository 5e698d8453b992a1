"""Notices that what a function reads has changed since it was compiled: JAX takes it for constant."""

from __future__ import annotations

import functools
import zlib
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from dsinga.base.registry import is_user_code
from dsinga.layers.functions.digest import is_importable

PLAIN = (bool, int, float, complex, str, bytes, type(None))


class ReadValues:
    """The values that a function reads besides its arguments. With equal ones it computes the same.

    Numbers, texts and numpy arrays count by their values. Lists, dicts, functions of the same module, and attributes
    that the code names are followed. Everything else, such as arrays of JAX, counts by its identity.
    """

    def __init__(self, function: Any):
        self._values: list[Any] = []
        self._kept: dict[int, Any] = {}  # by identity, which no new object gets as long as these live
        for part in user_functions(function):
            self._add(part, frozenset(), getattr(part, "__module__", None))

    def equals(self, other: ReadValues | None) -> bool:
        """Whether the values are the same."""
        return other is not None and self._values == other._values

    def _add(self, value: Any, names: frozenset[str], module: str | None) -> None:
        """Add a value that code of a module reads, in which ``names`` stand."""
        if type(value) in PLAIN:
            self._values.append((type(value), value))
        elif type(value) is np.ndarray and not value.dtype.hasobject:
            data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            self._values.append((value.shape, value.dtype.str, zlib.crc32(data.data)))
        else:
            self._values.append(id(value))
            if id(value) not in self._kept:
                self._kept[id(value)] = value
                parts, names = _parts(value, names, module)
                for part in parts:
                    self._add(part, names, module)


def user_functions(function: Any) -> list[Any]:
    """Return the user's functions that a function of this package calls; of another one itself."""
    if is_user_code(function):
        return [function]
    if hasattr(function, "function"):
        return user_functions(function.function)
    bases = [cls for cls in function.cls.__mro__ if is_user_code(cls)]
    return [member for cls in bases for member in vars(cls).values() if isinstance(member, FunctionType)]


def _parts(value: Any, names: frozenset[str], module: str | None) -> tuple[list[Any], frozenset[str]]:
    """Return what a value consists of, and the names that stand in the code which reads that."""
    if isinstance(value, FunctionType) and (value.__module__ == module or not is_importable(value)):
        names = _names(value.__code__)
        read = [value.__globals__[name] for name in sorted(names & value.__globals__.keys())]
        return [value.__defaults__, value.__kwdefaults__, *(value.__closure__ or ()), *read], names
    if isinstance(value, (FunctionType, type)):
        return [], names
    if isinstance(value, CellType):
        return [value.cell_contents] if value != CellType() else [], names
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__], names | _names(getattr(value.__func__, "__code__", None))
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords], names
    if isinstance(value, dict):
        return [part for item in value.items() for part in item], names
    if isinstance(value, (list, tuple, set, frozenset)):
        return [len(value), *value], names
    call = next((vars(cls)["__call__"] for cls in type(value).__mro__ if "__call__" in vars(cls)), None)
    names |= _names(getattr(call, "__code__", None))
    attributes = getattr(value, "__dict__", {})
    return [call, *(attributes[name] for name in sorted(names & attributes.keys()))], names


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType | None) -> frozenset[str]:
    """Return the names of globals and attributes in code, and in the functions within it."""
    if code is None:
        return frozenset()
    return frozenset(code.co_names).union(*(_names(const) for const in code.co_consts if isinstance(const, CodeType)))
