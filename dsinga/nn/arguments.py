"""Arguments of the functions that make layers and optimizers: a misspelt name is an error with the nearest one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dsinga.nn.feature import Feature
from dsinga.nn.keras_arguments import bind
from dsinga.nn.symbol import LayerBuilder

COMMON: Mapping[str, Any] = {
    "name": None,
    "param": None,
    "lr_scale": None,
    "wd_scale": None,
    "trainable": True,
    "partition_dim": None,
    "location": None,
    "include": None,
    "exclude": None,
}
"""Arguments of every layer: name; ``nn.Param(...)`` for each param; learning rate and weight decay scales, a number for
all params or one for each; ``trainable=False``, which keeps the values of its params (static); the dimension on which
the layer is cut, or the worker that computes it; its phases."""


def layer(function: Callable[..., Callable[[Any], Feature]]) -> Callable[..., LayerBuilder]:
    """Return the function as one that makes a layer: it takes the arguments of every layer, too.

    ``function`` returns what writes the layer (:class:`LayerBuilder`).
    """
    own = inspect.signature(function)
    keyword = inspect.Parameter.KEYWORD_ONLY
    common = [inspect.Parameter(name, keyword, default=default) for name, default in COMMON.items()]
    signature = own.replace(parameters=[*own.parameters.values(), *common], return_annotation="LayerBuilder")

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> LayerBuilder:
        settings = bind(function.__name__, signature, args, kwargs)
        arguments = {name: value for name, value in settings.items() if name not in COMMON}
        again = functools.partial(make, *args, **kwargs)
        return LayerBuilder(function.__name__, function(**arguments), settings, again)

    make.__signature__ = signature  # type: ignore[attr-defined]
    return make
