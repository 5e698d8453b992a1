"""How a function of ``nn`` follows from the class of a component: its name, its arguments, and their documentation."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.base.arguments import signature_of
from dsinga.base.errors import UserError
from dsinga.base.registry import entries, find, imported, lookup
from dsinga.job.component import Configured, Settings, docs
from dsinga.job.message import field_types
from dsinga.job.setting_arguments import signature
from dsinga.job.type_names import TypeName
from dsinga.nn.words.keras_arguments import bind, refuse_subclasses

SettingsClass = type[Settings]


class FunctionSpec(NamedTuple):
    """How a function of ``nn`` stands for a component.

    Attributes:
        type: the component's type.
        arguments: the arguments in their order, each with its setting where that has another name: "units=num_output".
            "..." stands for all further settings of the component, "*" is before arguments by name only.
        defaults: defaults of arguments that differ from the component's.
        fixed: settings that are no arguments.
        required: arguments without a default.
        inits: the initialiser of each role of a layer's param, or the argument that gives it.
        details: returns further settings, and arguments of :meth:`dsinga.nn.writing.writer.LayerWriter.add`, for a
            layer that is written and the arguments of its function.
        doc: the documentation without that of the arguments; by default the first sentence of the class.
    """

    type: str
    arguments: str = "..."
    defaults: Mapping[str, Any] = {}
    fixed: Mapping[str, Any] = {}
    required: tuple[str, ...] = ()
    inits: Mapping[str, Any] = {}
    details: Callable[[Any, Mapping[str, Any]], Mapping[str, Any] | None] | None = None
    doc: str = ""

    def settings(self, conf: SettingsClass | None) -> dict[str, list[str]]:
        """Return the settings that each argument gives, by argument in their order."""
        pairs = [word.partition("=") for word in self.arguments.split()]
        settings = {name: (setting or name).split("+") for name, _, setting in pairs}
        if settings.pop("...", None) and conf is not None:
            known = {*self.fixed, *(name for names in settings.values() for name in names)}
            rest = (name for name in field_types(conf) if name not in known)
            settings |= {name: [name] for name in rest}
        return settings

    def fields(
        self, function: str, conf: SettingsClass | None, values: Mapping[str, Any], more: Mapping[str, Any] = {}
    ) -> dict[str, Any]:
        """Return the fields of the component's message that the arguments of a call give, and ``more`` settings.

        Raises UserError, with the name of the argument, for settings that are wrong.
        """
        taken = {} if conf is None else field_types(conf)
        given = dict(self.fixed)
        names: dict[str, str] = {}
        for name, settings in self.settings(conf).items():
            value = values.get(name)
            if value is not None and (name in taken or settings != [name]):
                given |= dict.fromkeys(settings, value)
                names |= dict.fromkeys(settings, name)
        given |= {name: value for name, value in more.items() if name in taken}
        fields = {name: given.pop(name) for name in [*given] if name not in taken}
        if conf is not None and (given or conf.needed):
            fields[conf.field] = conf(**given)
            for fault in fields[conf.field].all_faults():
                name = fault.field or ""
                raise UserError(f"{function}: {fault.text.replace(name, names.get(name, name), 1)}")
        return fields

    def parameters(self, conf: SettingsClass | None) -> Iterator[inspect.Parameter]:
        """Yield the parameters of the arguments."""
        known: Mapping[str, inspect.Parameter] = {} if conf is None else signature(conf).parameters
        for name, (setting, *_) in self.settings(conf).items():
            parameter = known.get(
                setting, inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
            )
            default = parameter.empty if name in self.required else self.defaults.get(name, parameter.default)
            yield parameter.replace(name=name, default=default)

    def document(self, cls: Any, conf: SettingsClass | None) -> str:
        """Return the docstring: the first sentence of the class, its type, and what each argument means."""
        paragraphs = self.doc.split("\n\n")
        text = "\n\n".join(textwrap.fill(paragraph, 112, break_on_hyphens=False) for paragraph in paragraphs)
        if not text:
            first = (inspect.getdoc(cls) or f"Component {self.type}.").partition("\n\n")[0]
            text = f"{first.rstrip('.')} ({self.type})."
        meanings = {} if conf is None else docs(conf)
        lines = []
        for name, settings in self.settings(conf).items():
            meaning = meanings.get(settings[0]) or meanings.get(name, "")
            lines += [f"    {name}: {meaning}."] if meaning else []
        text = "\n".join([text, *(["", "Args:", *lines] if lines else [])])
        names = {setting: name for name, settings in self.settings(conf).items() for setting in settings}
        return re.sub(r"\b[a-z]+_\w+\b", lambda word: names.get(word[0], word[0]), text)


def function_name(type: str) -> str:
    """Return the name of the function of a type: PReLU of kPReLU, and a user's name as it is."""
    return type[1:] if type[:1] == "k" and type[1:2].isupper() else type


def type_fields(names: type[TypeName], type: str) -> dict[str, Any]:
    """Return the fields of a message that name a component: its type or, of a user's own, its registered name."""
    return {"type": type} if type in names else {"type": names.user, "user_type": type}


class Derived(Mapping[str, Callable[..., Any]]):
    """The functions of the components of a kind that follow from their classes, by name; also those of users' classes.

    Args:
        kind: the kind of the registry.
        make: returns the function called by a name for its form and class.
        forms: the forms by the name of the function, for those that differ from the class.
        otherwise: types that have no function of their name.
        suffix: what is added to the names of built-in types.
        takes: whether a class has a function.
    """

    def __init__(
        self,
        kind: str,
        make: Callable[[str, FunctionSpec, Any], Any],
        forms: Mapping[str, FunctionSpec] = {},
        otherwise: Collection[str] = (),
        suffix: str = "",
        takes: Callable[[type[Any]], bool] = lambda cls: issubclass(cls, Configured),
    ):
        self._kind, self._make, self._forms, self._otherwise, self._suffix = kind, make, forms, otherwise, suffix
        self._takes = takes
        self._functions: dict[tuple[str, Any], Any] = {}  # one for each class, which a cell may define anew

    def _form(self, name: str) -> tuple[FunctionSpec, Any]:
        """Return the form of a function, and its class, which alone is imported; raise KeyError where there is none."""
        if name in self._forms:
            return self._forms[name], lookup(self._kind, self._forms[name].type)
        stem = name.removesuffix(self._suffix) if name.endswith(self._suffix) else ""
        for registered in (f"k{stem}", name):
            if (cls := find(self._kind, registered)) is not None and self._name(registered, cls) == name:
                return FunctionSpec(registered), cls
        raise KeyError(name)

    def _name(self, registered: str, cls: Any) -> str | None:
        """Return the name of the function of a type; None for one without, as kCudnnLRN, another name of kLRN."""
        if registered in self._otherwise or not isinstance(cls, type) or not self._takes(cls):
            return None
        if registered != next(name for name, known in imported(self._kind).items() if known is cls):
            return None
        name = function_name(registered)
        return name if name == registered else name + self._suffix

    def __getitem__(self, name: str) -> Callable[..., Any]:
        form, cls = self._form(name)
        if (name, cls) not in self._functions:
            self._functions[name, cls] = self._make(name, form, cls)
        return self._functions[name, cls]

    def __iter__(self) -> Iterator[str]:
        names = (self._name(registered, cls) for registered, cls in entries(self._kind).items())
        return iter(dict.fromkeys([*filter(None, names), *self._forms]))

    def __len__(self) -> int:
        return len([*self])


def named(
    function: Callable[..., Any], name: str, form: FunctionSpec, cls: Any, first: Sequence[inspect.Parameter] = ()
) -> Any:
    """Return a function of keyword arguments as that of a class: with its name, documentation and signature.

    The parameters of the form stand after ``first``; of all, those without a default come first.
    """
    conf: type[Settings] | None = getattr(cls, "Conf", None)
    parameters = [*first, *form.parameters(conf)]
    parameters.sort(key=lambda known: (known.kind, known.default is not known.empty))
    function.__name__ = function.__qualname__ = name
    function.__module__ = "dsinga.nn"  # where pickle finds it
    function.__doc__ = form.document(cls, conf)
    function.cls = cls  # type: ignore[attr-defined]
    returns = inspect.signature(function).return_annotation
    function.__signature__ = signature_of(function, parameters, returns)  # type: ignore[attr-defined]
    return function


def called_by_name(function: Any) -> Any:
    """Return a function of :func:`named` with arguments that are checked by name."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        return function(**bind(function.__name__, signature, args, kwargs))

    return refuse_subclasses(make)
