"""Layers of a model before it is a job, the decorator of functions that make them, and the symbols of features."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from dsinga.base.arguments import check_bool, extended_signature, fail_for_name
from dsinga.base.errors import UserError
from dsinga.nn.words.keras_arguments import LAYER_ATTRIBUTES, bind, check_names, refuse_subclasses
from dsinga.nn.writing.feature import Feature, row_shape
from dsinga.nn.writing.writer import NetWriter


class LayerBuilder:
    """A layer of a model: its settings, and the function that writes it into a job.

    Calling it on symbols returns the symbol of its feature, as in ``nn.Dense(10)(x)``. A layer that is called more than
    once shares its params among the calls.

    Attributes:
        kind: the name of the function that made it, such as "Dense".
        name: the name of its layer in the job, None to make one from ``kind``.
        settings: the arguments that it was made with, by name.
        remake: makes the layer again: a function of a module with its arguments, which pickles, as ``write`` does not.
        write: writes the layer, with a :class:`dsinga.nn.writing.writer.LayerWriter`, and returns its feature.
        wrapped: the layer that this one applies to steps, in both directions or as a loss, else None.
    """

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
        if wrapped is None and "trainable" in settings:
            self.trainable = settings["trainable"]
        if (recompute := settings.get("recompute")) is not None:
            check_bool(f"recompute of {self.name or kind}", recompute)

    @property
    def trainable(self) -> bool:
        """Whether training moves the params, from the next ``fit`` on. Setting it to no bool raises UserError."""
        return self.settings.get("trainable", True) if self.wrapped is None else self.wrapped.trainable

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        check_bool(f"trainable of {self.name or self.kind}", trainable)
        if self.wrapped is None:
            self.settings = {**self.settings, "trainable": trainable}
        else:
            self.wrapped.trainable = trainable

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            fail_for_name(f"a layer {self.__dict__.get('kind', '')}".rstrip(), name, dir(type(self)), LAYER_ATTRIBUTES)

    def __call__(self, *sources: Any, labels: Symbol | None = None, **arguments: Any) -> Any:
        """Return the symbol of the feature computed from ``sources``; a list of symbols for a layer with parts.

        ``labels`` is the symbol of the input whose labels a loss takes. Raises UserError, with the name of the layer,
        where the shapes of the sources are known and do not fit.
        """
        check_names(f"call of {self.kind}", ["labels"], arguments)
        symbols = [*flatten(sources), *([] if labels is None else [labels])]
        for source in symbols:
            if not isinstance(source, Symbol):
                raise UserError(
                    f"{self.kind} is called on {type(source).__name__}, not on the feature of another layer; begin "
                    "with x = nn.Input(shape=...), or put layers into nn.Sequential([...])"
                )
        symbol = Symbol(self, symbols)
        parts = self.settings.get("parts")
        return symbol if parts is None else [Symbol(self, symbols, part, symbol) for part in range(parts)]

    def __reduce__(self) -> tuple[Callable[[], LayerBuilder], tuple[()], dict[str, bool]]:
        return self.remake, (), {"trainable": self.trainable}

    def __setstate__(self, state: Mapping[str, bool]) -> None:
        if self.trainable != state["trainable"]:
            self.trainable = state["trainable"]

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.kind}({arguments})"


class Symbol:
    """The feature of a layer that was called on the features of others.

    Attributes:
        builder: the layer.
        sources: the symbols of its sources.
        part: the number of the part, of a layer that cuts its source in parts; the parts have one ``whole``.
        feature: the feature as far as it is known without a job, None where the shape of an input is not known.
    """

    def __init__(
        self, builder: LayerBuilder, sources: Sequence[Symbol], part: int | None = None, whole: Symbol | None = None
    ):
        self.builder = builder
        self.sources = tuple(sources)
        self.part = part
        self.whole = whole or self
        self.feature: Feature | None = preview(self)

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """The shape of the feature with None for the batch, as in Keras; None where it is not known."""
        shape = None if self.feature is None else row_shape(self.feature)
        return None if shape is None else (None, *shape)

    def _refuse(self, *_: Any) -> NoReturn:
        raise UserError(
            f"{self!r} has no numbers yet; write nn.Add()([x, y]), nn.Multiply()([x, y]), nn.Slice(parts)(x), "
            "or a layer of your own (docs/extending.md)"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __matmul__ = __getitem__ = _refuse

    def __repr__(self) -> str:
        return f"<feature of {self.builder.name or self.builder.kind}, shape {self.shape or 'not known yet'}>"


def preview(symbol: Symbol) -> Feature | None:
    """Return the feature of a symbol as far as it is known before there is a job; raise UserError for wrong shapes."""
    if symbol.part is not None:
        return None if symbol.whole.feature is None else symbol.whole.feature.parts[symbol.part]
    sources = [source.feature for source in symbol.sources]
    known = [feature for feature in sources if feature is not None and feature.shape is not None]
    return NetWriter().write(symbol.builder, known) if len(known) == len(sources) else None


def flatten(values: Iterable[Any]) -> list[Any]:
    """Return the items of ``values``, with those of lists and tuples among them in their place."""
    return [item for value in values for item in (flatten(value) if isinstance(value, (list, tuple)) else [value])]


def ancestors(outputs: Iterable[Symbol]) -> list[Symbol]:
    """Return ``outputs`` and all symbols that they are computed from, sources first, each once."""
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


def common(
    *,
    name: str | None = None,
    param: Sequence[Any] | None = None,
    lr_scale: float | Sequence[float] | None = None,
    wd_scale: float | Sequence[float] | None = None,
    trainable: bool = True,
    partition_dim: int | None = None,
    location: int | None = None,
    recompute: bool = False,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
) -> None:
    """Has the arguments of every layer: name; ``nn.Param(...)`` for each param; learning rate and weight decay scales.

    These are a number for all params or one for each. ``trainable=False`` keeps the values of the params (static).
    ``partition_dim`` is the dimension on which the layer is cut, ``location`` the worker that computes it;
    ``recompute=True`` frees the feature after the forward pass and computes it again in the backward pass; ``include``
    and ``exclude`` are its phases.
    """


COMMON = inspect.signature(common).parameters


def layer(function: Callable[..., Callable[[Any], Feature]]) -> Callable[..., LayerBuilder]:
    """Add the arguments that all layers share to a function that makes a layer: a decorator.

    ``function`` returns what writes the layer (:class:`LayerBuilder`).
    """
    signature = extended_signature(function, COMMON.values(), "LayerBuilder")

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> LayerBuilder:
        settings = bind(function.__name__, signature, args, kwargs)
        arguments = {name: value for name, value in settings.items() if name not in COMMON}
        again = functools.partial(make, *args, **kwargs)
        return LayerBuilder(function.__name__, function(**arguments), settings, again)

    make.__signature__ = signature  # type: ignore[attr-defined]
    return refuse_subclasses(make)
