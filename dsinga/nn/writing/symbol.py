"""Layers and symbolic tensors of a model before it becomes a job, and the decorator of layer functions."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict
from weakref import WeakSet

import numpy as np

from dsinga.base.arguments import check_bool, extended_signature, fail_for_name
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.job.setting_arguments import explaining
from dsinga.layers.interface.layer import Shape
from dsinga.nn.words.keras_arguments import LAYER_ATTRIBUTES, bind, check_names, keyword_parameters
from dsinga.nn.writing.explained_arguments import MEANINGS
from dsinga.nn.writing.feature import ChannelsLast, Feature, row_shape, with_unique_names
from dsinga.nn.writing.operators import Operators
from dsinga.nn.writing.variables import HasVariables, Variable
from dsinga.nn.writing.writer import NetWriter, Write

if TYPE_CHECKING:
    from dsinga.nn.model.training_state import RunningFit

P = ParamSpec("P")
_log = logging.getLogger(__name__)


class NotAFeature(UserError):
    """Error: a layer was called on something other than a symbolic tensor."""


ATTRIBUTES = {
    "_values", "calls", "encoder", "fit", "input_rows", "kind", "models", "name", "remake", "settings", "trainable",
    "values", "wrapped", "write",
}  # fmt: skip


# Attributes that only dsinga uses; dir(layer), from which notebooks complete, leaves them out.
FOR_DSINGA = frozenset("calls encoder fit input_rows kind models remake values wrapped write".split())


class LayerBuilder(HasVariables):
    """A layer of a model, such as ``nn.Dense(10)``: its settings, and the function that writes it into a job.

    Call it on symbolic tensors: ``nn.Dense(10)(x)``. All calls of a layer share its params.

    Attributes:
        kind: name of the function that made it, such as "Dense".
        remake: makes the layer again, from a function of a module and arguments, which pickle (unlike ``write``).
        write: writes the layer with a :class:`dsinga.nn.writing.writer.LayerWriter`.
        wrapped: layer that it applies to steps, in both directions or as a loss, else None.
        input_rows: shape of a source row, if given by Keras's ``input_shape``, else None.
        encoder: encodes the texts of its source, an input; None for a layer of numbers.
    """

    input_rows: tuple[Any, ...] | None = None
    encoder: Any = None

    def __init__(
        self,
        kind: str,
        write: Callable[[Any], Feature],
        settings: Mapping[str, Any],
        remake: Callable[[], LayerBuilder],
        wrapped: LayerBuilder | None = None,
    ):
        self.remake = remake
        self.kind = kind
        self.write = write
        self.settings: Mapping[str, Any] = dict(settings)
        self.name: str | None = settings.get("name")
        self.wrapped = wrapped
        self._values: list[np.ndarray | None] | None = None
        self.fit: RunningFit | None = None
        self.calls: list[Symbol] = []
        self.models: WeakSet[Any] = WeakSet()
        if wrapped is None and "trainable" in settings:
            self.trainable = settings["trainable"]
        if (recompute := settings.get("recompute")) is not None:
            check_bool(f"recompute of {self.name or kind}", recompute)

    @property
    def values(self) -> list[np.ndarray | None] | None:
        """The params in order, shared by all models that contain the layer; None before initialisation."""
        if self.fit is not None:
            self.fit.refresh()
        return self._values

    @values.setter
    def values(self, values: list[np.ndarray | None] | None) -> None:
        self._values = values

    @property
    def trainable(self) -> bool:
        """Whether training changes the params, from the next ``fit`` or batch."""
        return self.settings.get("trainable", True) if self.wrapped is None else self.wrapped.trainable

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        if self.fit is not None:
            self.fit.refuse(f"trainable of {self.name or self.kind}")
        check_bool(f"trainable of {self.name or self.kind}", trainable)
        if self.wrapped is None:
            self.settings = {**self.settings, "trainable": trainable}
        else:
            self.wrapped.trainable = trainable

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __setattr__(self, name: str, value: Any) -> None:
            if type(self) is LayerBuilder and name not in ATTRIBUTES:
                if name in self.settings:
                    raise UserError(
                        f"{name} of {self.name or self.kind} is set when the layer is made, as in "
                        f"nn.{self.kind}(..., {name}={value!r}); make another layer"
                    )
                getattr(self, name)  # raises AttributeError for an unknown name
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            fail_for_name(f"a layer {self.__dict__.get('kind', '')}".rstrip(), name, dir(type(self)), LAYER_ATTRIBUTES)

    @public
    def __call__(self, *sources: Any, labels: Symbol | None = None, **arguments: Any) -> Any:
        """Return the symbolic tensor computed from ``sources``, or a list if the layer returns parts.

        ``labels`` is the input that gives a loss its labels. Raises UserError if known shapes do not fit.
        """
        if arguments.get("training", 0) is None:  # subclasses of Model pass it on
            del arguments["training"]
        check_names(f"call of {self.kind}", ["labels"], arguments)
        symbols = [*flatten(sources), *([] if labels is None else [labels])]
        for source in symbols:
            if not isinstance(source, Symbol):
                raise NotAFeature(
                    f"{self.kind} is called on {type(source).__name__}, not on the feature of another layer; begin "
                    "with x = nn.Input(shape=...), or put layers into nn.Sequential([...])"
                )
        if self.input_rows and symbols[0].rows not in (None, self.input_rows) and None not in self.input_rows:
            raise UserError(f"{self!r} has input_shape={self.input_rows}, but its source gives {symbols[0].rows}")
        symbol = Symbol(self, symbols)
        self.calls.append(symbol)
        parts = self.settings.get("parts")
        return symbol if parts is None else [Symbol(self, symbols, part, symbol) for part in range(parts)]

    @property
    def output(self) -> Symbol:
        """The symbolic output of the layer's first call. Raises UserError if it was not called."""
        if not self.calls:
            raise UserError(f"the layer {self.name or self.kind} was not called yet; write layer(x)")
        return self.calls[0]

    @property
    def input(self) -> Any:
        """The symbolic input of the first call, or a list for several. Raises UserError if it was not called."""
        sources = list(self.output.sources)
        return sources[0] if len(sources) == 1 else sources

    @property
    def weights(self) -> list[Variable]:
        """The layer's params in order. Raises UserError unless a model with known input shapes contains the layer."""
        for model in self.models:
            of_model: list[Variable] = model.weights_of(self)
            return of_model
        raise UserError(f"the layer {self.name or self.kind} is in no model yet, so that it has no params")

    def get_weights(self) -> list[np.ndarray]:
        """Return copies of the layer's params in order. Raises UserError before a model has made them."""
        if self.values is None and self.models:
            return [variable.numpy() for variable in self.weights]
        values = [value for value in self.values or () if value is not None]
        if not values or len(values) < len(self.values or ()):
            raise UserError(
                f"the layer {self.name or self.kind} has no params yet; model.get_weights() makes them, and so does fit"
            )
        return [value.copy() for value in values]

    def set_weights(self, weights: Iterable[np.ndarray]) -> None:
        """Set the params, in the order of :meth:`get_weights`, for all models that contain the layer.

        The optimizer keeps its state. Raises UserError for other shapes, and before there are params.
        """
        if self.fit is not None:
            self.fit.check_open()
        arrays = [np.array(array, np.float32) for array in weights]
        shapes = [value.shape for value in self.get_weights()]
        if [array.shape for array in arrays] != shapes:
            wrong = ", ".join(str(array.shape) for array in arrays) or "none"
            raise UserError(
                f"set_weights: the layer {self.name or self.kind} takes arrays of the shapes "
                f"{', '.join(map(str, shapes))}, not {wrong}"
            )
        self.values = [*arrays]

    def __reduce__(self) -> tuple[Callable[[], LayerBuilder], tuple[()], dict[str, Any]]:
        return self.remake, (), {"trainable": self.trainable, "values": self.values, "name": self.name}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        if self.trainable != state["trainable"]:
            self.trainable = state["trainable"]
        self.values, self.name = state["values"], state["name"]

    def __dir__(self) -> list[str]:
        return [*({*super().__dir__()} - FOR_DSINGA)]

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.kind}({arguments})"


class Symbol(Operators):
    """A symbolic tensor, the output of a layer that was called before there is a job.

    Attributes:
        part: number of the part, if the layer cuts its source into parts, which have one ``whole``.
        feature: output as far as known without a job, None if an input shape is unknown.
        model: model that was called as a layer to give it, else None.
        takers: symbols of the layers that read the feature; pickles leave them out.
    """

    model: Any = None
    takers: tuple[Symbol, ...] = ()

    def __init__(
        self, builder: LayerBuilder, sources: Sequence[Symbol], part: int | None = None, whole: Symbol | None = None
    ):
        self.builder = builder
        self.sources = tuple(sources)
        self.part = part
        self.whole = whole or self
        self.feature: Feature | None = None
        try:
            self.feature = preview(self)
        except ChannelsLast as fault:
            ends = [take_channels_last(ancestors([self]), fault)]
            for symbol in ends:  # which grows: all features that come from the input have other shapes now
                ends += symbol.takers
            for symbol in ancestors([*ends, self]):
                for changed in (*symbol.sources, symbol):
                    changed.feature = preview(changed)
        for symbol in self.sources:
            symbol.whole.takers = (*symbol.whole.takers, self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "takers"}

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """The tensor's shape, with None for the batch, as in Keras; None if unknown."""
        return None if self.rows is None else (None, *self.rows)

    @property
    def rows(self) -> Shape | None:
        """The shape of a row of the tensor, None if unknown."""
        return None if self.feature is None else row_shape(self.feature)

    def operate(self, kind: str, type: str, sources: Sequence[Symbol], **fields: Any) -> Symbol:
        """Return the output of a new layer of this type with these sources."""
        symbol: Symbol = operator_layer(kind, type, fields)(*sources)
        return symbol

    def __repr__(self) -> str:
        return f"<feature of {self.builder.name or self.builder.kind}, shape {self.shape or 'not known yet'}>"


def operator_layer(kind: str, type: str, fields: Mapping[str, Any]) -> LayerBuilder:
    """Make the layer that computes a Python operator, from its type and configuration fields."""
    again = functools.partial(operator_layer, kind, type, fields)
    return LayerBuilder(kind, lambda writer: writer.add(type, **fields), {}, again)


def preview(symbol: Symbol) -> Feature | None:
    """Return a layer's output shape as far as known without a job."""
    if symbol.part is not None:
        return None if symbol.whole.feature is None else symbol.whole.feature.parts[symbol.part]
    sources = [source.feature for source in symbol.sources]
    shaped = [feature for feature in sources if feature is not None and feature.shape is not None]
    return NetWriter().write(symbol.builder, with_unique_names(shaped)) if len(shaped) == len(sources) else None


def take_channels_last(symbols: Iterable[Symbol], fault: ChannelsLast) -> Symbol:
    """Set the input named by a ChannelsLast error to channels last and return it, or raise the error."""
    for symbol in symbols:
        settings = symbol.builder.settings
        if symbol.builder.name == fault.source and settings.get("format_given") is False:
            settings["store"]["channels_last"] = True
            _log.warning(
                "the records of the input %r are taken as images with their channels last, as nn.Input(..., "
                'data_format="channels_last") says; write data_format="channels_first" where they are not',
                fault.source,
            )
            return symbol
    raise fault


def flatten(values: Iterable[Any]) -> list[Any]:
    """Flatten nested lists and tuples of ``values``."""
    return [item for value in values for item in (flatten(value) if isinstance(value, (list, tuple)) else [value])]


def ancestors(outputs: Iterable[Symbol]) -> list[Symbol]:
    """Return ``outputs`` and all symbols that they depend on, each once and after its sources."""
    ordered: dict[int, Symbol] = {}
    pending = list(outputs)[::-1]
    while pending:  # without recursion because nets may be deep
        symbol = pending[-1].whole
        missing = [source.whole for source in symbol.sources if id(source.whole) not in ordered]
        if missing:
            pending.extend(reversed(missing))
        else:
            pending.pop()
            ordered.setdefault(id(symbol), symbol)
    return list(ordered.values())


def call_again(
    inputs: Sequence[Symbol], outputs: Sequence[Symbol], features: Sequence[Symbol],
    copied: Callable[[LayerBuilder], LayerBuilder] = lambda builder: builder
) -> list[Symbol]:  # fmt: skip
    """Apply the layers of a model, or copies, to other tensors than its inputs; return the outputs."""
    called: dict[int, list[Symbol]] = {id(symbol): [feature] for symbol, feature in zip(inputs, features, strict=True)}

    def feature(symbol: Symbol) -> Symbol:
        return called[id(symbol.whole)][symbol.part or 0]

    for symbol in ancestors(outputs):
        if id(symbol) not in called:
            result = copied(symbol.builder)(*map(feature, symbol.sources))
            called[id(symbol)] = result if isinstance(result, list) else [result]
    return [feature(symbol) for symbol in outputs]


class LayerArguments(TypedDict, total=False):
    """Further keyword arguments of every layer, explained by :data:`.COMMON_MEANINGS`."""

    name: str | None
    param: Sequence[Any] | None
    lr_scale: float | Sequence[float] | None
    wd_scale: float | Sequence[float] | None
    trainable: bool
    partition_dim: int | None
    location: int | None
    recompute: bool
    include: Sequence[str] | None
    exclude: Sequence[str] | None


COMMON = keyword_parameters(LayerArguments, None, {"trainable": True, "recompute": False})

# Keras's arguments for the shape of a source row; nn.Sequential makes an input from the first layer's.
SHAPES: Mapping[str, Callable[[Any], tuple[Any, ...]]] = {
    "input_shape": lambda shape: (shape,) if isinstance(shape, int) else tuple(shape),
    "batch_input_shape": lambda shape: tuple(shape)[1:],
    "input_dim": lambda size: (size,),
    "input_length": lambda size: (size,),
}


def layer(function: Callable[P, Write], builder: type[LayerBuilder] = LayerBuilder) -> Callable[P, LayerBuilder]:
    """Turn a function that returns a layer's writer into a function that checks arguments and returns the layer."""
    signature = extended_signature(function, COMMON.values(), LayerBuilder)
    writes: Callable[..., Write] = function

    @public
    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> LayerBuilder:
        given = {name: value for name, value in kwargs.items() if name in signature.parameters or name not in SHAPES}
        settings = bind(function.__name__, signature, args, given)
        arguments = {name: value for name, value in settings.items() if name not in COMMON}
        again = functools.partial(make, *args, **kwargs)
        made = builder(function.__name__, writes(**arguments), settings, again)
        for name in kwargs.keys() - given.keys():
            made.input_rows = SHAPES[name](kwargs[name])
        return made

    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__doc__ = explaining(function, signature.parameters, MEANINGS)
    return make
