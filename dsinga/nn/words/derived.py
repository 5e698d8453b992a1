"""Makes functions of ``nn`` from the settings of component classes, such as a user's layer."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dsinga.base.arguments import signature_of
from dsinga.base.errors import UserError
from dsinga.base.registry import entries, find, imported, registered
from dsinga.job.component import Settings, docs
from dsinga.job.message import JobError, set_fields
from dsinga.job.setting_arguments import argument_lines, signature
from dsinga.job.type_names import TypeName
from dsinga.nn.words.keras_arguments import bind


def settings_field(
    function: str, conf: type[Settings] | None, given: Mapping[str, Any], names: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Convert a function's arguments to the job field with a component's settings; None means the default.

    ``names`` maps settings to arguments of ``function`` with other names.
    """
    values = {name: value for name, value in given.items() if value is not None}
    if conf is None:
        return values
    try:
        settings = conf(**values)
    except JobError as error:  # a value of a wrong type
        text = re.sub(rf"^{conf.__name__}\.(\w+)", lambda found: names.get(found[1], found[1]), str(error))
        raise UserError(f"{function}: {text}") from None
    for fault in settings.all_faults():
        name = fault.field or ""
        raise UserError(f"{function}: {fault.text.replace(name, names.get(name, name), 1)}")
    return {conf.field: settings} if conf.needed or set_fields(settings) else {}


def derived_function(
    name: str, cls: Any, function: Any, first: Sequence[inspect.Parameter] = (), names: Mapping[str, str] = {}
) -> Any:
    """Give ``function`` a name, signature and docstring made from a component class and its settings.

    Its parameters are ``first`` and the settings of the class, called as ``names`` says.
    """
    conf: type[Settings] | None = getattr(cls, "Conf", None)
    settings = () if conf is None else signature(conf).parameters.values()
    parameters = [*first, *(setting.replace(name=names.get(setting.name, setting.name)) for setting in settings)]
    parameters.sort(key=lambda parameter: parameter.default is not parameter.empty)
    sentence = (inspect.getdoc(cls) or f"Makes a {cls.__name__}.").partition("\n\n")[0]
    known = docs(conf) if conf else {}
    meanings = [argument_lines(names.get(name, name), f"{text}.") for name, text in known.items()]
    function.__name__ = function.__qualname__ = name
    function.__module__ = "dsinga.nn"  # where pickle finds it
    function.__doc__ = "\n".join([sentence, *(["", "Args:", *meanings] if meanings else [])])
    function.__signature__ = signature_of(function, parameters, inspect.signature(function).return_annotation)
    return function


def function_name(type: str) -> str:
    """Return the name in ``nn`` of a type's function: PReLU for kPReLU, a user's name unchanged."""
    return type[1:] if type[:1] == "k" and type[1:2].isupper() else type


class Derived(Mapping[str, Any]):
    """A mapping from names to functions for all components of a kind, imported on demand.

    ``make`` returns the function for its name, type and class; ``takes`` says whether a class has one.
    """

    def __init__(
        self, kind: str, make: Callable[[str, str, Any], Any], takes: Callable[[str, Any], bool], suffix: str = ""
    ):
        self._kind, self._takes, self._suffix = kind, takes, suffix
        self._make = functools.cache(make)  # one per class: a notebook cell may define a class again

    def _name(self, type: str, cls: Any) -> str | None:
        """Return the name of a type's function; None if it has none."""
        first = next((name for name, entry in imported(self._kind).items() if entry is cls), None)
        if type != first or not inspect.isclass(cls) or not self._takes(type, cls):
            return None
        name = function_name(type)
        return name if name == type else name + self._suffix

    def __getitem__(self, name: str) -> Any:
        for type in (f"k{name.removesuffix(self._suffix)}", name):
            cls = find(self._kind, type)
            if cls is not None and self._name(type, cls) == name:
                return self._make(name, type, cls)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter([name for type, cls in entries(self._kind).items() if (name := self._name(type, cls))])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Words(Mapping[str, Any]):
    """A mapping from names to the functions that add-ons give to ``nn``, imported on demand."""

    def __getitem__(self, name: str) -> Any:
        if (word := find("word", name)) is None:
            raise KeyError(name)
        return word

    def __iter__(self) -> Iterator[str]:
        return iter(registered("word"))

    def __len__(self) -> int:
        return len(registered("word"))


added_words = Words()


def called_by_name(function: Any) -> Any:
    """Wrap a function so that it checks its arguments and gets them by name."""
    parameters = inspect.signature(function)

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        return function(**bind(function.__name__, parameters, args, kwargs))

    return make


def type_fields(names: type[TypeName], type: str) -> dict[str, Any]:
    """Return the job fields that name a component: its built-in type, or a user's registered name."""
    return {"type": type} if type in names else {"type": names.user, "user_type": type}
