"""The functions of layers that follow from their classes: ``nn.PReLU(slope=0.1)`` of a layer kPReLU, also a user's.

A function takes the settings that the layer's class declares. ``FORMS`` are those that Keras calls otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dsinga.job.component import Settings, docs
from dsinga.job.setting_arguments import signature
from dsinga.layers.base import Layer
from dsinga.layers.bridge import Bridge
from dsinga.nn.convolution import refuse_channels_last
from dsinga.nn.symbol import LayerBuilder, layer
from dsinga.nn.writer import LayerWriter, Write
from dsinga.registry import entries, version


class Form(NamedTuple):
    """How a function of ``nn`` stands for a layer.

    Attributes:
        type: the layer's type.
        arguments: the setting by the name of the argument, where the two differ.
        defaults: defaults that differ from the layer's.
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


FORMS = {
    "Dropout": Form("kDropout", {"rate": "dropout_ratio"}, required=("rate",)),
    "SpatialDropout2D": Form("kDropout", {"rate": "dropout_ratio"}, fixed={"unit": "kChannel"}, required=("rate",)),
    "LeakyReLU": Form("kReLU", defaults={"negative_slope": 0.3}),
    "LocalResponseNormalization": Form("kLRN", {"size": "local_size", "k": "knorm"}, takes_images=True),
    "OneHot": Form("kOneHot", {"num_tokens": "vocab_size"}, required=("num_tokens",)),
}

OTHERWISE = ("Convolution1D", "RNN")  # types whose names mean something else in Keras; nn has Conv1D and SimpleRNN

_functions: dict[str, Callable[..., LayerBuilder]] = {}
_version = -1


def layer_functions() -> Mapping[str, Callable[..., LayerBuilder]]:
    """Return the functions of all registered layers by name: that of the type without its k, and those of ``FORMS``."""
    global _functions, _version
    types = entries("layer")
    if _version != version():
        first = {cls: type for type, cls in reversed([*types.items()])}  # without kCudnnLRN, another name of kLRN
        named = {function_name(type): Form(type) for cls, type in first.items() if _is_of_nets(cls)}
        forms = {name: form for name, form in named.items() if name not in OTHERWISE} | FORMS
        _functions = {name: _function(name, form, types[form.type]) for name, form in forms.items()}
        _version = version()
    return _functions


def _function(name: str, form: Form, cls: Any) -> Callable[..., LayerBuilder]:
    """Return the function of a class, the one that there is unless a cell has defined the class anew."""
    known = _functions.get(name)
    return known if known and getattr(known, "cls", None) is cls else layer_function(name, form, cls)


def function_name(type: str) -> str:
    """Return the name of the function of a layer type: PReLU of kPReLU, and a user's name as it is."""
    return type[1:] if type[:1] == "k" and type[1:2].isupper() else type


def _is_of_nets(cls: Any) -> bool:
    """Whether a layer computes a feature from those of others; nn.Input and partitioning make the other layers."""
    is_layer = isinstance(cls, type) and issubclass(cls, Layer) and not issubclass(cls, Bridge)
    return is_layer and not (cls.is_input or cls.is_output)


def layer_function(name: str, form: Form, cls: Any) -> Callable[..., LayerBuilder]:
    """Return the function called ``name`` that makes layers of a class."""
    conf: type[Settings] | None = getattr(cls, "Conf", None)
    parameters = [] if conf is None else list(_parameters(form, conf))

    def function(**arguments: Any) -> Write:
        settings = {form.arguments.get(argument, argument): value for argument, value in arguments.items()}
        given = {**form.defaults, **form.fixed, **settings}

        def write(writer: LayerWriter) -> Any:
            if form.takes_images:
                refuse_channels_last(writer)
            if conf is None:
                return writer.add(form.type)
            fields: dict[str, Any] = {conf.field: conf(**given)} if given or conf.needed else {}
            return writer.add(form.type, **fields)

        return write

    function.__name__ = function.__qualname__ = name
    function.__module__ = "dsinga.nn"  # where pickle finds it
    function.__doc__ = _doc(form, cls, conf)
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    make = layer(function)
    make.cls = cls  # type: ignore[attr-defined]
    return make


def _parameters(form: Form, conf: type[Settings]) -> list[inspect.Parameter]:
    names = {setting: argument for argument, setting in form.arguments.items()}
    parameters = []
    for setting, parameter in signature(conf).parameters.items():
        name = names.get(setting, setting)
        default = form.defaults.get(setting, parameter.empty if name in form.required else parameter.default)
        if setting not in form.fixed:
            parameters.append(parameter.replace(name=name, default=default))
    return sorted(parameters, key=lambda known: known.default is not known.empty)


def _doc(form: Form, cls: Any, conf: type[Settings] | None) -> str:
    """Return the docstring: the first sentence of the class, its type, and what each argument means."""
    first = (inspect.getdoc(cls) or f"Layer {form.type}.").partition("\n\n")[0]
    lines = [f"{first.rstrip('.')} ({form.type})."]
    meanings = {} if conf is None else docs(conf)
    names = {setting: argument for argument, setting in form.arguments.items()}
    shown = [(names.get(setting, setting), text) for setting, text in meanings.items() if setting not in form.fixed]
    if shown:
        lines += ["", "Args:", *(f"    {name}: {text}." for name, text in shown)]
    return "\n".join(lines)
