"""``nn.Lambda``: a layer that calls a function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from dsinga.base.arguments import value_text
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.job.functions import name_of
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.words.own_layers import FunctionBuilder
from dsinga.nn.writing.feature import Feature
from dsinga.nn.writing.symbol import LayerBuilder
from dsinga.nn.writing.writer import LayerWriter


class _Lambda(FunctionBuilder):
    def __init__(self, function: Callable[..., Any], arguments: Mapping[str, Any], name: str | None, again: Any):
        self.function = functools.partial(function, **arguments) if arguments else function
        super().__init__("Lambda", self._write, {"name": name, "function": function}, again)

    def traced(self, sources: Any) -> Any:
        return self.function(sources)

    def _write_function(self, writer: LayerWriter) -> Feature:
        conf = {"function": name_of(self.function), **({"as_list": True} if self.as_list else {})}
        return writer.add("kFunction", function_conf=conf)


@register("word", "Lambda")
@checked
def Lambda(
    function: Callable[..., Any],
    output_shape: Any = None,
    mask: Any = None,
    arguments: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> LayerBuilder:
    """Return a layer (kFunction) that computes f(x) from a feature or from a list of features.

    A function of operators and layers becomes a model of them. Other functions compute with arrays of JAX, autograd or
    PyTorch, which give the gradient, or of numpy if no params are below. The first axis is the batch. The function's
    result gives the shape of the feature.

    Args:
        function: the function.
        output_shape: has no effect.
        mask: None.
        arguments: further arguments of the function by name.
        name: of the layer.

    Raises UserError, when the layer is called, for a function that mixes rows or fails.
    """
    if not callable(function):
        raise UserError(f"Lambda takes a function, not {value_text(function)}")
    if mask is not None:
        raise UserError("Lambda has no mask; give the lengths of sequences to layers by nn.SequenceLength()")
    again = functools.partial(Lambda, function, arguments=arguments, name=name)
    return _Lambda(function, arguments or {}, name, again)
