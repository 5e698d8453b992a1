"""Lets components, such as layers and updaters, declare their settings, which job files then accept."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import inspect
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar, NamedTuple, TypeVar

from dsinga.base.arguments import fail_for_name
from dsinga.base.components import built_in
from dsinga.base.errors import UserError
from dsinga.base.registry import KINDS, entries, find, imported, is_user_code, lookup, version
from dsinga.job.limits import Range, metadata, number_range, out_of_range
from dsinga.job.message import (
    Message,
    convert,
    default_values,
    field_names,
    field_types,
    is_added,
    is_message,
    item_type,
    missing,
)

S = TypeVar("S", bound="Settings")


def setting(default: Any, doc: str = "") -> Any:
    """Declare a setting of a component, with its default and its meaning."""
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata={"doc": doc})
    return dataclasses.field(default=default, metadata={"doc": doc})


def required(doc: str = "") -> Any:
    """Declare a setting of a component that users must give, with its meaning."""
    return dataclasses.field(metadata={"doc": doc})


class Fault(NamedTuple):
    """A fault of settings: a sentence, and the field and list item that errors point at."""

    text: str
    field: str | None = None
    item: int = 0


class Settings(Message):
    """Base class for a component's settings, which a component declares as an inner class ``Conf``.

    Declare each field with type, default and meaning, by :func:`setting` or :func:`required`.

    A setting is an int, float, bool, str, an ``Enum``, or a list of these. :mod:`dsinga.job.limits` has bounded types:
    ``Count`` (at least 1), ``Natural`` (at least 0), ``NonNegative``, ``Positive``, ``Share`` (0 to below 1),
    ``Fraction`` (above 0, to 1) and ``Unit`` (0 to 1). Write other bounds as ``Annotated[int, Range(1, 8)]``. Override
    :meth:`faults` for settings that contradict each other.

    The message of PReLU is called PReLUConf, its field ``prelu_conf``. Pass ``name`` and ``field`` for other names.

    Attributes:
        field: the field of the component's message that holds these settings.
        needed: whether the field is required: if a setting is, or if ``needed`` is passed.
    """

    field: ClassVar[str] = ""
    needed: ClassVar[bool] = False

    def __init_subclass__(cls, name: str = "", field: str = "", needed: bool = False) -> None:
        owner = cls.__qualname__.split(".")[-2:][0]
        if cls.__name__ == "Conf":
            cls.__name__ = f"{owner}Conf"
        cls.__name__ = name or cls.__name__
        cls.field = field or f"{cls.__name__.removesuffix('Conf').lower()}_conf"
        _check_annotations(cls)
        super().__init_subclass__()
        cls.needed = needed or bool(cls._required)
        if is_user_code(cls):  # those of the package a test checks
            check_definition(cls)

    def faults(self) -> Iterator[Fault | str]:
        """Yield the faults of settings that contradict each other; a subclass overrides it.

        The first sentence, or :class:`Fault` with a field, raises an error with file and line before training.
        """
        return iter(())

    def all_faults(self) -> Iterator[Fault]:
        """Yield everything wrong with settings: numbers out of range, and faults of :meth:`faults`."""
        for field, item, value, allowed in out_of_range(self):
            yield Fault(f"{field} {allowed.fault(value)}", field, item)
        for fault in self.faults():
            if not isinstance(fault, (str, Fault)):
                raise self.error(f"faults of {type(self).__name__} must yield sentences or Fault(...), not {fault!r}")
            yield fault if isinstance(fault, Fault) else Fault(fault)


def _check_annotations(cls: type[Settings]) -> None:
    """Raise UserError if a setting is declared without a type, a default or documentation."""
    annotated = inspect.get_annotations(cls)
    for name, value in vars(cls).items():
        if isinstance(value, dataclasses.Field) and name not in annotated:
            raise UserError(f"{cls.__name__}: the setting {name!r} has no type; write {name}: TYPE = ...")
    namespace = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    for name, hint in annotated.items():
        if "ClassVar" in str(hint):
            continue
        field = vars(cls).get(name)
        if not (isinstance(field, dataclasses.Field) and field.metadata.get("doc")):
            lacks = "does not say what it means" if name in vars(cls) else "has no default"
            raise UserError(
                f"{cls.__name__}: the setting {name!r} {lacks}; write "
                f'{name}: TYPE = setting(DEFAULT, "what it means"), or required("what it means")'
            )
        try:
            eval(hint if isinstance(hint, str) else "hint", dict(namespace), {"hint": hint})
        except NameError as error:
            raise UserError(f"{cls.__name__}: the setting {name!r} has the type {hint!r}, but {error}") from None


def check_definition(cls: type[Settings]) -> None:
    """Raise UserError for a setting with an unsupported type, or a default out of its range."""
    default = dict(default_values(cls))
    for name, hint in cls._types.items():
        kind, repeated = item_type(hint)
        if kind not in (int, float, bool, str) and not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
            if not is_message(kind):
                raise UserError(
                    f"{cls.__name__}: the setting {name!r} has the type {getattr(kind, '__name__', kind)}; settings "
                    "are int, float, bool, str, an Enum, another Settings, or a list of these"
                )
        for limit in metadata(hint):
            if not (isinstance(limit, Range) and kind in (int, float)):
                text = f"{cls.__name__}: the type of {name!r} is annotated with {limit!r}; only int and float have"
                raise UserError(f"{text} annotations, which are ranges, as in Annotated[float, Range(0, 1)]")
            if limit.low > limit.high:
                low, high = limit[:2]
                raise UserError(
                    f"{cls.__name__}: Range({low}, {high}) of {name!r} is empty; give the lower bound first"
                )
        if name not in default:
            continue
        what = f"{cls.__name__}: the default of {name!r}"
        value = convert(default[name], hint, what)
        allowed = number_range(hint)
        for number in value if repeated else [value]:
            if allowed and number is not None and number not in allowed:
                raise UserError(f"{what} {allowed.fault(number)}")


def docs(cls: type[Message]) -> dict[str, str]:
    """Return the meaning of each setting, by name."""
    return {field.name: field.metadata.get("doc", "") for field in dataclasses.fields(cls)}  # type: ignore[arg-type]


def settings_class(component: Any) -> type[Settings] | None:
    """Return the settings class that a component declares, or None."""
    conf = getattr(component, "Conf", None)
    return conf if isinstance(conf, type) and issubclass(conf, Settings) else None


def component_settings(kind: str) -> Iterator[tuple[str, type[Settings]]]:
    """Yield (name, settings class) of each registered component that has settings."""
    for name, entry in entries(kind).items():
        if conf := settings_class(entry):
            yield name, conf


def settings_named(name: str) -> type | None:
    """Find a settings class, or a base of one, by its name; None if there is none."""
    field = f"{name.removesuffix('Conf').lower()}_conf"
    likely = (find(kind, each) for kind in KINDS for each, row in built_in(kind).items() if field in row.fields)
    for component in chain(likely, chain.from_iterable(entries(kind).values() for kind in KINDS)):
        for cls in (settings_class(component) or object).__mro__:
            if cls.__name__ == name:
                return cls
    return None


class FieldTypes(Mapping[str, Any]):
    """The types of a message's fields by name; reading one imports its component."""

    def __init__(self, cls: type[Component]):
        self.version = version()
        self._cls, self._derived = cls, dict[str, Any]()
        self._components: dict[str, str] = {}  # the first that has each field
        table, known = built_in(cls.kind), imported(cls.kind)
        for name in dict.fromkeys((*table, *known)):
            conf = settings_class(known.get(name))
            fields = table[name].fields if name not in known else ()
            if conf is not None:
                fields = tuple(field_types(conf)) if cls.flat else (conf.field,)
            for field in fields:
                if conf is not None and (field in cls._types or field in self._components):
                    self._check(name, field, self._type(conf, field))
                self._components.setdefault(field, name)
        first = dict.fromkeys(name for name in cls._types if name != "param")
        self._names = {**first, **self._components, **dict.fromkeys(cls._types)}

    def _type(self, conf: Any, field: str) -> Any:
        return (field_types(conf)[field] if self._cls.flat else conf) | None

    def _check(self, name: str, field: str, hint: Any) -> None:
        """Raise UserError if two components give one field different types."""
        kind = self._cls.kind
        if field in self._cls._types:
            if self._cls._types[field] != hint:
                text = f"{kind} {name!r} has the setting {field!r}, which each {kind} has"
                raise UserError(f"{text} with another type; give it another name")
        elif self[field] != hint:
            raise UserError(
                f"{kind} {name!r} has the field {field!r}, and so has another {kind}; "
                "give it another name" + ("" if self._cls.flat else ', as in class Conf(Settings, field="my_conf")')
            )

    def __getitem__(self, field: str) -> Any:
        if field in self._cls._types:
            return self._cls._types[field]
        if field not in self._derived:
            self._derived[field] = self._type(lookup(self._cls.kind, self._components[field]).Conf, field)
        return self._derived[field]

    def __contains__(self, field: object) -> bool:
        return field in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Component(Message):
    """A part of a job that names a component by ``type``, with fields for components' settings.

    Each component registered with a ``Conf`` adds its field; ``flat`` settings are fields of the message itself.
    """

    kind: ClassVar[str] = ""
    flat: ClassVar[bool] = False
    type_field: ClassVar[str] = "type"
    user_field: ClassVar[str] = "user_type"
    instead: ClassVar[Mapping[str, str]] = {}  # what to write in place of attributes that are not there
    _fields: ClassVar[FieldTypes | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._fields = None

    @classmethod
    def all_types(cls) -> Mapping[str, Any]:
        """Return the types of all fields, by name; fields of settings come before "param"."""
        if not cls.kind:
            return cls._types
        if cls._fields is None or cls._fields.version != version():
            cls._fields = FieldTypes(cls)
        return cls._fields

    def __getattr__(self, name: str) -> Any:
        """Return None for settings that the job does not give."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        known = field_types(type(self))
        if name not in known and not is_added(type(self), name):
            fail_for_name(type(self).__name__, name, field_names(type(self)), self.instead)

    @property
    def is_user(self) -> bool:
        """Whether the job names a user's component."""
        return bool(getattr(self, self.type_field).is_user)

    @property
    def type_name(self) -> str:
        """The name under which the component is registered."""
        return str(getattr(self, self.user_field if self.is_user else self.type_field) or "")

    @property
    def title(self) -> str:
        """The name of the component in errors."""
        return f"{self.kind} {self.type_name}"

    def needed_fields(self) -> tuple[str, ...]:
        """Return the names of the fields that the component's type requires."""
        if not self.type_name:
            return (self.user_field,)
        entry = find(self.kind, self.type_name)
        conf: type[Settings] | None = getattr(entry, "Conf", None)
        if conf is None:
            return tuple(getattr(entry, "required_fields", ()))
        return tuple(conf._required) if self.flat else (conf.field,) if conf.needed else ()

    def settings_of(self, conf: type[S]) -> S:
        """Return this component's settings, an object of the class ``conf`` with defaults if none are given."""
        if self.flat:
            fields = {name: value for name in field_types(conf) if (value := getattr(self, name)) is not None}
            if text := missing(conf, fields):
                raise self.error(text, self.user_field)
            settings = conf(**fields)
            settings._where, settings._lines = self._where, self._lines  # type: ignore[misc]
            return settings
        given: S | None = getattr(self, conf.field)
        if given is None and conf.needed:
            must = [f"{name}: ..." for name in field_types(conf) if name in conf._required]
            raise self.error(f"{self.title} needs {conf.field} {{ {' '.join(must) or '...'} }}", self.type_field)
        return conf() if given is None else given


class Configured:
    """Base class of components, such as updaters, made from the part of a job that names them.

    ``conf`` is that part; ``settings`` are given or default values of the class ``Conf``.
    """

    Conf: ClassVar[type[Settings] | None] = None
    settings: Any = None

    def __init__(self, conf: Any):
        self.conf = conf
        if self.Conf is not None:
            self.settings = conf.settings_of(self.Conf)
            for fault in self.settings.all_faults():
                raise self.settings.error(*fault)


@contextlib.contextmanager
def error_note(note: str) -> Iterator[None]:
    """Add ``note``, such as the name of a layer, to an exception from user code."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(note)
        raise


def resolve(conf: Component) -> Any:
    """Return the registered class or function that a part of a job names."""
    member = getattr(conf, conf.type_field)
    if not conf.type_name:
        text = f"{conf.type_field} {member} needs {conf.user_field}: the name of a registered {conf.kind}"
        raise conf.error(text, conf.type_field)
    try:
        return lookup(conf.kind, conf.type_name)
    except UserError as error:
        raise conf.error(str(error), conf.user_field if member.is_user else conf.type_field) from None
