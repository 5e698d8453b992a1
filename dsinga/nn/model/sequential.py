"""Sequential, a model with layers in a chain, and clone_model, which copies a model with new params."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from dsinga.base.arguments import value_text, with_types
from dsinga.base.errors import UserError
from dsinga.nn.model.model import Model
from dsinga.nn.words.activations import NAMES
from dsinga.nn.words.inputs import Input
from dsinga.nn.words.keras_arguments import checked, checked_class
from dsinga.nn.writing.net_conf import layers_of
from dsinga.nn.writing.symbol import LayerBuilder, Symbol, call_again


@checked_class
class Sequential(Model):
    """A model with layers in a chain: ``nn.Sequential([nn.Input(shape=784), nn.Dense(10)])``.

    Without ``nn.Input``, the data give the shape of the records.

    Examples:
        >>> from dsinga import nn
        >>> model = nn.Sequential([nn.Input(784), nn.Dense(128, activation="relu"), nn.Dense(10)])
        >>> model.count_params()
        101770
    """

    def __init__(self, layers: Sequence[Any] = (), name: str = "model"):
        self._added: list[tuple[LayerBuilder | Model, Symbol]] = []  # each layer with the symbol that it was called on
        super().__init__([], [], name)
        if not isinstance(layers, Iterable):
            raise UserError(f"nn.Sequential takes a list, as in nn.Sequential([nn.Dense(10)]), not {layers!r}")
        for layer in layers:
            self.add(layer)

    @with_types
    def add(self, layer: Any) -> None:
        """Add a layer at the end. Raises UserError, with the layer's name, if known shapes do not fit."""
        self.refuse_while_training("add")
        if isinstance(layer, Symbol):
            if self.outputs:
                raise UserError("nn.Input is the first layer of nn.Sequential; use nn.Model for several inputs")
            self.inputs, self.outputs = [layer], [layer]
            return
        if not isinstance(layer, (LayerBuilder, Model)):
            is_module = any(cls.__module__.startswith("torch.") for cls in type(layer).__mro__)
            remedy = "; dsinga.convert.from_torch(module) makes a model of a module of PyTorch" if is_module else ""
            if isinstance(layer, FunctionType) and layer.__annotations__.get("return") == "Write":
                remedy = f"; call it: nn.{layer.__name__}()"
            if isinstance(layer, str) and layer in NAMES:
                remedy = f'; write nn.Activation("{layer}")'
            raise UserError(f"nn.Sequential takes layers, as in nn.Dense(10), not {value_text(layer)}{remedy}")
        if not self.outputs:
            start = Input(getattr(layer, "input_rows", None))
            self.inputs, self.outputs = [start], [start]
        (end,) = self.outputs
        chain = layer(end)
        if not isinstance(chain, Symbol):
            raise UserError(
                f"nn.Sequential takes layers of one feature, and {value_text(layer)} gives several; use nn.Model"
            )
        self._added.append((layer, end))
        for each in layers_of([chain]):
            each.models.add(self)
        self._shared = self._shared.forgotten()
        self.trained = replace(self.trained, is_complete=False)
        self.outputs = [chain]

    @with_types
    def pop(self) -> LayerBuilder | Model:
        """Remove the last layer and return it. Raises UserError if the model has no layers."""
        self.refuse_while_training("pop")
        if not self._added:
            raise UserError("the model has no layer to remove; add some, as in model.add(nn.Dense(10))")
        layer, end = self._added.pop()
        self._shared, self.trained = self._shared.forgotten(), replace(self.trained, is_complete=False)
        self.outputs = [end]
        return layer

    def _inputs(self) -> list[Symbol]:
        if not self.inputs:
            raise UserError("the model has no layers; add some, as in model.add(nn.Dense(10))")
        return self.inputs

    def _outputs(self) -> list[Symbol]:
        return self.outputs


@checked
def clone_model(model: Model) -> Model:
    """Return an uncompiled model with the same layers and record shapes, and new initial params.

    Raises UserError for a model of a job, and for a subclass with its own ``call``.

    Examples:
        >>> from dsinga import nn
        >>> model = nn.Sequential([nn.Input(4), nn.Dense(2)])
        >>> nn.clone_model(model).count_params()
        10
    """
    if not isinstance(model, Model):
        raise UserError(
            f"clone_model takes a model of layers, not {value_text(model)}; nn.from_job(model.job()) copies others"
        )
    if type(model) not in (Model, Sequential):
        raise UserError(f"clone_model copies nn.Model and nn.Sequential; call {type(model).__name__}() once more")
    layers: dict[int, LayerBuilder] = {}
    copied = functools.partial(_copied, layers=layers)
    inputs = [copied(symbol.builder)() for symbol in model._inputs()]
    if isinstance(model, Sequential):
        clone: Model = (chain := Sequential(inputs, model.name))
        for layer, _ in model._added:
            chain.add(clone_model(layer) if isinstance(layer, Model) else copied(layer))
    else:
        clone = Model(inputs, call_again(model._inputs(), model._outputs(), inputs, copied), model.name)
    clone.job_changes, clone.record_shapes = [*model.job_changes], {**model.record_shapes}
    return clone


def _copied(builder: LayerBuilder, layers: dict[int, LayerBuilder]) -> LayerBuilder:
    """Copy a layer once, however often the net calls it; ``layers`` has the copies."""
    if id(builder) not in layers:
        layers[id(builder)] = builder.remake()
        layers[id(builder)].__setstate__({"trainable": builder.trainable, "values": None, "name": builder.name})
    return layers[id(builder)]
