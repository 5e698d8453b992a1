"""The base of every message of the schema: a dataclass that checks the types of its fields and knows where it was written."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, dataclass_transform

from dsinga.errors import UserError
from dsinga.registry import nearest


class Where(NamedTuple):
    """A place in a job file: its path and the line, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class JobError(UserError):
    """A mistake in a job. ``str()`` begins with ``file:line:`` where the place is known."""


@dataclass_transform(kw_only_default=True)
class Message:
    """Base of the schema's messages.

    Subclasses are keyword-only dataclasses. Construction converts each value to its field's type (an enum from its
    name, a message from a mapping, a list from one value or a sequence) and raises JobError, naming the field and the
    nearest valid name, where that cannot be done.
    """

    aliases: ClassVar[Mapping[str, str]] = {}  # other spellings of fields, as older documentation has them

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(kw_only=True)(cls)

    def __post_init__(self) -> None:
        for name, hint in field_types(type(self)).items():
            setattr(self, name, convert(getattr(self, name), hint, f"{type(self).__name__}.{name}"))

    # Set by the text reader, on the instance.
    _where: ClassVar[Where | None] = None
    _lines: ClassVar[Mapping[str, int]] = {}

    def where(self, field: str | None = None) -> Where | None:
        """Where this message, or one of its fields, was written; None for a message built in Python."""
        if self._where is None or field not in self._lines:
            return self._where
        return Where(self._where.file, self._lines[field])

    def error(self, message: str, field: str | None = None) -> JobError:
        """Return the JobError that says ``message`` about this message (or a field of it), with its place."""
        where = self.where(field)
        return JobError(f"{where}: {message}" if where else message)


@functools.cache
def field_types(cls: type[Message]) -> dict[str, Any]:
    """Return the fields of a message class with their resolved types, in the order of the schema."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]


def describe(hint: Any) -> str:
    """Return a word for a field's type, for error messages."""
    hint = strip_optional(hint)
    if typing.get_origin(hint) is list:
        return describe(typing.get_args(hint)[0])
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return names.get(hint, f"a {getattr(hint, '__name__', hint)}")


def strip_optional(hint: Any) -> Any:
    """Return T for ``T | None``, and any other type as it is."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    return hint


def convert(value: Any, hint: Any, what: str) -> Any:
    """Return ``value`` as the type ``hint``; raise JobError, calling the field ``what``, where it is none."""
    plain = strip_optional(hint)
    if value is None and plain is not hint:
        return None
    if typing.get_origin(plain) is list:
        item = typing.get_args(plain)[0]
        many = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        return [convert(one, item, what) for one in many]
    if typing.get_origin(plain) is dict:
        return dict(value)
    if issubclass(plain, Message) and isinstance(value, Mapping):
        return plain(**value)
    if issubclass(plain, enum.Enum) and not isinstance(value, plain):
        return member(value, plain, what)
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, plain) and not (plain is int and isinstance(value, bool)):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        return convert(value.item(), hint, what)
    raise JobError(f"{what} takes {describe(plain)}, not {value!r}")


def member(value: Any, cls: type[enum.Enum], what: str) -> enum.Enum:
    """Return the member of the enum ``cls`` with this name (or, as protobuf allows, this number)."""
    names = {**cls.__members__, **getattr(cls, "aliases", dict)()}
    if isinstance(value, str) and value in names:
        return names[value]
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return cls(value)
        except ValueError:
            pass
    raise JobError(f"{what}: there is no {cls.__name__} {value!r}{nearest(str(value), names)}")
