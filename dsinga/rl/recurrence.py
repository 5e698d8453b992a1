"""Agents with memory: hidden states carried from step to step, and learning from sequences of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.engine.local_net import Backward, LocalNet, Means
from dsinga.job import LayerConf, LayerType, NetConf, Phase
from dsinga.layers import Context, Rows
from dsinga.layers.connection import Split
from dsinga.layers.interface.layer import Layer
from dsinga.layers.sequences.recurrent import RecurrentConf
from dsinga.net import NeuralNet
from dsinga.ops import get_ops
from dsinga.reading.bind_records import input_layer
from dsinga.rl.model import Model
from dsinga.training import Metrics
from dsinga.training.metrics import read_metrics, report_metrics

# Among the rows of a batch: whether a sequence of steps begins with the row, (R,) bool.
BEGINS = "rl_begins"


class HiddenStates(dict[str, np.ndarray]):
    """The memory of an agent's recurrent layers in N environments: (N, H) float32 by layer."""

    def reset(self, rows: Any = slice(None)) -> None:
        """Set hidden states to 0, as at an episode's start, for environments ``rows`` (default: all)."""
        for array in self.values():
            array[rows] = 0

    def copy(self) -> HiddenStates:
        """Return hidden states with copied arrays."""
        return HiddenStates({name: array.copy() for name, array in self.items()})

    def of_rows(self, rows: Any) -> HiddenStates:
        """Return a copy of the hidden states of some environments."""
        return HiddenStates({name: array[rows].copy() for name, array in self.items()})


def carried_layers(model: Model) -> dict[str, int]:
    """Return the recurrent layers that carry their state from step to step, with its size.

    Raises UserError for a layer that cannot carry its state from step to step.
    """
    sizes = {}
    for layer in model.layers:
        if (carried := _carrying(layer)) is None:
            continue
        _, conf = carried
        if layer.type is LayerType.kLSTM:
            raise layer.error(
                f"the agent's layer {layer.name!r} is a kLSTM, whose second state is not in its feature; carry the "
                "state of a kGRU from step to step"
            )
        if conf.bidirectional or conf.initial_state or len(layer.srclayers) != 1:
            raise layer.error(
                f"layer {layer.name!r} carries its state from step to step, so it takes one source layer and is "
                "neither bidirectional nor has an initial_state"
            )
        sizes[layer.name] = conf.dim_hidden
    return sizes


def with_state_inputs(model: Model) -> Model:
    """Return a model for one step, where recurrent layers read their previous state from input layers."""
    carried = carried_layers(model)
    if not carried:
        return model
    layers = [_from_state(layer) if layer.name in carried else layer for layer in model.layers]
    return model.with_layers([*map(input_layer, map(state_input, carried)), *layers])


def state_input(layer: str) -> str:
    """Return the name of the input layer that gives a recurrent layer its hidden state."""
    return f"state of {layer}"


class Recurrence:
    """Computes a recurrent model step by step to act, and over sequences of steps to learn.

    A batch's rows are environment steps, sequence by sequence. BEGINS marks the first row of a sequence; in this row
    the state inputs have the state before the step.

    Args:
        net: the one-step net, with the algorithm's losses.
        examples: an array (1, ...) for each input layer of ``net``.
    """

    def __init__(self, model: Model, carried: Mapping[str, int], net: LocalNet, examples: Mapping[str, np.ndarray]):
        self._model, self._sizes, self._net, self._examples = model, carried, net, examples
        self._sequence_nets: dict[int, LocalNet] = {}  # nets by the number of steps

    def hidden_states(self, count: int) -> HiddenStates:
        """Return hidden states of 0 for ``count`` environments, as at an episode's start."""
        return HiddenStates({name: np.zeros((count, size), np.float32) for name, size in self._sizes.items()})

    def step(
        self,
        params: ParamArrays,
        observations: np.ndarray,
        hidden: HiddenStates | None,
        head: str,
        *,
        moves: bool = True,
    ) -> np.ndarray:
        """Return a head's output for N observations, and write the new hidden states into ``hidden``.

        If ``moves`` is false, the states stay.
        """
        count = len(observations)
        if hidden is None or any(len(array) != count for array in hidden.values()):
            what = "none are" if hidden is None else f"those of {len(next(iter(hidden.values())))} are"
            raise UserError(
                f"the model has hidden states, and {what} given for {count} observation(s); make them with "
                f"agent.hidden_states({count}), give them to each call, and reset them where an episode ends"
            )
        x = {self._model.input: observations, **{state_input(name): array for name, array in hidden.items()}}
        outputs = self._net.forward(params, x, layers=(head, *self._sizes)).outputs
        if moves:
            for name in hidden:
                hidden[name] = np.array(outputs[name])
        return outputs[head]

    def head(self, params: ParamArrays, rows: Mapping[str, np.ndarray], head: str) -> np.ndarray:
        """Return a head's output (R, ...) for all steps of sequences, given as rows."""
        layout = self._layout(rows)
        return self._heads(params, self._padded(layout, rows), layout, (head,))[head]

    def backward(self, params: ParamArrays, rows: Mapping[str, np.ndarray], step: int) -> Backward:
        """Return the gradient of the mean loss, back through each sequence's steps, and the metrics."""
        layout, net = self._layout(rows), self._net.net
        sequences = self._padded(layout, rows)
        heads = self._heads(params, sequences, layout, self._model.heads)
        by_head, metrics = loss_gradients(net, heads, rows, seed=self._net.job.seed, step=step)
        count = np.float32(layout.count)  # a row of the sequence net is a sequence
        padded = {name: layout.spread(gradient) * count for name, gradient in by_head.items()}
        learner = self._sequence_net(layout.steps)
        gradients, _ = learner.backward(params, sequences, gradients=padded, step=step)
        return Backward(gradients, Means(metrics))

    def _layout(self, rows: Mapping[str, np.ndarray]) -> _Layout:
        starts = np.flatnonzero(rows[BEGINS])
        lengths = np.diff(starts, append=len(rows[BEGINS]))
        # Powers of two, since nets are made for a number of steps, and kernels for both: else each batch has new ones.
        count, steps = (1 << (int(size) - 1).bit_length() for size in (len(starts), lengths.max()))
        sequence = np.repeat(np.arange(len(starts)), lengths)
        return _Layout(starts, count, steps, sequence * steps + np.arange(len(sequence)) - starts[sequence])

    def _padded(self, layout: _Layout, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        sequences = {self._model.input: layout.spread(rows[self._model.input])}
        for name in map(state_input, self._sizes):
            sequences[name] = np.zeros((layout.count, rows[name].shape[1]), np.float32)
            sequences[name][: len(layout.starts)] = rows[name][layout.starts]
        return sequences

    def _heads(
        self, params: ParamArrays, sequences: Mapping[str, np.ndarray], layout: _Layout, heads: Sequence[str]
    ) -> ParamArrays:
        outputs = self._sequence_net(layout.steps).forward(params, sequences, layers=heads).outputs
        return {name: outputs[name].reshape(-1, *outputs[name].shape[2:])[layout.places] for name in heads}

    def _sequence_net(self, steps: int) -> LocalNet:
        """Return the net for sequences of ``steps`` steps, without losses."""
        if steps not in self._sequence_nets:
            layers = [_over_steps(layer) for layer in self._model.layers_over(steps)]
            job = self._net.job.replace(neuralnet=NetConf(layer=layers))
            names = map(state_input, self._sizes)
            observation = self._examples[self._model.input]
            examples = {name: self._examples[name] for name in names}
            examples[self._model.input] = np.repeat(observation[:, np.newaxis], steps, axis=1)
            self._sequence_nets[steps] = LocalNet(job, examples, threads=1, is_small=True)
        return self._sequence_nets[steps]


@dataclass(frozen=True)
class _Layout:
    """Where a batch's rows go in ``count`` padded sequences of ``steps`` steps, (S, T).

    ``starts`` are the sequences' first rows, ``places`` (R,) the positions of all rows among S·T steps.
    """

    starts: np.ndarray
    count: int
    steps: int
    places: np.ndarray

    def spread(self, rows: np.ndarray) -> np.ndarray:
        """Return rows (R, ...) as sequences (S, T, ...), padded with 0."""
        flat = np.zeros((self.count * self.steps, *rows.shape[1:]), rows.dtype)
        flat[self.places] = rows
        return flat.reshape(self.count, self.steps, *rows.shape[1:])


def _carrying(layer: LayerConf) -> tuple[str, RecurrentConf] | None:
    """Return a recurrent layer's field name and configuration if the layer has ``carry``, else None."""
    confs = [(field, value) for field, value in vars(layer).items() if isinstance(value, RecurrentConf)]
    return next(((field, conf) for field, conf in confs if conf.carry), None)


def _from_state(layer: LayerConf) -> LayerConf:
    """Return a recurrent layer that computes one step from a state in an input layer."""
    carried = _carrying(layer)
    assert carried is not None
    field, conf = carried
    return layer.replace(srclayers=[*layer.srclayers, state_input(layer.name)], **{field: conf.replace(carry=False)})


def _over_steps(layer: LayerConf) -> LayerConf:
    """Return a recurrent layer that begins with a state from an input layer; other layers unchanged."""
    if layer.srclayers[1:] != [state_input(layer.name)]:
        return layer
    fields = {
        field: conf.replace(initial_state=True)
        for field, conf in vars(layer).items()
        if isinstance(conf, RecurrentConf)
    }
    return layer.replace(**fields)


def loss_gradients(
    net: NeuralNet,
    features: Mapping[str, np.ndarray],
    records: Mapping[str, np.ndarray],
    *,
    seed: int = 0,
    step: int = 0,
) -> tuple[dict[str, np.ndarray], Metrics]:
    """Compute a net's losses alone; return their gradients for the features below them, and metrics.

    ``features`` (R, ...) belong to the layers below the losses, ``records`` (R, ...) to input layers without gradient.
    The losses have no params and no label source.
    """
    ops = get_ops().for_worker()
    ops.enter()
    rows = len(next(iter(features.values())))
    ctx = Context(ops, Phase.kTrain, Rows(0, rows, rows), seed, step)
    gradients: dict[str, Any] = {}
    metrics = []
    for node in net.nodes:
        if not node.layer.is_loss:
            continue
        names = [_before_splits(net, position) for position in node.sources]
        sources = [ops.asarray(_source(node.layer, name, features, records)) for name in names]
        output = node.layer.compute_feature([], sources, ctx)
        metrics.append((node.layer.name, output.metrics))
        needs = [name in features for name in names]
        computed, _ = node.layer.compute_gradient([], sources, output, None, needs, ctx)
        for name, gradient in zip(names, computed, strict=True):
            if name in features and gradient is not None:
                gradients[name] = ops.add(gradients[name], gradient) if name in gradients else gradient
    host = {name: np.asarray(ops.to_numpy(gradient)) for name, gradient in gradients.items()}
    return host, report_metrics(net, read_metrics(metrics, ops))


def _before_splits(net: NeuralNet, position: int) -> str:
    """Return the name of a layer, or, for a split, of the layer that it copies."""
    node = net.nodes[position]
    return _before_splits(net, node.sources[0]) if isinstance(node.layer, Split) else node.layer.name


def _source(
    loss: Layer, name: str, features: Mapping[str, np.ndarray], records: Mapping[str, np.ndarray]
) -> np.ndarray:
    array = features[name] if name in features else records.get(name)
    if array is None or loss.params or loss.labels.source is not None:
        raise UserError(
            f"the loss {loss.name!r} of a net with hidden states takes heads of the model and records without labels, "
            f"and has no params; {name!r} is none of these"
        )
    return array
