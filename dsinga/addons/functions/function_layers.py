"""kFunction and kFunctionLoss: layers that call a user's function; the function's library computes the gradient."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.functions.libraries import Computed, LibraryFunction, NumpyFunction
from dsinga.addons.functions.probing import Probed, probe, title_of
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.base.regular_files import parse_json
from dsinga.job import LayerConf
from dsinga.job.component import Settings, required, setting
from dsinga.job.functions import LayerWeight, find_function
from dsinga.job.limits import NonNegative
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels, ParamSpec
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.losses.pair_loss import WEIGHTS, check_weights, gradient_of_weights, weights_of

FUNCTION = 'the function: "module:function", or a name by dsinga.register("function", ...)'


class OnList:
    """Lets a function that expects one list be called with the list's items."""

    def __init__(self, function: Any):
        self.function, self.title = function, title_of(function)

    def __call__(self, *sources: Any) -> Any:
        return self.function(list(sources))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnList) and other.function is self.function

    def __hash__(self) -> int:
        return hash(self.function)


class FunctionLayer(Layer):
    """Base class of layers that call a user's function, in host memory, on all rows at once.

    ``probed`` is the function with its gradient; workers must load ``user_code``, the user's function or class.
    """

    cut = Cut(gathered_because="calls a function of whole rows")
    settings: Any
    probed: Probed
    user_code: Any = None
    runs_user_code = True

    def find(self, field: str = "function") -> Any:
        """Find the function or class named in the settings; raise JobError if it does not exist."""
        try:
            self.user_code = find_function(self.settings.function)
            return self.user_code
        except UserError as error:
            raise self.fail(str(error), self.settings, field) from error.__cause__

    def probe(self, function: Any, rows: Sequence[Shape], labels: int | None = None) -> Probed:
        """Check the function on random rows and return it with its gradient; raise JobError if it cannot be called."""
        try:
            return probe(function, tuple(map(tuple, rows)), labels)
        except UserError as error:
            raise self.fail(str(error), field="function") from error

    def on_host(self, arrays: Arrays, ctx: Context) -> list[np.ndarray]:
        """Convert the backend's arrays to numpy."""
        return [np.ascontiguousarray(ctx.ops.to_numpy(array)) for array in arrays]

    def compute(self, function: LibraryFunction, arrays: Sequence[np.ndarray], needs: Sequence[bool]) -> Computed:
        """Call the function on arrays; return its value and vector-Jacobian product, without a call for no rows."""
        if len(arrays[-1]):
            return function.compute(arrays, needs)
        nothing = [np.zeros_like(array) if need else None for array, need in zip(arrays, needs, strict=True)]
        return Computed(np.zeros((0, *self.probed.row_shape), np.float32), lambda grad: nothing)

    def checked(self, value: np.ndarray, like: np.ndarray, rows: int) -> np.ndarray:
        """Check the shape of a user's ``value``, and return it in the dtype of ``like`` if that is a float."""
        expected = (rows, *self.probed.row_shape)
        if value.shape != expected:
            raise self.fail(f"its function returns the shape {value.shape} for {rows} rows; it must be {expected}")
        return value.astype(like.dtype, copy=False) if like.dtype.kind == "f" else value


@register("layer", kFunction=793)
class CalledFunction(FunctionLayer):
    """A function of the sources that you write for arrays of JAX, autograd, PyTorch or numpy, with the rows first.

    The function gets the sources in their order, or in one list. For a layer with params, give a class: ``call``
    computes the feature, and ``build`` makes the params by ``add_weight``. The gradient comes from the library of the
    returned arrays. numpy has no gradient, so no params may be below such a layer.
    """

    class Conf(Settings, name="FunctionConf"):
        """Settings of kFunction."""

        function: str = required(FUNCTION)
        arguments: str = setting("", "the arguments of a class, as JSON")
        as_list: bool = setting(False, "whether the function gets its sources as one list")

    settings: Conf

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        function, rows = self.find(), [shape[1:] for shape in self.source_shapes]
        if inspect.isclass(function):
            try:
                arguments = parse_json(self.settings.arguments or "{}")
            except ValueError as error:
                raise self.fail(f"arguments is no JSON: {error}", field="arguments") from None
            try:
                call = LayerCall(function, arguments, tuple(rows), self.settings.as_list)
            except UserError as error:
                raise self.fail(str(error)) from error
            self.params = tuple(
                ParamSpec(role, weight.shape, None, initial=weight.initial, static=not weight.trainable)
                for role, weight in call.weights.items()
            )
            self.call: LayerCall | None = call
            self.probed = call.probed
        else:
            self.call = None
            self.probed = self.probe(OnList(function) if self.settings.as_list else function, rows)
        if isinstance(self.probed.function, NumpyFunction):
            self.no_gradient_because = no_gradient(self.user_code)
        self.shape = (self.source_shapes[0][0], *self.probed.row_shape)

    @staticmethod
    def call_of(cls: type, arguments: Mapping[str, Any], rows: tuple[Shape, ...], as_list: bool) -> LayerCall:
        """Return a class's ``call`` as a function of its params and of sources with rows of these shapes."""
        return LayerCall(cls, arguments, rows, as_list)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        arrays = self.on_host([*params, *sources], ctx)
        rows = len(sources[0])
        function = self.probed.function if self.call is None else self.call.of_phase(ctx.training)
        if not ctx.training and rows:
            return Output(ctx.ops.asarray(self.checked(function.value(arrays), arrays[-1], rows)))
        needs = [array.dtype.kind == "f" for array in arrays]
        value, pull = self.compute(function, arrays, needs)
        return Output(ctx.ops.asarray(self.checked(value, arrays[-1], rows)), saved=pull)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if self.no_gradient_because:
            raise self.fail(self.no_gradient_because)
        gradients = output.saved(np.ascontiguousarray(ctx.ops.to_numpy(grad)))
        arrays = [*params, *sources]
        placed = [
            None if gradient is None else ctx.ops.asarray(gradient.astype(array.dtype, copy=False).reshape(array.shape))
            for gradient, array in zip(gradients, arrays, strict=True)
        ]
        for_sources = [gradient if need else None for gradient, need in zip(placed[len(params) :], needs, strict=True)]
        return for_sources, placed[: len(params)]


def no_gradient(function: Any) -> str:
    """Explain why a function has no gradient for training."""
    return (
        f"the function {title_of(function)} returns numpy's arrays, which have no gradient; write it in jax.numpy, "
        "autograd.numpy or torch, or as a layer with a gradient of its own (docs/howto/own-code.md)"
    )


@register("layer", kFunctionLoss=794)
class FunctionLoss(FunctionLayer):
    """A loss function of your own, f(labels, x)·scale, written for arrays of JAX, autograd or PyTorch.

    The function returns one number a row, several numbers a row, or the mean over rows. Of several numbers the mean
    counts.

    The first source gives x (B, ...). The second gives labels (B, ...) as the records have them, integers or float32.
    Labels (B,) become (B, 1) if x is (B, 1). A third source may give a weight for each row. The feature is the loss of
    each row, (B, 1).
    """

    class Conf(Settings):
        """Settings of kFunctionLoss."""

        function: str = required(FUNCTION)
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Conf
    source_count = 2
    optional_sources = 1
    labels = Labels(source=1, floats=True, any_shape=True)
    is_loss = True
    metric_names = ("loss",)

    @classmethod
    def label_example(cls, settings: Mapping[str, Any], shape: Shape, known: Shape | None = None) -> np.ndarray:
        """Return example labels of the known shape, or else of one that the function accepts."""
        for labels in (shape, ()) if known is None else ():
            with contextlib.suppress(UserError):
                probe(find_function(settings["function"]), (labels, shape), 0)
                return np.zeros((1, *labels), np.float32)
        return np.zeros((1, *(shape if known is None else known)), np.float32)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        x, labels = (shape[1:] for shape in self.source_shapes[:2])
        check_weights(self, WEIGHTS)
        self.label_rows = x if labels == () and x == (1,) else labels
        self.probed = self.probe(self.find(), [self.label_rows, x], labels=0)
        if isinstance(self.probed.function, NumpyFunction):
            raise self.fail(no_gradient(self.user_code), field="function")
        self.shape = (self.source_shapes[0][0], 1)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        if sources[1] is None:
            raise self.fail(f"{self.source_name(1)} has no labels; give y, or leave the loss out")
        (x,), labels = self.on_host(sources[:1], ctx), np.asarray(ctx.ops.to_numpy(sources[1]))
        arrays, rows = [labels.reshape(len(x), *self.label_rows), x], len(x)
        weights = weights_of(sources, WEIGHTS, ctx.ops)
        value, pull = self.compute(self.probed.function, arrays, (False, True))
        value = self.checked(value, x, rows)
        size = math.prod(value.shape[1:])
        losses = value.reshape(rows, size).mean(axis=1)
        factors = np.full(rows, self.settings.scale) if weights is None else ctx.ops.to_numpy(weights)
        factors = factors if weights is None else factors * self.settings.scale

        def gradient(rows_total: int) -> np.ndarray:
            """Compute the gradient of the mean over ``rows_total`` rows, for x."""
            slopes = (factors / (rows_total * size)).reshape(rows, *[1] * (value.ndim - 1))
            computed = pull(np.array(np.broadcast_to(slopes, value.shape), value.dtype))[1]
            assert computed is not None
            return computed.astype(x.dtype, copy=False)

        total = (losses * factors).sum(dtype=np.float64)
        feature = ctx.ops.asarray(losses.astype(x.dtype, copy=False)[:, None])
        return Output(feature, saved=gradient if ctx.training else None, metrics={"loss": (total, rows)})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        gradients: list[Any] = [None] * len(sources)
        if needs[0]:
            gradients[0] = ctx.ops.asarray(output.saved(ctx.rows.total)).reshape(sources[0].shape)
        if any(needs[WEIGHTS:]):
            factor = self.settings.scale / ctx.rows.total
            gradients[WEIGHTS] = gradient_of_weights(output.feature[:, 0], factor, sources[WEIGHTS])
        return gradients, ()


def weights_of_layer(layer: Any) -> dict[str, LayerWeight]:
    """Return the params of a built layer, by role: its attributes, and items of lists among them."""
    weights: dict[str, LayerWeight] = {}
    for value in vars(layer).values():
        for weight in value if type(value) is list else [value]:
            if isinstance(weight, LayerWeight) and weights.setdefault(weight.role, weight) is not weight:
                raise UserError(f"two params are called {weight.role!r}; give add_weight another name=")
    return weights


class LayerCall:
    """The ``call`` of a class as a function of arrays: the params in order, then the sources."""

    def __init__(self, cls: type, arguments: Mapping[str, Any], rows: tuple[Shape, ...], as_list: bool):
        self.arguments = dict(arguments)
        self.cls, self.text, self.rows, self.as_list = cls, json.dumps(arguments, sort_keys=True), rows, as_list
        self.training = False
        self._in_training: LibraryFunction | None = None
        shapes = [(None, *shape) for shape in rows]
        try:
            self.layer = cls(**arguments)
            if callable(getattr(self.layer, "build", None)):
                self.layer.build(shapes if as_list else shapes[0])
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{cls.__name__} cannot be built: {type(error).__name__}: {error}") from error
        self.weights = weights_of_layer(self.layer)
        self.takes_training = "training" in inspect.signature(cls.call).parameters  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.cls, self.arguments, self.rows, self.as_list, self.training)

    @property
    def title(self) -> str:
        """The name of the call in messages."""
        return f"{self.cls.__name__}.call"

    @property
    def probed(self) -> Probed:
        """The call with its gradient, after a check on random rows and params."""
        return probe(self, self.rows, None, tuple(weight.shape for weight in self.weights.values()))

    def of_phase(self, training: bool) -> LibraryFunction:
        """Return the variant of the function for training, or for the other phases."""
        function = self.probed.function
        if not self.takes_training or not training:
            return function
        if self._in_training is None:
            call = _made(self.cls, self.arguments, self.rows, self.as_list, training=True)
            self._in_training = type(function)(call)
        return self._in_training

    def __call__(self, *arrays: Any) -> Any:
        values = dict(zip(self.weights, arrays, strict=False))
        sources = list(arrays[len(values) :])
        layer: Any = object.__new__(self.cls)  # its attributes are copied from the layer that the constructor has made
        vars(layer).update(vars(self.layer))
        for attribute, value in vars(self.layer).items():
            if isinstance(value, LayerWeight):
                vars(layer)[attribute] = values[value.role]
            elif type(value) is list and any(isinstance(item, LayerWeight) for item in value):
                items = [values[item.role] if isinstance(item, LayerWeight) else item for item in value]
                vars(layer)[attribute] = items
        more = {"training": self.training} if self.takes_training else {}
        return layer.call(sources, **more) if self.as_list else layer.call(*sources, **more)

    def _key(self) -> tuple[Any, ...]:
        return self.cls, self.text, self.rows, self.as_list, self.training

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayerCall) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def _made(cls: type, arguments: Mapping[str, Any], rows: tuple[Shape, ...], as_list: bool, training: bool) -> LayerCall:
    call = LayerCall(cls, arguments, rows, as_list)
    call.training = training
    return call
