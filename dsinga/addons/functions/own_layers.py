"""Builds layers from user code: Lambda from a function, OwnLayer from a class with a ``call``."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsinga.addons.functions.function_layers import LayerCall, Weight
from dsinga.base.arguments import value_text
from dsinga.base.errors import UserError
from dsinga.base.functions import CallableLayer, name_of
from dsinga.base.registry import register
from dsinga.nn.words.keras_arguments import check_names, checked
from dsinga.nn.words.regularisers import penalty
from dsinga.nn.writing.feature import Feature
from dsinga.nn.writing.symbol import LayerBuilder, NotAFeature, Symbol, flatten
from dsinga.nn.writing.writer import LayerWriter


class FunctionBuilder(LayerBuilder):
    """A layer that calls a function: of layers, where the function takes features, else of arrays (kFunction).

    Attributes:
        as_list: whether the function takes its sources as one list.
        failure: what the function raised for features.
    """

    as_list = False
    failure: Exception | None = None

    def traced(self, sources: Any) -> Any:
        """Return what the function makes of features, whose layers are then those of the model."""
        raise NotImplementedError

    def __call__(self, *sources: Any, labels: Symbol | None = None, **arguments: Any) -> Any:
        """Return the feature of the function, or what the layers within it return."""
        as_list = len(sources) == 1 and isinstance(sources[0], (list, tuple))
        self.failure = None
        try:
            features = self.traced(list(sources[0]) if as_list else sources[0]) if len(sources) == 1 else None
            results = flatten([features])
            if features is not None and all(isinstance(result, Symbol) for result in results):
                self.calls += results[:1]
                return features
        except NameError as error:  # the function has it with arrays, too
            raise self._fail(error) from error
        except Exception as error:  # a function of arrays fails with features in its own way
            self.failure = error
        self.as_list = as_list
        return super().__call__(*sources, labels=labels, **arguments)

    def _write_function(self, writer: LayerWriter) -> Feature:
        """Write the layer of a function of arrays."""
        raise NotImplementedError

    def _write(self, writer: LayerWriter) -> Feature:
        """Write the layer; what a function of layers raised for features is raised here, where arrays do not help."""
        try:
            return self._write_function(writer)
        except UserError as error:
            if self.failure is None or not _calls_layers(error):
                raise
            raise self._fail(self.failure) from self.failure

    def _fail(self, error: Exception) -> UserError:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return UserError(f"the function of the layer {self.name or self.kind} fails for features: {kind}{error}")


def _calls_layers(error: BaseException | None) -> bool:
    """Whether an error comes from a layer that was called on arrays."""
    while error is not None and not isinstance(error, NotAFeature):
        error = error.__cause__
    return error is not None


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

    A function that consists of operators and layers is a model of these. Others compute with arrays, whose first axis
    is the batch, of JAX, autograd or PyTorch, from which the gradient comes; of numpy where no params are below. The
    shape of the feature is that of what the function returns, so that ``output_shape`` is not needed.

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


@register("hook", "users_layer")
class OwnLayer(FunctionBuilder, CallableLayer):
    """Base of the user's layer classes, such as ``class Scale(nn.Layer)``: ``call`` computes the layer's output.

    ``call(self, x)`` gets a feature where it consists of layers and operators, or else an array of the batch, and the
    params as arrays; ``build(self, input_shape)`` makes params by :meth:`add_weight`. The constructor's arguments are
    kept in jobs as JSON. It computes with arrays of JAX, autograd or PyTorch, from which the gradient comes.
    """

    _given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    _is_built = False

    def __new__(cls, *args: Any, **kwargs: Any) -> OwnLayer:
        """Store the constructor's arguments."""
        made = object.__new__(cls)
        made._given = args, kwargs
        return made

    def __init__(self, *, name: str | None = None, trainable: bool = True, dtype: Any = None, **others: Any):
        check_names(type(self).__name__, ["name", "trainable", "dtype"], others)
        if not callable(getattr(type(self), "call", None)):
            raise UserError(f"{type(self).__name__} does not define call(self, x), which says what the layer computes")
        args, kwargs = self._given
        again = functools.partial(type(self), *args, **kwargs)
        super().__init__(type(self).__name__, self._write, {"name": name, "trainable": trainable}, again)
        self._weights: list[Weight] = []

    def add_weight(
        self,
        shape: Sequence[int] | int = (),
        initializer: Any = "glorot_uniform",
        dtype: Any = None,
        trainable: bool = True,
        name: str | None = None,
        regularizer: Any = None,
        **others: Any,
    ) -> Any:
        """Return a param of this shape, an array where ``call`` gets arrays; for ``build`` or the constructor.

        ``name`` is the end of its name in the model, by default "weight". Raises UserError for unknown arguments.
        """
        check_names("add_weight", ["shape", "initializer", "dtype", "trainable", "name", "regularizer"], others)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise UserError(f"add_weight: shape has a whole number above 0 for each axis, not {shape!r}")
        number = len(self._weights)
        weight = Weight(name or ("weight" if not number else f"weight_{number}"), sizes or (1,), initializer, trainable)
        self._weights.append(weight)
        if regularizer is not None:
            self._penalties = {**getattr(self, "_penalties", {}), weight.role: penalty(regularizer)}
        return weight

    def traced(self, sources: Any) -> Any:
        """Return what ``call`` makes of features, None for a layer with params of its own."""
        if not self._is_built and callable(build := getattr(type(self), "build", None)):
            shapes = [symbol.shape for symbol in flatten([sources])]
            build(self, shapes if isinstance(sources, list) else shapes[0])
            self._is_built = True
        return None if self._weights else self.call(sources)  # type: ignore[attr-defined]

    def _write_function(self, writer: LayerWriter) -> Feature:
        arguments = constructor_arguments(type(self), *self._given)
        rows = tuple(writer.rows(source) for source in writer.sources)
        call = LayerCall(type(self), arguments, rows, self.as_list)
        conf = {"function": name_of(type(self)), **({"as_list": True} if self.as_list else {})}
        conf |= {"arguments": json.dumps(arguments)} if arguments else {}
        inits = {role: weight.initializer for role, weight in call.weights.items()}
        fans = {
            role: (weight.shape[-2], weight.shape[-1]) for role, weight in call.weights.items() if len(weight.shape) > 1
        }
        penalties = getattr(call.layer, "_penalties", {})
        return writer.add("kFunction", inits=inits, fans=fans, penalties=penalties, function_conf=conf)


def constructor_arguments(cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor by name, without the name of the layer.

    Raises UserError for one that JSON does not have, in which jobs keep them.
    """
    bound = inspect.signature(cls).bind(*args, **kwargs)
    given: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        given |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    given = {name: value for name, value in given.items() if name not in ("name", "trainable")}
    for name, value in given.items():
        try:
            json.dumps(value)
        except TypeError:
            raise UserError(
                f"{cls.__name__}: the argument {name}={value_text(value)} cannot be kept in a job; give numbers, "
                "texts, or lists and dicts of these"
            ) from None
    return given
