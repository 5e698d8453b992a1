"""Checks users' arguments and names, and suggests the nearest known name or a replacement for unknown ones."""

from __future__ import annotations

import functools
import inspect
import math
import sys
import tomllib
from collections import UserDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from numbers import Integral, Real
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, NoReturn, TypeVar

from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest, nearest_or_listed

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Instead = Mapping[str, str]  # what to write in place of a name; of a function's argument also as "Function.argument"

SHOWN = 100  # characters of a value in a message
MANY = 10  # parameters of a function above which a message names some of them


def is_whole(value: Any, least: int) -> bool:
    """Whether a value is a whole number of at least ``least``, and no boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise UserError unless an argument is a whole number of at least ``least``."""
    if not is_whole(value, least):
        raise UserError(f"{name} is {value!r}; give a whole number of at least {least}")


def check_bool(name: str, value: Any) -> None:
    """Raise UserError unless an argument is True or False."""
    if not isinstance(value, bool):
        raise UserError(f"{name} is {value!r}; give True or False")


def check_range(name: str, value: Any, low: float, high: float = math.inf) -> None:
    """Raise UserError unless an argument is a number from ``low`` to ``high``."""
    if isinstance(value, Real) and not isinstance(value, bool) and low <= float(value) <= high:
        return
    bounds = f"between {low:g} and {high:g}" if high < math.inf else f"of at least {low:g}"
    raise UserError(f"{name} is {value!r}; give a number {bounds}")


def value_text(value: Any) -> str:
    """Name a value in a message: by its name, or its shortened repr."""
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= SHOWN else f"{' '.join(text[:SHOWN].split())} ..."


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs twice; None if all differ."""
    known = set[str]()
    for name in names:
        if name in known:
            return name
        known.add(name)
    return None


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 worker", "3 workers"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_bytes(size: float) -> str:
    """Return a size as text with three digits: 248 MB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} B"


class Remedies(UserDict[str, str]):
    """Suggests replacements for names of other libraries, from a TOML file."""

    def __init__(self, path: Path, *tables: str):
        self._path, self._tables = path, tables

    @functools.cached_property
    def data(self) -> dict[str, str]:  # type: ignore[override]
        """The replacements, by the name that a user has written."""
        content = tomllib.loads(self._path.read_text("utf-8"))
        entries = [entry for table in self._tables for entry in content[table].items()]
        return {name: remedy for remedy, names in entries for name in names.split()}


class MissingName(UserError, AttributeError):
    """Raised if a module or an object lacks a name; the message suggests a replacement."""


def fail_for_name(owner: str, name: str, known: Collection[str], instead: Instead) -> NoReturn:
    """Raise MissingName for a name that ``owner`` lacks; suggest a replacement or the nearest ``known`` name.

    For ``from package import name`` it raises a UserError, which keeps its message.
    """
    remedy = f"; {instead[name]}" if name in instead else nearest(name, known)
    message = f"{owner} has no {name!r}{remedy}"
    caller: FrameType | None = sys._getframe(2)  # the frame that looks the name up, the caller of ``__getattr__``
    while caller and caller.f_globals.get("__name__") in ("dsinga.base.components", "dsinga.base.error_frames", owner):
        caller = caller.f_back
    is_import = caller is not None and caller.f_globals.get("__name__") == "importlib._bootstrap"
    if remedy and is_import and not _is_module(f"{owner}.{name}"):  # else the name is that of a module in it
        raise UserError(message)
    raise MissingName(message)


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its remedy is in the caller's error
        return False


def unknown_name(what: str, name: Any, known: Iterable[str], instead: Instead = MappingProxyType({})) -> UserError:
    """Return the error that a name is not in ``known``, with advice."""
    remedy = instead.get(str(name), "")
    remedy = f"; {remedy.split('; ', 1)[-1] if remedy.startswith('there is no') else remedy}"
    hint = remedy if str(name) in instead else nearest_or_listed(str(name), known, "these are")
    return UserError(f"there is no {what} {name!r}{hint}")


def missing_names(
    module: str,
    known: Sequence[str] = (),
    derived: Callable[[], Mapping[str, Any]] = dict,
    *,
    instead: Instead,
    public: str = "",
) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module, which suggests other names for a name that the module lacks.

    ``derived`` returns further values by name; ``public`` is the module's name for users.
    """

    def find(name: str) -> Any:
        if name.startswith("__"):  # Python asks for some that few modules have
            raise MissingName(f"{public or module} has no {name!r}")
        values = derived()
        if name in values:
            return values[name]
        names = known or [each for each in dir(sys.modules[module]) if each[0].isalpha()]
        fail_for_name(public or module, name, [*names, *values], instead)

    if public:  # its dir(), by which editors complete, has the names that its package has for users, and the derived
        package = public.rpartition(".")[0]

        def shown() -> list[str]:
            names = {*vars(sys.modules[module])} & {*vars(sys.modules[package])["__all__"]}
            return sorted(names | {*derived()})

        vars(sys.modules[module])["__dir__"] = shown
    return find


def check_names(
    function: str, known: Sequence[str], given: Mapping[str, Any], instead: Instead = MappingProxyType({})
) -> None:
    """Raise UserError for arguments that a function does not have, with advice for each."""
    known = [name for name in dict.fromkeys(known) if name != "self"]
    faults: list[str] = []
    for name in given:
        if name not in known:
            remedy = nearest(name, known) or ("" if faults else f"; it has {listed(known)}")
            for key in (name, f"{function}.{name}"):
                remedy = f"; {instead[key]}" if key in instead else remedy
            faults.append(f"no argument {name!r}{remedy}")
    if faults:
        raise UserError(f"{function} has {', and '.join(faults)}")


def values_by_name(what: str, given: Mapping[str, Any], names: Sequence[str], kind: str) -> list[Any]:
    """Return the values of a dict, in the order of ``names``; it must have exactly these names."""
    for key in given:
        if key not in names:
            hint = nearest(str(key), names) or f"; the {kind}s are {', '.join(map(repr, names))}"
            raise UserError(f"{what} names {key!r}, which is no {kind}{hint}")
    missing = [name for name in names if name not in given]
    if missing:
        raise UserError(f"{what} has nothing for the {kind} {missing[0]!r}")
    return [given[name] for name in names]


def bind(
    function: str,
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    instead: Instead = MappingProxyType({}),
) -> dict[str, Any]:
    """Match a call's arguments to a function's parameters by name. Raises UserError for a wrong one."""
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        check_names(function, [*signature.parameters], kwargs, instead)
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        parameters = [parameter for name, parameter in signature.parameters.items() if name != "self"]
        if str(error).startswith("too many positional") and len(parameters) > MANY:
            by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
            first = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
            raise UserError(
                f"{function} takes {' and '.join(first)} by position; give others by name: {listed(by_name)}"
            ) from None
        bare = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
        raise UserError(f"{function}: {error}; it is called as {function}{inspect.Signature(bare)}") from None


def signature_with_types(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature with types in place of annotation texts, for ``help``."""
    signature = inspect.signature(function)
    known = vars(sys.modules[function.__module__]) if function.__module__ in sys.modules else {}

    def typed(annotation: Any, unknown: Any) -> Any:
        try:
            return eval(annotation, known) if isinstance(annotation, str) else annotation
        except (NameError, AttributeError):
            return unknown

    parameters = [
        each.replace(annotation=Any if each.kind is each.VAR_KEYWORD else typed(each.annotation, Any))
        for each in signature.parameters.values()
    ]
    returned = typed(signature.return_annotation, signature.return_annotation)
    return signature.replace(parameters=parameters, return_annotation=returned)


def with_types(function: F) -> F:
    """Make ``help`` show a function's types in place of annotation texts."""
    function.__signature__ = signature_with_types(function)  # type: ignore[attr-defined]
    return function


def extended_signature(
    function: Callable[..., Any], more: Iterable[inspect.Parameter], returns: Any
) -> inspect.Signature:
    """Return a function's signature with more parameters in place of ``**arguments``."""
    own = signature_with_types(function).parameters.values()
    parameters = sorted([*own, *more], key=lambda parameter: parameter.kind)
    parameters = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    return signature_of(function, parameters, returns)


def signature_of(function: Callable[..., Any], parameters: Sequence[inspect.Parameter], returns: Any) -> Any:
    """Make a signature of parameters. Raises UserError if two have the same name."""
    try:
        return inspect.Signature(parameters, return_annotation=returns)
    except ValueError as error:
        raise UserError(f"{function.__name__}: {error}; give the setting of this name another one") from None


def checked(function: F, prefix: str = "", instead: Instead = MappingProxyType({})) -> F:
    """Make a function raise UserError, with suggestions, for arguments that it does not have."""
    signature = inspect.signature(function)

    @public
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bind(f"{prefix}{function.__name__}", signature, args, kwargs, instead)
        return function(*args, **kwargs)

    call.__signature__ = signature_with_types(function)  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def check_settings(
    cls: type[T], check: Callable[[Mapping[str, Any]], None] | None = None, instead: Instead = MappingProxyType({})
) -> type[T]:
    """Make a class's constructor raise UserError, with suggestions, for wrong arguments."""
    constructor = vars(cls).get("__init__")
    if constructor is None:
        return cls
    signature = inspect.signature(constructor)
    signature = signature.replace(parameters=list(signature.parameters.values())[1:], return_annotation=cls.__name__)

    @public
    @functools.wraps(constructor)
    def create(self: T, *args: Any, **kwargs: Any) -> None:
        given = bind(cls.__name__, signature, args, kwargs, instead)
        if check is not None:
            check(given)
        constructor(self, *args, **kwargs)

    create.__signature__ = signature_with_types(constructor)  # type: ignore[attr-defined]
    cls.__init__ = create  # type: ignore[assignment, method-assign]
    return cls
