"""How a function of ``nn`` follows from the class of a component: its name, its arguments, and their documentation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.arguments import signature_of
from dsinga.errors import UserError
from dsinga.job.component import Configured, Settings, docs
from dsinga.job.setting_arguments import signature
from dsinga.job.type_names import TypeName
from dsinga.registry import entries

SettingsClass = type[Settings]


class Form(NamedTuple):
    """How a function of ``nn`` stands for a component.

    Attributes:
        type: the component's type.
        arguments: the setting by the name of the argument, where the two differ.
        defaults: defaults that differ from the component's.
        fixed: settings that are no arguments.
        required: arguments without a default.
        takes_images: whether images with the channels last are refused.
    """

    type: str
    arguments: Mapping[str, str] = {}
    defaults: Mapping[str, Any] = {}
    fixed: Mapping[str, Any] = {}
    required: tuple[str, ...] = ()
    takes_images: bool = False

    def fields(self, conf: SettingsClass | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the field of the component's message with the settings that the arguments of a call give, if any."""
        settings = {self.arguments.get(argument, argument): value for argument, value in arguments.items()}
        settings = {**self.defaults, **self.fixed, **settings}
        if conf is None or not (settings or conf.needed):
            return {}
        message = conf(**settings)
        for fault in message.all_faults():
            raise UserError(f"{self.type.removeprefix('k')}: {fault.text}")
        return {conf.field: message}

    def parameters(self, conf: SettingsClass) -> list[inspect.Parameter]:
        """Return the parameters of the settings."""
        names = {setting: argument for argument, setting in self.arguments.items()}
        parameters: list[inspect.Parameter] = []
        for setting, parameter in signature(conf).parameters.items():
            name = names.get(setting, setting)
            default = self.defaults.get(setting, parameter.empty if name in self.required else parameter.default)
            if setting not in self.fixed:
                parameters.append(parameter.replace(name=name, default=default))
        return parameters

    def doc(self, cls: Any, conf: SettingsClass | None) -> str:
        """Return the docstring: the first sentence of the class, its type, and what each argument means."""
        first = (inspect.getdoc(cls) or f"Component {self.type}.").partition("\n\n")[0]
        lines = [f"{first.rstrip('.')} ({self.type})."]
        meanings: Mapping[str, str] = {} if conf is None else docs(conf)
        names = {setting: argument for argument, setting in self.arguments.items()}
        shown = [(names.get(setting, setting), text) for setting, text in meanings.items() if setting not in self.fixed]
        if shown:
            lines += ["", "Args:", *(f"    {name}: {text}." for name, text in shown)]
        return "\n".join(lines)


def function_name(type: str) -> str:
    """Return the name of the function of a type: PReLU of kPReLU, and a user's name as it is."""
    return type[1:] if type[:1] == "k" and type[1:2].isupper() else type


def type_fields(names: type[TypeName], type: str) -> dict[str, Any]:
    """Return the fields of a message that name a component: its type or, of a user's own, its registered name."""
    return {"type": type} if type in names else {"type": names.user, "user_type": type}


class Derived:
    """The functions of the components of a kind that follow from their classes, by name.

    Args:
        kind: the kind of the registry.
        make: returns the function called by a name for a type and its class.
        otherwise: types whose functions are written, or which have none.
        suffix: what is added to the names of built-in types.
    """

    def __init__(self, kind: str, make: Callable[..., Any], otherwise: Collection[str], suffix: str = ""):
        self._kind, self._otherwise, self._suffix = kind, otherwise, suffix
        self._make: Callable[..., Any] = functools.cache(make)  # one function for each class

    def __call__(self) -> Mapping[str, Callable[..., Any]]:
        """Return the functions by name, those of classes that are registered since included."""
        functions = {}
        for name, cls in entries(self._kind).items():
            if name not in self._otherwise and isinstance(cls, type) and issubclass(cls, Configured):
                function = function_name(name)
                function += "" if function == name else self._suffix
                functions[function] = self._make(function, name, cls)
        return functions


def named(
    function: Callable[..., Any],
    name: str,
    form: Form,
    cls: Any,
    first: Sequence[inspect.Parameter] = (),
    last: Sequence[inspect.Parameter] = (),
) -> Any:
    """Return a function of keyword arguments as that of a class: with its name, documentation and signature.

    The parameters of the settings stand between ``first`` and ``last``; of all, those without a default come first.
    """
    conf: type[Settings] | None = getattr(cls, "Conf", None)
    parameters = [*first, *([] if conf is None else form.parameters(conf)), *last]
    parameters.sort(key=lambda known: known.default is not known.empty)
    function.__name__ = function.__qualname__ = name
    function.__module__ = "dsinga.nn"  # where pickle finds it
    function.__doc__ = form.doc(cls, conf)
    returns = inspect.signature(function).return_annotation
    function.__signature__ = signature_of(function, parameters, returns)  # type: ignore[attr-defined]
    return function
