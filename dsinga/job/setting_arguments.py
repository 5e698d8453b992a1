"""Makes constructors of settings: signature, help and checks of arguments."""

from __future__ import annotations

import enum
import functools
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dsinga.base.arguments import Instead, bind, check_bool, check_range, check_whole
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.job.component import Settings, docs
from dsinga.job.field_types import is_optional, item_type
from dsinga.job.limits import NUMBER, range_in
from dsinga.job.message import default_values, field_types

S = TypeVar("S", bound=Settings)


def signature(conf: type[Settings]) -> inspect.Signature:
    """Return the signature of a constructor with these settings, for ``help``; required ones come first."""
    default, parameters = dict(default_values(conf)), []
    for name, hint in field_types(conf).items():
        kind, repeated = item_type(hint)
        shown: Any = str if issubclass(kind, enum.Enum) else kind
        shown = list[shown] if repeated else shown
        shown = shown | None if is_optional(hint) else shown
        value = default.get(name, inspect.Parameter.empty)
        value = value.name if isinstance(value, enum.Enum) else value
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value, annotation=shown)
        )
    return inspect.Signature(sorted(parameters, key=lambda known: known.default is not known.empty))


@functools.cache  # layers share most of their arguments
def argument_lines(name: str, meaning: str) -> str:
    """Return the lines of a docstring for one argument, wrapped at 120 characters."""
    text = f"{name}: {meaning}"
    return textwrap.fill(text, 116, initial_indent=" " * 4, subsequent_indent=" " * 8, break_long_words=False)


def documented(text: str | None, conf: type[Settings]) -> str:
    """Return a class's docstring with the meanings of its settings, for ``help``."""
    head, _, rest = inspect.cleandoc(text or "").partition("\n\nArgs:\n")
    args, _, after = rest.partition("\n\n")
    lines = [args] * bool(args) + [argument_lines(name, f"{doc}.") for name, doc in docs(conf).items()]
    return "\n\n".join([head, "\n".join(["Args:", *lines]), *[after] * bool(after)]) + "\n"


def explaining(function: Callable[..., Any], names: Iterable[str], shared: Mapping[str, str]) -> str:
    """Return a function's docstring with the meanings of its arguments ``names``, for ``help``."""
    parts, own, lines = (inspect.getdoc(function) or "").split("\n\n"), meanings(function), []
    for name in names:
        meaning = shared.get(f"{function.__name__}.{name}", shared.get(name))
        if name in own or meaning:
            lines.append(f"    {name}: {own[name]}" if name in own else argument_lines(name, meaning or ""))
    explained = "\n".join(["Args:", *lines])
    sections = [number for number, part in enumerate(parts) if part.startswith(("Args:\n", "Raises:\n", "Examples:\n"))]
    at = sections[0] if sections else len(parts)
    rest = parts[at + 1 :] if own else parts[at:]
    return "\n\n".join([*parts[:at], *([explained] if lines else []), *rest])


def meanings(function: Callable[..., Any]) -> dict[str, str]:
    """Read the meaning of each argument from a docstring, as texts by name."""
    text = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0]
    parts = (part.partition(":") for part in re.split(r"\n(?= {4}\w)", text) if part)
    return {name.strip(): meaning.strip() for name, _, meaning in parts}


def takes_arguments(instead: Instead) -> Callable[[type[S]], type[S]]:
    """Let the constructor of a settings class check its arguments: return the decorator."""

    def decorate(conf: type[S]) -> type[S]:
        assign, known = conf.__init__, signature(conf)

        @functools.wraps(assign)
        def create(self: S, *args: Any, **kwargs: Any) -> None:
            assign(self, **arguments_of(conf, conf.__name__, args, kwargs, instead))

        conf.__signature__ = known
        conf.__init__ = create  # type: ignore[assignment, method-assign]
        conf.__doc__ = documented(conf.__doc__, conf)
        return conf

    return decorate


def settings_from(conf: type[S], function: str, args: Sequence[Any], kwargs: Mapping[str, Any], instead: Instead) -> S:
    """Make settings from a constructor's arguments. Raises UserError for wrong ones."""
    settings = conf(**arguments_of(conf, function, args, kwargs, instead))
    for fault in settings.all_faults():
        raise UserError(fault.text)
    return settings


def arguments_of(
    conf: type[Settings], function: str, args: Sequence[Any], kwargs: Mapping[str, Any], instead: Instead
) -> dict[str, Any]:
    """Check a constructor's arguments against its settings: return them by name.

    Raises UserError, which calls the constructor ``function`` and suggests a name of ``instead``.
    """
    known, names = signature(conf), dict(kwargs)
    for alias, name in conf.aliases.items():
        if alias in names:
            if name in names or name in list(known.parameters)[: len(args)]:
                raise UserError(f"{function}: {name} and {alias} are one argument; give one of them")
            names[name] = names.pop(alias)
    given = bind(function, known, args, names, instead)
    given = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in given.items()}
    for name, value in given.items():
        check_argument(name, value, field_types(conf)[name], docs(conf)[name])
    return given


def check_argument(name: str, value: Any, hint: Any, doc: str = "a text") -> None:
    """Raise UserError for an argument outside the type or range of its setting."""
    kind, repeated = item_type(hint)
    allowed = range_in(hint) or NUMBER
    if repeated or (value is None and is_optional(hint)):
        return  # of a list, the message tells what is wrong
    if kind is int and allowed.low > NUMBER.low:
        check_whole(name, value, int(allowed.low))
    elif kind is float and allowed.low > NUMBER.low:
        check_range(name, value, allowed.low, allowed.high)
    elif kind is bool:
        check_bool(name, value)
    elif kind is str and not isinstance(value, str):
        raise UserError(f"{name} is {value!r}; give {doc}")
    elif issubclass(kind, enum.Enum) and not isinstance(value, kind) and value not in kind.__members__:
        members = kind.__members__
        raise UserError(f"{name} must be one of {', '.join(members)}, not {value!r}{nearest(str(value), members)}")
