"""A user's layer class with ``call``: its params, and the call as a function of params and sources."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from dsinga.addons.functions.libraries import LibraryFunction
from dsinga.addons.functions.probing import Probed, probe
from dsinga.base.errors import UserError
from dsinga.layers.interface.layer import Shape


class Weight(NamedTuple):
    """A param of a user's layer, until its values are there: what ``add_weight`` returns."""

    role: str
    shape: Shape
    initializer: Any
    trainable: bool

    @property
    def initial(self) -> float:
        """The number that fills it where the job names no initialiser."""
        return 1.0 if self.initializer == "ones" else 0.0


def weights_of_layer(layer: Any) -> dict[str, Weight]:
    """Return the params of a layer that was built, by role: its attributes, and items of lists among them."""
    found: dict[str, Weight] = {}
    for value in vars(layer).values():
        for weight in value if type(value) is list else [value]:
            if isinstance(weight, Weight) and found.setdefault(weight.role, weight) is not weight:
                raise UserError(f"two params are called {weight.role!r}; give add_weight another name=")
    return found


class LayerCall:
    """The ``call`` of a class as a function of arrays: the params in their order, then the sources.

    Equal ones, of one class with equal arguments for rows of one shape, compute the same.
    """

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
        """The name for messages."""
        return f"{self.cls.__name__}.call"

    @property
    def probed(self) -> Probed:
        """The call with its gradient, asked for the rows of its sources with params of trial."""
        return probe(self, self.rows, None, tuple(weight.shape for weight in self.weights.values()))

    def of_phase(self, training: bool) -> LibraryFunction:
        """Return the function of training, or of other phases."""
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
        layer: Any = object.__new__(self.cls)  # the constructor made it before
        vars(layer).update(vars(self.layer))
        for attribute, value in vars(self.layer).items():
            if isinstance(value, Weight):
                vars(layer)[attribute] = values[value.role]
            elif type(value) is list and any(isinstance(item, Weight) for item in value):
                items = [values[item.role] if isinstance(item, Weight) else item for item in value]
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
    """Return the call that was pickled, made anew."""
    call = LayerCall(cls, arguments, rows, as_list)
    call.training = training
    return call
