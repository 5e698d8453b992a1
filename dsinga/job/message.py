"""Defines Message, the base class for parts of a job, which check their fields."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, dataclass_transform

from dsinga.base.components import built_in
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import lookup, nearest, registered
from dsinga.job.field_types import DeferredTypes, is_optional, item_type
from dsinga.job.type_names import TypeName

# Functions of dsinga that take a job, by the names that a reader looks for as methods.
CALLS = {name: name for name in ("train", "evaluate", "predict", "predict_batches", "plan")} | {"fit": "train"}
LISTED_NAMES = 8  # at most, that a message about a name lists where none is similar


class Where(NamedTuple):
    """A place in a job file, for errors: path and line, counted from 1; 0 without a line."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class JobError(UserError):
    """An error in a job; its text begins with ``file:line:``, if known, so that editors find the place."""


class FieldSignature:
    """Gives each message class a ``__signature__`` for help: its fields as keyword arguments."""

    def __get__(self, message: Message | None, cls: type[Message]) -> inspect.Signature:
        default, parameter = defaults(cls), inspect.Parameter
        parameters = [
            parameter(field.name, parameter.KEYWORD_ONLY, default=default.get(field.name, parameter.empty))
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        ]
        return inspect.Signature(parameters)


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class Message:
    """Base class for the parts of a job, such as layers: dataclasses that check and convert assigned values.

    An enum may be given by its name, a message as a mapping, a list as one value. Raises JobError, with the nearest
    valid name, for an unknown field or a wrong value.
    """

    aliases: ClassVar[Mapping[str, str]] = {}  # other spellings of fields, as older documentation has them

    # The engine that trains a job with this message in place of records (dsinga.job.Job.experience).
    engine: ClassVar[str] = ""

    __signature__: ClassVar[Any] = FieldSignature()

    # The text reader sets on each instance the place of the message and of each value of each field.
    _where: ClassVar[Where | None] = None
    _lines: ClassVar[Mapping[str, Sequence[Where]]] = {}

    # For each subclass: the types of the fields that it defines, with their ranges; the names of those that are
    # required; and, once they are asked for, the defaults of the others and what a new message has before its values.
    _types: ClassVar[dict[str, Any]] = {}
    _required: ClassVar[frozenset[str]] = frozenset()
    _defaults: ClassVar[dict[str, Any] | None] = None
    _initial: ClassVar[tuple[dict[str, Any], dict[str, Callable[[], Any]]] | None] = None

    def __init_subclass__(cls) -> None:
        own = "__init__" in vars(cls) or hasattr(cls, "__post_init__")
        dataclasses.dataclass(kw_only=True, init=own, repr=False, eq=False, match_args=False)(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        cls._types = DeferredTypes()  # type: ignore[assignment]
        cls._required = frozenset(f.name for f in fields if _lacks(f.default) and _lacks(f.default_factory))
        cls._defaults = cls._initial = None
        assign = cls.__init__

        @functools.wraps(assign)
        def init(self: Message, **values: Any) -> None:
            initialise(self, assign, values)

        cls.__init__ = init if own else Message.__init__  # type: ignore[method-assign]

    def __init__(self, **values: Any) -> None:
        initialise(self, assign_fields, values)

    @classmethod
    def all_types(cls) -> Mapping[str, Any]:
        """Return the types of all fields, by name, in the order of the schema."""
        return cls._types

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            name = field_name(type(self), name)
            if value is not None or not is_added(type(self), name):  # None unsets the message of an add-on
                value = convert(value, field_type(type(self), name), f"{type(self).__name__}.{name}")
        object.__setattr__(self, name, value)

    if not TYPE_CHECKING:  # which would then take every name for a field

        def __getattr__(self, name: str) -> Any:
            """Return None for an add-on's field that is not given."""
            if name in CALLS and type(self).__name__ == "Job":
                raise AttributeError(f"a job has no {name!r}; write dsinga.{CALLS[name]}(job)")
            if name.startswith("_") or not is_added(type(self), name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and set_fields(self) == set_fields(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = (f"{name}={readable(value)!r}" for name, value in set_fields(self).items())
        return f"{type(self).__name__}({', '.join(fields)})"

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed; None resets a field to its default."""
        changed = object.__new__(type(self))
        vars(changed).update(vars(self))
        for name, value in changes.items():
            default = defaults(type(self)).get(self.aliases.get(name, name))
            setattr(changed, name, copy.deepcopy(default) if value is None else value)
        return changed

    def where(self, field: str | None = None, item: int = 0) -> Where | None:
        """Return this message's, or a field's, place in the job file; None if made in Python."""
        places = self._lines.get(field or "", ())
        return places[min(item, len(places) - 1)] if places else self._where

    def error(self, message: str, field: str | None = None, item: int = 0) -> JobError:
        """Return a JobError about this message or a value, with the place in the job file."""
        where = self.where(field, item)
        return JobError(f"{where}: {message}" if where else message)


def initialise(message: Message, assign: Callable[..., None], values: Mapping[str, Any]) -> None:
    """Fill a new message with the given values, checked and converted."""
    cls = type(message)
    fields = {field_name(cls, name): value for name, value in values.items()}
    if text := missing(cls, fields):
        raise JobError(text)
    derived = {name: fields.pop(name) for name in [*fields] if name not in cls._types}
    assign(message, **fields)
    for name, value in derived.items():
        setattr(message, name, value)


def field_types(cls: type[Message]) -> Mapping[str, Any]:
    """Return the types of a message class's own fields, with ranges, by name; without add-ons' fields."""
    return cls.all_types()


def added_fields(cls: type[Message]) -> list[str]:
    """Return the names of the fields that add-ons contribute to a message, without importing them.

    An add-on registers a class as ``message`` under, for instance, ``StoreConf.windows``.
    """
    owner = f"{cls.__name__}."
    return [name.removeprefix(owner) for name in registered("message") if name.startswith(owner)]


def is_added(cls: type[Message], name: str) -> bool:
    """Whether an add-on contributes a field."""
    name = f"{cls.__name__}.{name}"
    return name in built_in("message") or name in registered("message")  # which asks other distributions


def field_names(cls: type[Message]) -> list[str]:
    """Return the names of all fields of a message class, add-ons' last."""
    return [*field_types(cls), *added_fields(cls)]


def field_type(cls: type[Message], name: str) -> Any:
    """Return a field's type, from its add-on if need be. Raises UserError if the add-on is missing."""
    hint = field_types(cls).get(name)
    return added_message(cls, name) | None if hint is None else hint


def importable_fields(cls: type[Message]) -> dict[str, Any]:
    """Return the types of all fields by name, without fields of missing add-ons."""
    types = {}
    for name in field_names(cls):
        with contextlib.suppress(UserError):
            types[name] = field_type(cls, name)
    return types


def added_message(cls: type[Message], name: str) -> Any:
    """Return the message class of a field that an add-on contributes."""
    message = lookup("message", f"{cls.__name__}.{name}")
    if not is_message(message):
        raise UserError(f"the message {cls.__name__}.{name} is {message!r}; register a subclass of dsinga.job.Settings")
    return message


def defaults(cls: type[Message]) -> dict[str, Any]:
    """Return the defaults of fields, by name, which the caller must not change."""
    if cls._defaults is None:
        cls._defaults = dict(default_values(cls))
    return cls._defaults


def assign_fields(message: Message, /, **fields: Any) -> None:
    """Fill a new message like a dataclass's ``__init__``, but faster: defaults are converted once per class."""
    constants, makers = initial(type(message))
    values = vars(message)
    values.update(constants)
    for name in type(message)._types:
        if name in fields:
            setattr(message, name, fields[name])
        elif name in makers:
            value = makers[name]()
            if value or type(value) is not list:
                setattr(message, name, value)
            else:  # there is nothing to convert
                values[name] = value


def initial(cls: type[Message]) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
    """Return the defaults of new messages: constants by field, and functions that make the others."""
    if cls._initial is None:
        constants, makers = dict[str, Any](), dict[str, Callable[[], Any]]()
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            constants[field.name] = None
            if not _lacks(field.default_factory):
                makers[field.name] = field.default_factory  # type: ignore[assignment]
            elif not _lacks(field.default):
                value = convert(field.default, cls._types[field.name], f"{cls.__name__}.{field.name}")
                constants[field.name] = value
                if isinstance(value, (list, Message)):  # each message has one of its own
                    makers[field.name] = functools.partial(getattr, field, "default")
        cls._initial = constants, makers
    return cls._initial


def default_values(cls: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, default) for each field of a dataclass that has one."""
    for field in dataclasses.fields(cls):
        if not _lacks(field.default):
            yield field.name, field.default
        elif not _lacks(field.default_factory):
            yield field.name, field.default_factory()  # type: ignore[operator]


def _lacks(default: object) -> bool:
    """Whether a field has no default, also in classes that were pickled by value."""
    return isinstance(default, type(dataclasses.MISSING))


def field_name(cls: type[Message], name: str) -> str:
    """Return the field of a message that a user's spelling means; suggest fields if there is none."""
    fields = field_types(cls)
    if name in fields:
        return name
    name = cls.aliases.get(name, name)
    if name not in fields and not is_added(cls, name):
        known = [*field_names(cls), *cls.aliases]
        hint = nearest(name, known) or f"; it has {', '.join(known[:8]) or 'none'}{', ...' * (len(known) > 8)}"
        raise JobError(f"{cls.__name__} has no field {name!r}{hint}")
    return name


def missing(cls: type[Message], fields: Iterable[str]) -> str:
    """Name the required fields that are not given, for an error; "" if none."""
    names = [repr(name) for name in cls._types if name in cls._required and name not in fields]
    return f"{cls.__name__} needs the field{'s' * (len(names) > 1)} {' and '.join(names)}" if names else ""


def set_fields(message: Message) -> dict[str, Any]:
    """Return the fields that differ from their defaults, by name."""
    default, values, required = defaults(type(message)), vars(message), message._required
    known = field_types(type(message))
    names = [name for name in known if name in values]
    names += [name for name in values if name not in known and not name.startswith("_")]  # of add-ons
    return {name: values[name] for name in names if name in required or values[name] != default.get(name)}


def readable(value: Any) -> Any:
    """Return a value as Python code shows it: enum members by name, secrets masked."""
    if isinstance(value, list):
        return [readable(item) for item in value]
    if isinstance(value, (enum.Enum, TypeName)):
        return value.name
    return redact(value) if isinstance(value, str) else value


def is_message(kind: Any) -> bool:
    """Whether a type is a message class."""
    return isinstance(kind, type) and issubclass(kind, Message)


def describe(kind: Any) -> str:
    """Name a type in words, for errors."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return words.get(kind, f"a {kind.__name__}")


def convert(value: Any, hint: Any, what: str) -> Any:
    """Return ``value`` converted to a field's type; JobErrors call the field ``what``."""
    kind, repeated = item_type(hint)
    if not repeated:
        if value is None and is_optional(hint):
            return None
        return convert_item(value, kind, what)
    several = type(value) is list or (isinstance(value, Iterable) and not isinstance(value, (str, Mapping)))
    return [convert_item(item, kind, what) for item in (value if several else [value])]


def convert_item(value: Any, kind: Any, what: str) -> Any:
    """Return a single ``value`` converted to ``kind``; JobErrors call the field ``what``."""
    if isinstance(value, Message) and isinstance(value, kind):
        return value
    if type(value) is kind and (kind in (str, float, bool) or (kind is int and value.bit_length() <= 64)):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        value = value.item()
    if issubclass(kind, (enum.Enum, TypeName)):
        return member(value, kind, what)
    if isinstance(value, Mapping) and is_message(kind):
        return kind(**value)
    if isinstance(value, bool) and kind is not bool:  # to Python a bool is an int
        pass
    elif kind is float and isinstance(value, int):
        if value.bit_length() >= 1024:
            return math.inf if value > 0 else -math.inf
        return float(value)
    elif kind is int and isinstance(value, int) and value.bit_length() > 64:
        raise JobError(f"{what} takes a whole number of at most 64 bits, not one of {value.bit_length()}")
    elif isinstance(value, kind):
        return value
    raise JobError(f"{what} takes {describe(kind)}, not {field_text(value)}")


# The layer types whose names in Keras differ most.
TYPES_OF_KERAS = {
    **{"Dense": "kInnerProduct", "Linear": "kInnerProduct", "Conv1D": "kConvolution1D", "Conv2D": "kConvolution"},
    **{"MaxPooling2D": "kPooling", "AveragePooling2D": "kPooling", "SimpleRNN": "kRNN", "Concatenate": "kConcate"},
    **{"BatchNormalization": "kBM", "LayerNormalization": "kLayerNorm", "LeakyReLU": "kReLU"},
}


def field_text(value: Any) -> str:
    """Return the repr of a value for errors, shortened."""
    if isinstance(value, int) and value.bit_length() > 1024:  # Python refuses to print the longest ones
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # deeply nested, or with such a number in it
        text = f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:80]}..."


def member(value: Any, cls: Any, what: str) -> Any:
    """Return the enum member with this name or number."""
    if type(value) is cls and cls.__members__.get(value.name) is value:
        return value
    names = {**cls.__members__, **getattr(cls, "aliases", dict)()}
    if isinstance(value, str) and value in names:
        return names[value]
    if not isinstance(value, bool):
        for candidate in names.values():
            if value is candidate or (type(value) is int and value == candidate.value):
                return candidate
    hint = _hint_of_keras(value, cls) or nearest(value, names) if isinstance(value, str) else ""
    if isinstance(value, str) and not hint and any(name.startswith("kUser") for name in names):
        hint = f'; name a class of your own by user_{what.rpartition(".")[2]}: "{value[:100]}"'
    if not hint and len(names) <= LISTED_NAMES:
        hint = f"; these are {', '.join(names)}"
    raise JobError(f"{what}: there is no {cls.__name__} {field_text(value)}{hint}")


def _hint_of_keras(name: str, cls: Any) -> str:
    """Suggest a layer type for one spelled as in Keras, such as kConv2D."""
    type = TYPES_OF_KERAS.get(name.removeprefix("k"), "") if getattr(cls, "kind", "") == "layer" else ""
    return f"; write {type}" if type else ""
