"""Writes a model as the layers of a job: its graph, its losses and metrics, and its inputs by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsinga.base.arguments import values_by_name
from dsinga.base.errors import UserError
from dsinga.job import LayerConf, LayerType, Phase, StoreConf
from dsinga.job.enums import PHASES
from dsinga.layers.interface.layer import Layer
from dsinga.net.layer_classes import SAMPLE_WEIGHT, layer_class, weighted_loss
from dsinga.nn.words.inputs import INPUT
from dsinga.nn.words.losses import compares, layer_type, loss_builder, loss_function, may_have_params, without_torch
from dsinga.nn.words.metrics import MetricLayer, write_metrics
from dsinga.nn.words.regularisers import Penalty
from dsinga.nn.writing.feature import ChannelsLast, Feature, row_shape
from dsinga.nn.writing.symbol import LayerBuilder, Symbol, ancestors, flatten, take_channels_last
from dsinga.nn.writing.writer import NetWriter, make_conf


@dataclass
class Objective:
    """What a model trains for: a loss for each output, the losses' weights, and metrics.

    ``losses`` are names, loss layers, or outputs of loss layers. ``metrics`` are names, or layers that report metrics.
    """

    losses: list[Any] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    metrics: list[list[str | MetricLayer]] = field(default_factory=list)
    algorithm: Any = None
    cluster: Any = None


@dataclass
class WrittenNet:
    """A model converted to the layers of a job, with their names, labels and params.

    Attributes:
        layers: all layers but the inputs.
        inputs: input layers without phases, by name; the labels of the first belong to the first output.
        label_inputs: inputs that give the labels of each output with a loss.
        label_examples: example labels (1, ...) that the losses accept, by input.
        penalties: penalties by param name.
        owners: each layer that has params, with their names in order.
    """

    layers: list[LayerConf]
    inputs: dict[str, LayerConf]
    outputs: list[str]
    label_inputs: list[str]
    label_examples: dict[str, np.ndarray]
    penalties: dict[str, Penalty]
    owners: list[tuple[Any, list[str]]]


def write_net(
    inputs: Sequence[Symbol],
    outputs: Sequence[Symbol],
    objective: Objective,
    shapes: Mapping[str, tuple[int, ...]],
    label_shapes: Mapping[str, tuple[int, ...] | None],
    weighted_phases: Sequence[Phase] = (),
) -> WrittenNet:
    """Convert a model to the layers of a job.

    ``label_shapes`` are shapes of a row's label by input, None for an input without labels. Raises UserError if shapes,
    or losses and outputs, do not fit.
    """
    net = NetWriter(shapes)
    features: dict[int, Feature] = {}

    def feature(symbol: Symbol) -> Feature:
        whole = features[id(symbol.whole)]
        return whole if symbol.part is None else whole.parts[symbol.part]

    symbols = ancestors([*inputs, *outputs, *(loss for loss in objective.losses if isinstance(loss, Symbol))])
    try:
        for symbol in symbols:
            features[id(symbol)] = net.write(symbol.builder, [feature(source) for source in symbol.sources])
    except ChannelsLast as fault:
        if any(len(label or ()) > 2 for label in label_shapes.values()):  # labels that are images are in order already
            raise
        take_channels_last(symbols, fault)
        return write_net(inputs, outputs, objective, shapes, label_shapes, weighted_phases)
    if any(features[id(symbol.whole)].lengths for symbol in outputs):
        for conf in net.layers:  # masked steps are at the end, so that an output has a step for each code
            if (ends := conf.sequencelength_conf) is not None:
                conf.sequencelength_conf = ends.replace(anywhere=False)
    for symbol in outputs:
        if symbol.part is None and features[id(symbol)].flat:
            features[id(symbol)] = net.reshaped(features[id(symbol)])
    examples = write_losses(net, inputs, outputs, objective, feature, label_shapes)
    if weighted_phases:
        net.layers = [part for conf in net.layers for part in weighted(conf, weighted_phases)]
        phases = [phase.name for phase in weighted_phases]
        net.inputs[SAMPLE_WEIGHT] = make_conf(SAMPLE_WEIGHT, "kRecordInput", [], store_conf={}, include=phases)
    layers = [feature(symbol).layer for symbol in outputs]
    owners = [(builder, net.owners[key]) for key, builder in net.builders.items()]
    return WrittenNet(net.layers, net.inputs, layers, list(examples), examples, net.penalties, owners)


def write_losses(
    net: NetWriter,
    inputs: Sequence[Symbol],
    outputs: Sequence[Symbol],
    objective: Objective,
    feature: Callable[[Symbol], Feature],
    label_shapes: Mapping[str, tuple[int, ...] | None],
) -> dict[str, np.ndarray]:
    """Write the losses and metrics of outputs; return example labels (1, ...) by input layer."""
    examples: dict[str, np.ndarray] = {}
    weights = objective.weights or [1.0] * len(objective.losses)
    metrics = [*objective.metrics, *([] for _ in weights)]
    for number, (loss, weight) in enumerate(zip(objective.losses, weights, strict=True)):
        if isinstance(loss, Symbol):
            if number < len(outputs):
                labels = Feature(inputs[0].builder.name or "", None)
                write_metrics(net, metrics[number], feature(outputs[number]), feature(loss).layer, labels)
            examples = examples_of_symbol(loss, row_shape(feature(loss.sources[0])) or (), label_shapes) | examples
            continue
        output = feature(outputs[number])
        _check_softmax(net, output)
        builder = loss_builder(loss, output, weight, "loss" if len(weights) == 1 else f"{output.layer}_loss")
        source = label_input(net, number, output, inputs)
        shape = label_shapes.get(source.layer)
        example = (layer_type(builder.kind) or Layer).label_example(builder.settings, row_shape(output) or (), shape)
        examples[source.layer] = example
        check_one_label(output, builder, shape)
        compared = targets(net, builder, source, feature(inputs[0]), label_shapes)
        written = net.write(builder, [output, compared])
        write_metrics(net, metrics[number], output, written.layer, source)
    return examples


def examples_of_symbol(
    loss: Symbol, compared: tuple[int, ...], label_shapes: Mapping[str, tuple[int, ...] | None]
) -> dict[str, np.ndarray]:
    """Return example labels (1, ...), by input, for a loss that was called on outputs."""
    examples = {}
    for symbol in ancestors([loss]):
        source = (layer_type(symbol.builder.kind) or Layer).labels.source
        given = None if source is None or source >= len(symbol.sources) else symbol.sources[source]
        if given is not None and given.builder.kind == INPUT:
            name = given.builder.name or ""
            cls = layer_type(loss.builder.kind) or Layer
            examples[name] = cls.label_example(loss.builder.settings, compared, label_shapes.get(name))
    return examples


def layers_of(outputs: Sequence[Symbol]) -> list[LayerBuilder]:
    """Return the layers that compute ``outputs``, except inputs, each once and after its sources."""
    builders = (symbol.builder for symbol in ancestors(outputs) if symbol.builder.kind != INPUT)
    return list({id(builder): builder for builder in builders}.values())


def confs_of(*outputs: Symbol) -> list[LayerConf]:
    """Convert symbolic tensors to job layers, without input layers, for nets that are written as jobs.

    Any input shape with as many axes as the records will do.
    """
    return write_net([], outputs, Objective(), {}, {}).layers


def layers_with_losses(outputs: Sequence[Symbol], objective: Objective) -> list[LayerBuilder]:
    """Return the layers that compute ``outputs``, and the losses that may have params."""
    losses = objective.losses
    builders = layers_of([*outputs, *(loss for loss in losses if isinstance(loss, Symbol))])
    builders += [loss for loss in losses if isinstance(loss, LayerBuilder)]
    return [builder for builder in builders if may_have_params(builder.kind)]


def layer_names(symbols: Sequence[Symbol]) -> dict[int, str]:
    """Return the names that layers get in the job, by layer id, whatever the shapes."""
    net = NetWriter()
    names: dict[int, str] = {}
    for symbol in ancestors(symbols):
        name = net.unused_name(symbol.builder)
        names.setdefault(id(symbol.builder), name)
        net.layers.append(make_conf(name, "kDummy", []))
    return names


def weighted(conf: LayerConf, phases: Sequence[Phase]) -> list[LayerConf]:
    """Split a loss into two layers, one with sample weights for some phases."""
    in_phases = [phase for phase in phases if conf.in_phase(phase)]
    if not layer_class(conf).is_loss or not in_phases:
        return [conf]
    others = [phase for phase in conf.include if phase not in phases]
    rest = conf.replace(include=others) if conf.include else conf.replace(exclude=[*conf.exclude, *phases])
    return [
        weighted_loss(conf).replace(include=in_phases, exclude=[]),
        *([] if conf.include and not others else [rest]),
    ]


def label_input(net: NetWriter, number: int, output: Feature, inputs: Sequence[Symbol]) -> Feature:
    """Return the input with an output's labels: the first, or a new one for further outputs."""
    if number == 0:
        return Feature(inputs[0].builder.name or "", None)
    name = f"{output.layer}_labels"
    net.inputs[name] = make_conf(name, "kRecordInput", [], store_conf={})
    return Feature(name, None)


def check_one_label(output: Feature, builder: LayerBuilder, label: tuple[int, ...] | None) -> None:
    """Raise UserError if a sequence output has one label per row, which a job would use for each step."""
    rows = row_shape(output)
    if label == () and rows is not None and len(rows) == 2 and not compares(builder.kind):
        raise UserError(
            f"the output {output.layer!r} gives {rows[1]} scores for each of {rows[0]} steps, but y has one label a "
            f"record; give labels by step, (n, {rows[0]}), or leave return_sequences=True out of the last recurrent "
            "layer"
        )


def _check_softmax(net: NetWriter, output: Feature) -> None:
    """Raise UserError for an output that is the softmax of one unit, which is always 1."""
    if output.before is not None and (row_shape(output) or (0,))[-1] == 1:
        if any(conf.name == output.layer and conf.type is LayerType.kSoftmax for conf in net.layers):
            raise UserError(f'the softmax of one unit, {output.layer!r}, is always 1; write activation="sigmoid"')


def targets(
    net: NetWriter,
    builder: LayerBuilder,
    source: Feature,
    records: Feature,
    label_shapes: Mapping[str, tuple[int, ...] | None],
) -> Feature:
    """Return what a loss compares outputs with: labels, a kLabel layer, or records without labels."""
    if builder.kind == "FunctionLoss":
        return source._replace(label_shape=label_shapes.get(source.layer))
    if not compares(builder.kind):
        cls = layer_type(builder.kind) or Layer
        has_labels = label_shapes.get(source.layer) is not None
        if cls.runs_user_code and cls.labels.source is None and has_labels:
            raise UserError(
                f"the loss {builder.kind} reads no labels; set labels = Labels(source=1, floats=True, any_shape=True) "
                "in its class, with Labels of dsinga.layers"
            )
        return source
    shape = label_shapes.get(source.layer, ())
    if shape is None:
        return records
    name = f"{source.layer.removesuffix('_labels')}_target"
    net.layers.append(make_conf(name, "kLabel", [source.layer]))
    return Feature(name, shape if source.layer in label_shapes else None)


def objective_of(loss: Any, loss_weights: Any, outputs: Sequence[Symbol]) -> Objective:
    """Collect the arguments of ``compile``. Raises UserError unless each output has a loss.

    ``loss`` and the weights are single values, lists, or dicts by the name of the output's layer.
    """
    names = [output.builder.name or "" for output in outputs]
    losses = [without_torch(loss) for loss in _in_order("loss", loss, names)]
    # A layer remembers whether its params are frozen.
    losses = [loss_function("CRF")() if loss == "crf" else loss for loss in losses]
    count = len(losses)
    if count > len(outputs) and not all(isinstance(loss, Symbol) for loss in losses):
        raise UserError(f"the model has {len(outputs)} outputs, but {count} losses are given; give one for each output")
    if losses and count < len(outputs) and not any(isinstance(loss, Symbol) for loss in losses):
        raise UserError(f"the model has {len(outputs)} outputs, but {count} loss is given; give one for each output")
    factors = [] if loss_weights is None else _in_order("loss_weights", loss_weights, names)
    if factors and len(factors) != count:
        raise UserError(f"there are {count} losses, but {len(factors)} loss_weights; give one for each loss")
    return Objective(losses, factors)


def _in_order(what: str, given: Any, names: Sequence[str]) -> list[Any]:
    """Sort values given for outputs, by name or as a list, in the order of the outputs."""
    if given is None:
        return []
    return values_by_name(what, given, names, "output") if isinstance(given, dict) else flatten([given])


def layers_of_input(conf: LayerConf, stores: Mapping[str, Mapping[str, Any]], batch_size: Any) -> list[LayerConf]:
    """Return an input's layers in the job: one for each phase with its own data.

    ``stores`` has the fields that name a store for each of "train", "val" and "test" that has data. If only training
    has data, one layer serves all phases.
    """
    if conf.type is not LayerType.kRecordInput and conf.store_conf is None:
        return [conf]
    store = (conf.store_conf or StoreConf()).replace(batchsize=batch_size)
    if conf.include:
        return [conf.replace(store_conf=store)]
    if not stores.keys() - {"train"}:
        return [conf.replace(store_conf=store.replace(**stores.get("train", {})))]
    parts = ["train", *(part for part in ("val", "test") if part in stores)]
    layers = [conf.replace(include=[PHASES[part]], store_conf=store.replace(**stores.get(part, {}))) for part in parts]
    others = [PHASES[part] for part in ("val", "test") if part not in stores]
    return [*layers, conf.replace(include=others, store_conf=store)] if others else layers
