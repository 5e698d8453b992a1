"""Layers with user code: ``class Scale(nn.Layer)`` with a ``call``, and layers that call a function."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dsinga.base.arguments import value_text
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job.functions import CallableLayer, LayerWeight, name_of
from dsinga.nn.words.basic_layers import layer_of_type
from dsinga.nn.words.keras_arguments import check_names
from dsinga.nn.words.regularisers import penalty
from dsinga.nn.writing.feature import Feature
from dsinga.nn.writing.symbol import LayerBuilder, NotAFeature, Symbol, flatten
from dsinga.nn.writing.writer import LayerWriter


class FunctionBuilder(LayerBuilder):
    """A layer that calls a user's function on symbolic tensors if it uses layers, else on arrays (kFunction)."""

    as_list = False
    failure: Exception | None = None

    def traced(self, sources: Any) -> Any:
        """Call the function on symbolic tensors; its layers become the model's."""
        raise NotImplementedError

    def __call__(self, *sources: Any, labels: Symbol | None = None, **arguments: Any) -> Any:
        """Return the layer's output, or what the function's own layers return."""
        as_list = len(sources) == 1 and isinstance(sources[0], (list, tuple))
        self.failure = None
        try:
            features = self.traced(list(sources[0]) if as_list else sources[0]) if len(sources) == 1 else None
            results = flatten([features])
            if features is not None and all(isinstance(result, Symbol) for result in results):
                self.calls += results[:1]
                return features
        except NameError as error:  # the function has the same fault on arrays
            raise self._fail(error) from error
        except Exception as error:  # functions of arrays fail on features in many ways
            self.failure = error
        self.as_list = as_list
        return super().__call__(*sources, labels=labels, **arguments)

    def _write_function(self, writer: LayerWriter) -> Feature:
        """Write the layer of a function of arrays into the job."""
        raise NotImplementedError

    def _write(self, writer: LayerWriter) -> Feature:
        """Write the layer into the job. If arrays fail, too, raise the function's error on symbolic tensors."""
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


class OwnLayer(FunctionBuilder, CallableLayer):
    """Base of users' layer classes, such as ``class Scale(nn.Layer)``: ``call`` computes the layer's output.

    ``call(self, x)`` gets a symbolic tensor if it consists of layers and operators, else an array of the batch, with
    the params as arrays. ``build(self, input_shape)`` makes params by :meth:`add_weight`. Jobs keep the constructor's
    arguments as JSON. Gradients come from JAX, autograd or PyTorch: compute with their arrays.

    ``nn.Layer("kLRN", local_size=3)`` itself returns a layer of any type (:func:`layer_of_type`).
    """

    _given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    _is_built = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Store the constructor's arguments for the job; for nn.Layer itself, return a layer of any type."""
        if cls is OwnLayer:
            return layer_of_type(*args, **kwargs)
        made = object.__new__(cls)
        made._given = args, kwargs
        return made

    def __init__(self, *args: Any, name: str | None = None, trainable: Any = True, dtype: Any = None, **others: Any):
        if args:
            raise UserError(f"{type(self).__name__} takes arguments by name; define __init__ to take {args[0]!r}")
        check_names(type(self).__name__, ["name", "trainable", "dtype"], others)
        if not callable(getattr(type(self), "call", None)):
            raise UserError(f"{type(self).__name__} does not define call(self, x), which says what the layer computes")
        given, kwargs = self._given
        again = functools.partial(type(self), *given, **kwargs)
        super().__init__(type(self).__name__, self._write, {"name": name, "trainable": trainable}, again)
        self._weights: list[LayerWeight] = []

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
        """Create a param, in ``build`` or the constructor, for use in ``call``.

        ``name`` is the end of its name in the model, by default "weight". Raises UserError for unknown arguments.
        """
        check_names("add_weight", ["shape", "initializer", "dtype", "trainable", "name", "regularizer"], others)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise UserError(f"add_weight: shape has a whole number above 0 for each axis, not {shape!r}")
        number = len(self._weights)
        role = name or ("weight" if not number else f"weight_{number}")
        weight = LayerWeight(role, sizes or (1,), initializer, trainable)
        self._weights.append(weight)
        if regularizer is not None:
            self._penalties = {**getattr(self, "_penalties", {}), weight.role: penalty(regularizer)}
        return weight

    def traced(self, sources: Any) -> Any:
        """Call ``call`` on symbolic tensors; None for a layer with its own params."""
        if not self._is_built and callable(build := getattr(type(self), "build", None)):
            shapes = [symbol.shape for symbol in flatten([sources])]
            build(self, shapes if isinstance(sources, list) else shapes[0])
            self._is_built = True
        return None if self._weights else self.call(sources)  # type: ignore[attr-defined]

    def _write_function(self, writer: LayerWriter) -> Feature:
        arguments = constructor_arguments(type(self), *self._given)
        rows = tuple(writer.rows(source) for source in writer.sources)
        call = lookup("layer", "kFunction").call_of(type(self), arguments, rows, self.as_list)
        conf = {"function": name_of(type(self)), **({"as_list": True} if self.as_list else {})}
        conf |= {"arguments": json.dumps(arguments)} if arguments else {}
        inits = {role: weight.initializer for role, weight in call.weights.items()}
        fans = {
            role: (weight.shape[-2], weight.shape[-1]) for role, weight in call.weights.items() if len(weight.shape) > 1
        }
        penalties = getattr(call.layer, "_penalties", {})
        return writer.add("kFunction", inits=inits, fans=fans, penalties=penalties, function_conf=conf)


def constructor_arguments(cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a constructor's arguments by name, to keep them in a job. Raises UserError unless JSON can hold them."""
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
