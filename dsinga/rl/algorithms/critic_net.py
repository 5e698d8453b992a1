"""The critic within a model: the layers that give the value of an observation and an action."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dsinga.errors import UserError
from dsinga.job import ParamConf
from dsinga.net import NeuralNet
from dsinga.rl.model import Model, input_layer


def critic_layers(model: Model, action: str, values: Sequence[str]) -> set[str]:
    """Return the names of the layers that ``values`` need besides ``action`` and the layers that only this one needs.

    Raises UserError where a value does not depend on the action.
    """
    sources = {layer.name: layer.srclayers for layer in model.layers}
    critic: set[str] = set()
    for value in values:
        needed, waiting = set(), [value]
        while waiting:
            name = waiting.pop()
            if name not in needed and name != action:
                needed.add(name)
                waiting += sources[name]
        if not any(action in sources[name] for name in needed):
            raise UserError(
                f"the head {value!r} does not depend on the head {action!r}; join the action to the features of the "
                "observation, by kConcate or nn.Concatenate"
            )
        critic |= needed
    return critic


def critic_of(model: Model, action: str, values: Sequence[str]) -> Model:
    """Return the critic of a model as a net of its own, in which ``action`` is an input layer."""
    critic = critic_layers(model, action, values)
    layers = [input_layer(action) if layer.name == action else layer for layer in model.layers]
    return model.with_layers([layer for layer in layers if layer.name in critic or layer.name == action])


def with_static_params(model: Model, layers: Collection[str], net: NeuralNet) -> Model:
    """Return a model in which the params of some ``layers`` keep their values; ``net`` has these layers."""

    def static(layer: Any) -> Any:
        count = len(net.layer(layer.name).params)
        params = [*layer.param, *[ParamConf()] * (count - len(layer.param))]
        return layer.replace(param=[param.replace(static=True) for param in params])

    return model.with_layers([static(layer) if layer.name in layers else layer for layer in model.layers])
