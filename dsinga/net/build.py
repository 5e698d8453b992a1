"""Builds a net from the layers of a job: selects, sorts and creates them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from graphlib import TopologicalSorter

from dsinga.job import JobError, LayerConf, NetConf, Phase
from dsinga.job.checks import check_net, forward_sources
from dsinga.job.message import field_types, is_message
from dsinga.layers.interface.context import RecordInfo
from dsinga.layers.interface.contract import MustUnroll
from dsinga.layers.interface.layer import Layer, Shape, float_bytes
from dsinga.net.dataflow import insert_splits, needs_gradient, sends_gradient
from dsinga.net.labels import check_labels, describe_labels, labels_shape
from dsinga.net.layer_classes import layer_class
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.node import Node
from dsinga.net.sharing import name_params
from dsinga.net.unroll import make_sequence_layer, merge_copies, unroll, with_own_names


def create_net(conf: NetConf, phase: Phase, records: Mapping[str, RecordInfo], merged: bool = True) -> NeuralNet:
    """Build the net of a phase; ``records`` describes the records of each layer that reads a store.

    Layers are in topological order, otherwise in the job's. Params without a name are called ``<layer>_<role>``.

    If the job unrolls layers over time steps, ``merged`` computes copies as layers over sequences where the numbers
    stay the same (:func:`merge_copies`).

    Raises UserError, with file and line, for a net that cannot be built.
    """
    check_net(conf, [phase])
    selected = conf.replace(layer=[_with_dimension(layer, conf) for layer in filter_layers(conf, phase)])
    create = partial(_create, conf, phase=phase, records=records, merged=merged)
    inputs = [layer for layer in selected.layer if layer.name in records and records[layer.name].leads is not None]
    leads = records[inputs[0].name].leads if inputs else None
    net = create(selected) if leads is None else leads.create_nets(selected, inputs, phase, create)
    if phase & Phase.kTrain and any(param.first_step for param in net.params.values()):
        from dsinga.net.stages_of_training import with_stages  # which few nets have

        net = with_stages(net)
    return net


def _create(
    conf: NetConf, selected: NetConf, phase: Phase, records: Mapping[str, RecordInfo], merged: bool
) -> NeuralNet:
    """Build a net of some layers of a job, unrolled over time steps if requested."""
    copies, reason = unroll(selected), ""  # raises JobError for a net that cannot be unrolled, merged or not
    if copies is selected or merged:
        try:
            return _build(conf, merge_copies(selected), phase, records)
        except MustUnroll as error:
            reason = f"; the net is computed copy by copy, because {error}"
    try:
        return _build(conf, with_own_names(copies, selected), phase, records, unrolled=True)
    except JobError as error:
        raise JobError(f"{error}{reason}") from None


def _build(
    conf: NetConf, selected: NetConf, phase: Phase, records: Mapping[str, RecordInfo], unrolled: bool = False
) -> NeuralNet:
    """Build a net of some layers of a job: create, connect and check them."""
    carried = resolve_carry(selected.layer, phase, records, unrolled)
    confs = sort_layers([drop_persistent_chains(layer, phase) for layer in carried])
    position = {layer.name: k for k, layer in enumerate(confs)}
    named = {layer.name: layer for layer in confs}
    layers: list[Layer] = []
    handed = [0] * len(confs)  # how many parts of each layer are already taken
    micro_batches = max((info.micro_batches for info in records.values()), default=1)
    for layer in confs:
        cls = layer_class(layer)
        check_records(layer, cls, records)
        check_recompute(layer, cls)
        source_positions = [position[source] for source in forward_sources(layer, named)]
        shapes = [
            labels_shape(layers[source]) if k == cls.labels.source else handed_shape(layers[source], handed, source)
            for k, source in enumerate(source_positions)
        ]
        layers.append(make_sequence_layer(cls, layer, shapes, records.get(layer.name), named))
        if micro_batches > 1:
            set_micro_batches(layers[-1], micro_batches)
        sources = [layers[source] for source in source_positions]
        check_ends(layers[-1], sources)
        check_labels(layers[-1], sources, records)
        describe_labels(layers[-1], sources, records.get(layer.name))
        check_codes(layers[-1], records)
    check_parts(layers, handed)
    names, params = name_params(conf, layers)
    joined = [tuple(position[source] for source in forward_sources(layer, named)) for layer in confs]
    whole = [Node(*node) for node in zip(layers, joined, names, strict=True)]
    nodes = insert_splits(whole)
    if any(layer.Conf is not None and layer.Conf.field == "rbm_conf" for layer in layers):
        from dsinga.net.machines import freeze_other_params, insert_reconstructions

        nodes, params = insert_reconstructions(nodes), dict(freeze_other_params(whole, params))
    if selected.recompute > 1 and phase & Phase.kTrain:
        mark_stretches(nodes, selected.recompute)
    return NeuralNet(nodes, params, phase)


def _with_dimension(layer: LayerConf, conf: NetConf) -> LayerConf:
    if layer.partition_dim is not None:
        return layer
    return layer.replace(partition_dim=conf.partition_dim, partition_grid=list(conf.partition_grid))


def filter_layers(conf: NetConf, phase: Phase) -> list[LayerConf]:
    """Return the layers of a job that belong to a phase."""
    return [layer for layer in conf.layer if layer.in_phase(phase)]


def input_layers(conf: NetConf, phase: Phase) -> list[LayerConf]:
    """Return the layers of a phase that read a store."""
    return [layer for layer in filter_layers(conf, phase) if layer_class(layer).is_input]


def with_followers(names: set[str], layers: Iterable[LayerConf]) -> set[str]:
    """Return the names of some layers and of all layers that depend on them."""
    followers: dict[str, list[str]] = {}
    for layer in layers:
        for source in layer.srclayers:
            followers.setdefault(source, []).append(layer.name)
    reached, pending = set(names), [*names]
    while pending:
        new = set(followers.get(pending.pop(), [])) - reached
        reached |= new
        pending += new
    return reached


class NoLabels(JobError):
    """Raised if a layer needs labels, but the records have none."""


def check_records(layer: LayerConf, cls: type[Layer], records: Mapping[str, RecordInfo]) -> None:
    """Raise JobError if a layer's records, or their labels, are missing."""
    if cls.is_input and layer.name not in records:
        raise layer.error(f"layer {layer.name!r} reads a store, but its records are not described")
    labelled = cls.labels.layer_of(layer.srclayers)
    if labelled in records and not records[labelled].has_labels:
        fault = layer.error(
            f"layer {layer.name!r} takes labels from {labelled!r}, whose records have none; give "
            "labels: y in Python, for a Dataset dsinga.windows(dataset, inputs=..., targets=...), or a store that has "
            "them",
            "srclayers",
        )
        raise NoLabels(str(fault))


def check_recompute(layer: LayerConf, cls: type[Layer]) -> None:
    """Raise JobError if a job sets ``recompute`` for a loss layer."""
    if layer.recompute and cls.is_loss:
        text = "recompute saves nothing in a loss, with which the backward pass begins; leave it out"
        raise layer.error(f"layer {layer.name!r}: {text}", "recompute")


def set_micro_batches(layer: Layer, count: int) -> None:
    """Give a layer's state a row for each record of a batch that is computed in micro-batches."""
    if layer.cut.whole_because:
        reason = layer.cut.whole_because
        raise layer.fail(f"{reason}, so that it needs the whole batch at once; leave micro_batches out")
    layer.params = tuple(
        replace(spec, shape=(count * spec.shape[0], *spec.shape[1:])) if spec.by_rows else spec for spec in layer.params
    )


def check_codes(layer: Layer, records: Mapping[str, RecordInfo]) -> None:
    """Raise JobError if the records have more codes than a layer's vocab_size."""
    size = layer.vocab_size
    if not size:
        return
    for name in layer.conf.srclayers:
        codes = records[name].codes if name in records else 0
        if codes > size:
            raise layer.fail(f"{name!r} has {codes} different codes, but vocab_size is {size}; make it {codes}")


def check_ends(layer: Layer, sources: Sequence[Layer]) -> None:
    """Raise JobError if a layer reads an output layer, other than another output layer."""
    for source in sources:
        if source.is_output and not layer.is_output:
            message = (
                f"cannot follow {source.name!r}, an output layer ({source.conf.type_name}); take its source instead"
            )
            raise layer.fail(message, field="srclayers")


def handed_shape(source: Layer, handed: list[int], position: int) -> Shape:
    """Return the shape that a layer gets from ``source``: the whole output or a part."""
    if not source.part_shapes:
        return source.shape
    part = handed[position]
    handed[position] += 1
    return source.part_shapes[min(part, len(source.part_shapes) - 1)]


def check_parts(layers: Sequence[Layer], handed: Sequence[int]) -> None:
    """Raise JobError if a layer that divides its output, as kSlice, has too few or too many readers."""
    for layer, taken in zip(layers, handed, strict=True):
        if layer.part_shapes and taken != len(layer.part_shapes):
            raise layer.fail(f"hands out {len(layer.part_shapes)} parts, but is the source of {taken} layers")


def sort_layers(confs: Sequence[LayerConf]) -> list[LayerConf]:
    """Sort layers so that each comes after its sources."""
    named = {layer.name: layer for layer in confs}
    position = {layer.name: k for k, layer in enumerate(confs)}
    sorter = TopologicalSorter(
        {position[name]: [position[s] for s in forward_sources(named[name], named)] for name in named}
    )
    sorter.prepare()
    ready: list[int] = []
    ordered: list[LayerConf] = []
    while sorter.is_active():
        for k in sorter.get_ready():
            heapq.heappush(ready, k)
        first = heapq.heappop(ready)
        ordered.append(confs[first])
        sorter.done(first)
    return ordered


def resolve_carry(
    confs: Sequence[LayerConf], phase: Phase, records: Mapping[str, RecordInfo], unrolled: bool = False
) -> list[LayerConf]:
    """Decide which recurrent layers carry their state over to the next batch; return all layers.

    Only training does so, by default if batches continue the previous texts.
    """
    texts = {name for name, info in records.items() if info.continues}
    continuing = with_followers(texts, [layer for layer in confs if layer.name not in records])
    return [_set_carry(layer, phase, layer.name in continuing, unrolled) for layer in confs]


def _set_carry(layer: LayerConf, phase: Phase, continues: bool, unrolled: bool) -> LayerConf:
    settings = [(field, value) for field, value in vars(layer).items() if is_message(type(value))]
    recurrent = [(field, value) for field, value in settings if "carry" in field_types(type(value))]
    for field, conf in recurrent:
        training = bool(phase & Phase.kTrain)
        if conf.carry and training and (unrolled or not continues):
            reason = (
                "its net must be unrolled step by step"
                if unrolled
                else "only batches of kCharRNN continue the batch before, in a job with one worker group"
            )
            raise conf.error(f"layer {layer.name!r} cannot carry its state over: {reason}; leave carry out", "carry")
        possible = training and continues and not unrolled and not conf.bidirectional and not conf.initial_state
        carry = possible if conf.carry is None else conf.carry and training
        layer = layer.replace(**{field: conf.replace(carry=carry)})
    return layer


def drop_persistent_chains(layer: LayerConf, phase: Phase) -> LayerConf:
    """Turn off an RBM's persistent Markov chains outside training, because they belong to training batches."""
    if phase is Phase.kTrain or layer.rbm_conf is None or not layer.rbm_conf.persistent:
        return layer
    return layer.replace(rbm_conf=layer.rbm_conf.replace(persistent=False))


def mark_stretches(nodes: Sequence[Node], count: int) -> None:
    """Choose which layers to recompute in the backward pass, so that ``count`` stretches need equal memory.

    Each stretch keeps its last output, and the uppermost one all.
    """
    ends, needed = choose_ends(nodes, count), needs_gradient(nodes)
    for position, node in enumerate(nodes[: ends[-1]] if ends else ()):
        if needed[position] and position not in ends:
            node.layer.conf = node.layer.conf.replace(recompute=True)


def choose_ends(nodes: Sequence[Node], count: int) -> list[int]:
    """Return where stretches of layers of about equal memory end, at most ``count`` - 1 positions."""
    sizes = [sum([float_bytes(node.layer.shape[0], node.layer.shape), *_saved(node)]) for node in nodes]
    possible, total, ends, below = narrow_places(nodes), sum(sizes), list[int](), 0
    for position, size in enumerate(sizes):
        below += size
        if position in possible and below * count >= total * (len(ends) + 1) and len(ends) + 1 < count:
            ends.append(position)
    return ends


def narrow_places(nodes: Sequence[Node]) -> set[int]:
    """Return the positions of layers that all gradients pass through."""
    needed, passed = needs_gradient(nodes), set[int]()
    for position, node in enumerate(nodes):
        for k, source in enumerate(node.sources):
            if needed[source] and sends_gradient(node.layer, k):
                passed.update(range(source + 1, position))
    return {k for k, node in enumerate(nodes) if needed[k] and k not in passed and not node.layer.part_shapes}


def _saved(node: Node) -> list[int]:
    return node.layer.saved_sizes(node.layer.shape[0])
