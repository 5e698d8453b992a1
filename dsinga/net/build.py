"""From the job's net to the NeuralNet of one phase: filter, order, set the layers up, join them."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter

import numpy as np

from dsinga.job import JobError, LayerConf, NetConf, Phase
from dsinga.job.checknet import check_net, sources
from dsinga.layers.base import Layer, Shape
from dsinga.layers.codes import Codes
from dsinga.layers.context import RecordInfo
from dsinga.layers.label import class_labels
from dsinga.layers.steps import NotByStep
from dsinga.net.carry import settle_carry
from dsinga.net.classes import layer_class
from dsinga.net.fold import fold, make_folded
from dsinga.net.machines import freeze_others, insert_reconstructions, settle_chains
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.node import Node
from dsinga.net.sharing import name_params
from dsinga.net.splits import insert_splits
from dsinga.net.unroll import unroll, with_own_names


def create_net(conf: NetConf, phase: Phase, records: Mapping[str, RecordInfo], folded: bool = True) -> NeuralNet:
    """Build the net of ``phase``; ``records`` tells each layer that reads a store what it will read.

    The order of the nodes is topological and otherwise the job's. Where gradients meet, a kSplit layer is put between
    (see :func:`insert_splits`), and behind each restricted Boltzmann machine what it reconstructs (see
    :func:`insert_reconstructions`). Params without a name are called ``<layer>_<role>``. Layers that the job unrolls
    over time steps are folded, each chain of copies into one layer over sequences, where that computes the same
    (see :func:`fold`) and ``folded`` wants it so; else the net has the copies.

    Raises UserError, with file and line, for whatever cannot be built: an unknown type or source, a cycle, a name
    used twice, sources a layer cannot take, a param shared from nowhere or from another shape.
    """
    check_net(conf, [phase])
    own = conf.replace(layer=[_with_dimension(layer, conf) for layer in filter_layers(conf, phase)])
    copies, why = unroll(own), ""  # which refuses what cannot be unrolled
    if copies is own or folded:
        try:
            return _build(conf, settle_carry(fold(own).layer, phase, records), phase, records)
        except NotByStep as error:
            why = f"; its net is computed copy by copy, for {error}"
    try:
        copies = with_own_names(copies, own)
        return _build(conf, settle_carry(copies.layer, phase, records, unrolled=True), phase, records)
    except JobError as error:
        raise JobError(f"{error}{why}") from None


def _build(conf: NetConf, own: Sequence[LayerConf], phase: Phase, records: Mapping[str, RecordInfo]) -> NeuralNet:
    """Build the net of the layers ``own``, which are those of ``conf`` in ``phase``, folded or unrolled."""
    confs = sort_layers([settle_chains(layer, phase) for layer in own])
    position = {layer.name: k for k, layer in enumerate(confs)}
    named = {layer.name: layer for layer in confs}
    layers: list[Layer] = []
    handed = [0] * len(confs)  # parts already taken from layers that hand them out
    for layer in confs:
        cls = layer_class(layer)
        check_records(layer, cls, records)
        into = [position[source] for source in sources(layer, named)]
        shapes = [
            layers[source].shape if k == cls.label_source else handed_shape(layers[source], handed, source)
            for k, source in enumerate(into)
        ]
        layers.append(make_folded(cls, layer, shapes, records.get(layer.name), named))
        check_ends(layers[-1], [layers[source] for source in into])
        check_labels(layers[-1], records)
        check_codes(layers[-1], records)
    check_parts(layers, handed)
    names, params = name_params(conf, layers)
    joined = [tuple(position[source] for source in sources(layer, named)) for layer in confs]
    nodes = [Node(*node) for node in zip(layers, joined, names, strict=True)]
    return NeuralNet(insert_reconstructions(insert_splits(nodes)), freeze_others(nodes, params), phase)


def _with_dimension(layer: LayerConf, conf: NetConf) -> LayerConf:
    """Return the layer's configuration with the partition_dim that holds for it: its own, or the net's."""
    return layer if layer.partition_dim is not None else layer.replace(partition_dim=conf.partition_dim)


def filter_layers(conf: NetConf, phase: Phase) -> list[LayerConf]:
    """Return the layers of ``phase``, by their ``include`` or ``exclude``."""
    return [layer for layer in conf.layer if layer.in_phase(phase)]


def input_layers(conf: NetConf, phase: Phase) -> list[LayerConf]:
    """Return the layers of ``phase`` that read a store."""
    return [layer for layer in filter_layers(conf, phase) if layer_class(layer).is_input]


def check_records(layer: LayerConf, cls: type[Layer], records: Mapping[str, RecordInfo]) -> None:
    """Raise JobError where a layer reads a store of which nothing is told, or takes labels that no store has."""
    if cls.is_input and layer.name not in records:
        raise layer.error(f"layer {layer.name!r} reads a store, but nothing is known of its records")
    if cls.label_source is None or cls.label_source >= len(layer.srclayers):
        return
    labelled = layer.srclayers[cls.label_source]
    if labelled in records and not records[labelled].has_labels:
        raise layer.error(f"layer {layer.name!r} takes labels from {labelled!r}, whose records have none", "srclayers")


def check_labels(layer: Layer, records: Mapping[str, RecordInfo]) -> None:
    """Raise UserError where a layer takes labels straight from a store that has some beyond the layer's classes."""
    classes = getattr(layer, "classes", None)
    if layer.label_source is None or classes is None:
        return
    info = records.get(layer.conf.srclayers[layer.label_source])
    if info and info.label_range:
        class_labels(layer, np.array(info.label_range), classes)


def check_codes(layer: Layer, records: Mapping[str, RecordInfo]) -> None:
    """Raise JobError where a layer takes codes straight from a store that has more of them than the layer knows."""
    if not isinstance(layer, Codes):
        return
    for name in layer.conf.srclayers:
        codes = records[name].codes if name in records else 0
        if codes > layer.size:
            raise layer.fail(f"{name!r} has {codes} different codes, but vocab_size is {layer.size}; make it {codes}")


def check_ends(layer: Layer, sources: Sequence[Layer]) -> None:
    """Raise JobError where a layer that is no output layer follows one."""
    for source in sources:
        if source.is_output and not layer.is_output:
            message = f"cannot follow {source.name!r}, an output layer ({source.conf.type_name}); take what that takes"
            raise layer.fail(message, field="srclayers")


def handed_shape(source: Layer, handed: list[int], position: int) -> Shape:
    """Return the shape that the next destination of ``source`` takes: its feature's, or that of the next part."""
    if not source.hands_parts:
        return source.shape
    part = handed[position]
    handed[position] += 1
    return source.part_shapes[min(part, len(source.part_shapes) - 1)]


def check_parts(layers: Sequence[Layer], handed: Sequence[int]) -> None:
    """Raise JobError where a layer hands out more or fewer parts than there are layers to take them."""
    for layer, taken in zip(layers, handed, strict=True):
        if layer.hands_parts and taken != len(layer.part_shapes):
            raise layer.fail(f"hands out {len(layer.part_shapes)} parts, but is the source of {taken} layers")


def sort_layers(confs: Sequence[LayerConf]) -> list[LayerConf]:
    """Return the layers so that sources come first, in the job's order where that leaves a choice."""
    named = {layer.name: layer for layer in confs}
    position = {layer.name: k for k, layer in enumerate(confs)}
    sorter = TopologicalSorter({position[name]: [position[s] for s in sources(named[name], named)] for name in named})
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
