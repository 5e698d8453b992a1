"""The net of an agent, from observations to heads such as action scores and a state value."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence
from typing import Any, Protocol, runtime_checkable

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.job import Job, LayerConf, NetConf, ParamConf, Phase, StoreConf, UpdaterConf, loads
from dsinga.job.checks import check_net
from dsinga.net import NeuralNet, input_layers
from dsinga.net.layer_classes import layer_class
from dsinga.reading.bind_records import input_layer, with_batchsize
from dsinga.rl.environments.spaces import Space

FIELDS = ("gpu", "precision")  # fields of a job that say where and how its net is computed


@runtime_checkable
class KerasModel(Protocol):
    """Interface of a model of :mod:`dsinga.nn`, which this package may not import."""

    def job(self) -> Job:
        """Return the job with the model's net."""

    def output_layers(self) -> list[str]:
        """Return the names of the output layers."""


class Model:
    """A net for an agent: one input layer for observations, and heads (outputs) that an algorithm uses.

    The first head has the scores or values of actions (or their distribution's parameters), the second the value of a
    state.

    Args:
        net: a model of :mod:`dsinga.nn`; its outputs are the heads. Or a job, its ``neuralnet``, or the text
            ``neuralnet { ... }``; a job's ``gpu`` and ``precision`` apply.

    Attributes:
        fields: the job's fields that say where and how the net is computed.

    Raises UserError for an unknown source or head, a cycle, a loss, a duplicate name, or not exactly one input layer.
    """

    def __init__(self, net: KerasModel | Job | NetConf | str, heads: Sequence[str] = ()):
        self.fields: dict[str, Any] = {}
        if isinstance(net, KerasModel):
            self.layers: list[LayerConf] = net.job().neuralnet.layer
            heads = heads or net.output_layers()
        else:
            net = loads(net) if isinstance(net, str) else net
            if isinstance(net, Job):
                self.fields = {name: getattr(net, name) for name in FIELDS}
            conf = net.neuralnet if isinstance(net, Job) else net
            if not isinstance(conf, NetConf):
                raise UserError(f"rl.Model takes a dsinga.nn.Model(inputs, outputs), not a {type(net).__name__}")
            self.layers = list(conf.layer)
        check_net(NetConf(layer=self.layers), [Phase.kTrain, Phase.kTest])
        inputs = [layer.name for layer in input_layers(NetConf(layer=self.layers), Phase.kTrain)]
        if len(inputs) != 1:
            raise UserError(f"a model has one input layer, for observations; this net has {len(inputs)}: {inputs}")
        self.input = inputs[0]
        self.heads = tuple(heads) or self._ends()
        for layer in self.layers:
            if layer_class(layer).is_loss:
                raise layer.error(f"layer {layer.name!r} is a loss; leave it out: the algorithm adds its own")
        names = [layer.name for layer in self.layers if layer.in_phase(Phase.kTrain)]
        for head in self.heads:
            if head not in names:
                hint = nearest(head, names) or "; heads are names of its layers"
                phase = " in phase kTrain" if any(layer.name == head for layer in self.layers) else ""
                raise UserError(f"the net has no layer {head!r}{phase}{hint}")

    def job(self, layers: Sequence[LayerConf] = (), updater: UpdaterConf | None = None, seed: int = 0) -> Job:
        """Return a job of the model's net with further ``layers``, such as losses and their inputs."""
        fields = self.fields if updater is None else {**self.fields, "updater": updater}
        net = NetConf(layer=[*self.layers, *layers])
        # For one row: all input layers of a net have the same batch size when it is made.
        return with_batchsize(Job(name="model", seed=seed, neuralnet=net, **fields), 1)

    def with_layers(self, layers: Sequence[LayerConf]) -> Model:
        """Return a model with other, unchecked layers but the same input and heads."""
        model = copy.copy(self)
        model.layers = list(layers)
        return model

    def layers_over(self, steps: int) -> list[LayerConf]:
        """Return the layers for sequences of ``steps`` steps, (B, T, ...), instead of single steps."""
        layers = []
        for layer in self.layers:
            if layer.name == self.input:
                conf = layer.store_conf or StoreConf()
                shape = [steps, *conf.shape] if conf.shape else []
                layers.append(layer.replace(store_conf=conf.replace(batchsize=[1], shape=shape)))
            else:
                layers.append(layer if layer.store_conf else layer.replace(per_step=True))
        return layers

    def head(self, number: int, meaning: str) -> str:
        """Return the name of a head; raise UserError with its ``meaning`` if the model has too few."""
        if number < len(self.heads):
            return self.heads[number]
        raise UserError(
            f"the model has {len(self.heads)} head(s), {', '.join(self.heads)}, but the algorithm needs one for "
            f"{meaning}; add an output to the net, or name it in heads="
        )

    def check_observations(self, space: Space) -> None:
        """Raise UserError if the environment's observations do not fit the input layer's shape."""
        conf = next(layer for layer in self.layers if layer.name == self.input)
        named = tuple(conf.store_conf.shape) if conf.store_conf else ()
        lengths, given = ([length for length in shape if length > 1] for shape in (named, space.shape))
        is_flat = min(len(lengths), len(given)) < 2  # the same numbers, as an image or as a vector
        if not named or lengths == given or (is_flat and math.prod(lengths) == math.prod(given)):
            return
        remedy = "change the one or the other"
        if sorted(lengths) == sorted(given):
            remedy = "images are channels, height, width: transpose them by gymnasium.wrappers.TransformObservation"
        raise conf.error(
            f"the model's input layer {self.input!r} takes records of shape {named}, but the environment's "
            f"observations have the shape {space.shape}; {remedy}"
        )

    def _ends(self) -> tuple[str, ...]:
        sources = {source for layer in self.layers for source in layer.srclayers}
        return tuple(layer.name for layer in self.layers if layer.name not in sources and layer.name != self.input)

    def __repr__(self) -> str:
        return f"<Model from {self.input!r} to {', '.join(self.heads)}>"


def critic_layers(model: Model, action: str, values: Sequence[str]) -> set[str]:
    """Return the names of the critic's layers: ``values`` depend on them, other than through ``action``.

    Raises UserError if a value does not depend on the action.
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
    """Return the critic as a separate net with ``action`` as an input layer."""
    critic = critic_layers(model, action, values)
    layers = [input_layer(action) if layer.name == action else layer for layer in model.layers]
    return model.with_layers([layer for layer in layers if layer.name in critic or layer.name == action])


def with_static_params(model: Model, layers: Collection[str], net: NeuralNet) -> Model:
    """Return a model with frozen params in some layers, as an actor's loss needs a fixed critic."""

    def static(layer: Any) -> Any:
        count = len(net.layer(layer.name).params)
        params = [*layer.param, *[ParamConf()] * (count - len(layer.param))]
        return layer.replace(param=[param.replace(static=True) for param in params])

    return model.with_layers([static(layer) if layer.name in layers else layer for layer in model.layers])
