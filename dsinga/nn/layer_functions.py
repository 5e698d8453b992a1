"""The functions of layers that follow from their classes: ``nn.PReLU(slope=0.1)`` of a layer kPReLU, also a user's.

A function takes the settings that the layer's class declares. ``FORMS`` are those that Keras calls otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from dsinga.job.component import Settings
from dsinga.layers.base import Layer
from dsinga.layers.bridge import Bridge
from dsinga.nn.convolution import refuse_channels_last
from dsinga.nn.forms import Form, function_name, named
from dsinga.nn.symbol import LayerBuilder, layer
from dsinga.nn.writer import LayerWriter, Write
from dsinga.registry import entries

FORMS = {
    "Dropout": Form("kDropout", {"rate": "dropout_ratio"}, required=("rate",)),
    "SpatialDropout2D": Form("kDropout", {"rate": "dropout_ratio"}, fixed={"unit": "kChannel"}, required=("rate",)),
    "LeakyReLU": Form("kReLU", defaults={"negative_slope": 0.3}),
    "LocalResponseNormalization": Form("kLRN", {"size": "local_size", "k": "knorm"}, takes_images=True),
    "OneHot": Form("kOneHot", {"num_tokens": "vocab_size"}, required=("num_tokens",)),
}

OTHERWISE = ("Convolution1D", "RNN")  # types whose names mean something else in Keras; nn has Conv1D and SimpleRNN


def layer_functions() -> Mapping[str, Callable[..., LayerBuilder]]:
    """Return the functions of all registered layers by name: that of the type without its k, and those of ``FORMS``."""
    types = entries("layer")
    first = {cls: type for type, cls in reversed([*types.items()])}  # without kCudnnLRN, another name of kLRN
    named = {function_name(type): type for cls, type in first.items() if _is_of_nets(cls)}
    named = {name: type for name, type in named.items() if name not in OTHERWISE}
    named |= {name: form.type for name, form in FORMS.items()}
    return {name: _made(name, type, types[type]) for name, type in named.items()}


@functools.cache  # one function for each class, which a cell may define anew
def _made(name: str, type: str, cls: Any) -> Callable[..., LayerBuilder]:
    return layer_function(name, FORMS.get(name, Form(type)), cls)


def _is_of_nets(cls: Any) -> bool:
    """Whether a layer computes a feature from those of others; nn.Input and partitioning make the other layers."""
    is_layer = isinstance(cls, type) and issubclass(cls, Layer) and not issubclass(cls, Bridge)
    return is_layer and not (cls.is_input or cls.is_output)


def layer_function(name: str, form: Form, cls: Any) -> Callable[..., LayerBuilder]:
    """Return the function called ``name`` that makes layers of a class."""
    conf: type[Settings] | None = getattr(cls, "Conf", None)

    def function(**arguments: Any) -> Write:
        fields = form.fields(conf, arguments)

        def write(writer: LayerWriter) -> Any:
            if form.takes_images:
                refuse_channels_last(writer)
            return writer.add(form.type, **fields)

        return write

    make = layer(named(function, name, form, cls))
    make.cls = cls  # type: ignore[attr-defined]
    return make
