"""Copies of models with layers of their own, as Keras's ``clone_model``."""

from __future__ import annotations

from dsinga.base.arguments import shown
from dsinga.base.errors import UserError
from dsinga.nn.model.model import Model, Sequential
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.writing.symbol import LayerBuilder, Symbol, ancestors


@checked
def clone_model(model: Model) -> Model:
    """Return a model of the same layers with initial params of its own, which is not compiled.

    Raises UserError for a model of a job, and for a subclass with a ``call`` of its own.
    """
    if not isinstance(model, Model):
        raise UserError(
            f"clone_model takes a model of layers, not {shown(model)}; nn.from_job(model.job()) copies others"
        )
    if type(model) not in (Model, Sequential):
        raise UserError(f"clone_model copies nn.Model and nn.Sequential; call {type(model).__name__}() once more")
    layers: dict[int, LayerBuilder] = {}
    if isinstance(model, Sequential):
        chain = Sequential([_copied(symbol.builder, layers)() for symbol in model._inputs()], model.name)
        for layer, _ in model._added:
            chain.add(clone_model(layer) if isinstance(layer, Model) else _copied(layer, layers))
        return chain
    features: dict[int, list[Symbol]] = {}

    def feature(symbol: Symbol) -> Symbol:
        return features[id(symbol.whole)][symbol.part or 0]

    for symbol in ancestors([*model._inputs(), *model._outputs()]):
        made = _copied(symbol.builder, layers)(*map(feature, symbol.sources))
        features[id(symbol)] = made if isinstance(made, list) else [made]
    return Model([*map(feature, model._inputs())], [*map(feature, model._outputs())], model.name)


def _copied(builder: LayerBuilder, layers: dict[int, LayerBuilder]) -> LayerBuilder:
    """Return the copy of a layer, which ``layers`` keeps by the id of the layer."""
    if id(builder) not in layers:
        layers[id(builder)] = builder.remake()
        layers[id(builder)].__setstate__({"trainable": builder.trainable, "values": None, "name": builder.name})
    return layers[id(builder)]
