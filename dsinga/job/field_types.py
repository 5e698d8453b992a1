"""Reads the types of message fields from annotations, on first use."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from typing import Annotated, Any


class DeferredTypes:
    """Delays the reading of a message class's annotations until its field types are needed."""

    def __get__(self, message: Any, cls: Any) -> dict[str, Any]:
        if inspect.get_annotations(cls):
            hints = typing.get_type_hints(cls, include_extras=True)
        else:  # also where pickle makes a class by value, whose base's names are not known in this process
            hints = {name: hint for base in cls.__mro__[:0:-1] for name, hint in getattr(base, "_types", {}).items()}
        cls._types = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
        return cls._types


@functools.cache
def item_type(hint: Any) -> tuple[Any, bool]:
    """Return the type of one value of a field, and whether the field is a list."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # T | None
        hint = next(arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    hint = unannotated(hint)
    if typing.get_origin(hint) is list:
        return unannotated(typing.get_args(hint)[0]), True
    return hint, False


def unannotated(hint: Any) -> Any:
    """Return a field's type without its range."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


@functools.cache
def is_optional(hint: Any) -> bool:
    """Whether a field may be None."""
    return types.NoneType in typing.get_args(hint)
