"""From the job's net to the NeuralNet of one phase: filter, order, set the layers up, join them."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import dsinga.layers  # noqa: F401  registers the built-in layers
from dsinga.errors import UserError
from dsinga.job import LayerConf, LayerType, NetConf, Phase
from dsinga.layers.base import Layer, RecordInfo, Shape
from dsinga.net.neuralnet import NeuralNet, Node
from dsinga.net.sharing import name_params
from dsinga.net.splits import insert_splits
from dsinga.registry import lookup, nearest


def create_net(conf: NetConf, phase: Phase, records: Mapping[str, RecordInfo]) -> NeuralNet:
    """Build the net of ``phase``; ``records`` tells each layer that reads a store what it will read.

    The order of the nodes is topological and otherwise the job's. Where gradients meet, a kSplit layer is put between
    (see :func:`insert_splits`). Params without a name are called ``<layer>_<role>``.

    Raises UserError, with file and line, for whatever cannot be built: an unknown type or source, a cycle, a name
    used twice, sources a layer cannot take, a param shared from nowhere or from another shape.
    """
    confs = sort_layers(filter_layers(conf, phase), phase)
    position = {layer.name: k for k, layer in enumerate(confs)}
    layers: list[Layer] = []
    handed = [0] * len(confs)  # parts already taken from layers that hand them out
    for layer in confs:
        cls = layer_class(layer)
        into = [position[source] for source in layer.srclayers]
        check_records(layer, cls, records)
        check_ends(layer, cls, [layers[source] for source in into])
        shapes = [
            layers[source].shape if k == cls.label_source else handed_shape(layers[source], handed, source)
            for k, source in enumerate(into)
        ]
        layers.append(cls(layer, shapes, records.get(layer.name)))
    check_parts(layers, handed)
    names, params = name_params(conf, layers)
    sources = [tuple(position[source] for source in layer.srclayers) for layer in confs]
    nodes = [Node(*node) for node in zip(layers, sources, names, strict=True)]
    return NeuralNet(insert_splits(nodes), params, phase)


def filter_layers(conf: NetConf, phase: Phase) -> list[LayerConf]:
    """Return the layers of ``phase``, by their ``include`` or ``exclude``; raise JobError for a name used twice."""
    seen: dict[str, LayerConf] = {}
    for layer in conf.layer:
        if layer.include and layer.exclude:
            raise layer.error(f"layer {layer.name!r} has both include and exclude; keep one of them", "exclude")
        if layer.include and phase not in layer.include or phase in layer.exclude:
            continue
        if layer.name in seen:
            first = seen[layer.name].where()
            raise layer.error(
                f"two layers are named {layer.name!r} in phase {phase.name}"
                + (f", the first at {first}" if first else "")
                + "; rename one, or give them include or exclude of different phases",
                "name",
            )
        seen[layer.name] = layer
    if not seen:
        raise conf.error(f"the net has no layers in phase {phase.name}")
    return list(seen.values())


def input_layers(conf: NetConf, phase: Phase) -> list[LayerConf]:
    """Return the layers of ``phase`` that read a store."""
    return [layer for layer in filter_layers(conf, phase) if layer_class(layer).is_input]


def layer_class(conf: LayerConf) -> type[Layer]:
    """Return the class registered for the type of this layer; raise JobError where there is none (yet)."""
    if conf.type is LayerType.kUserLayer and not conf.user_type:
        raise conf.error(f"layer {conf.name!r} has no type; give it one, or a user_type that is registered")
    try:
        return lookup("layer", conf.type_name)
    except UserError as error:
        if conf.type is LayerType.kUserLayer:
            raise conf.error(f"layer {conf.name!r}: {error}", "user_type") from None
        raise conf.error(f"layer {conf.name!r}: type {conf.type_name} is not available yet", "type") from None


def check_records(layer: LayerConf, cls: type[Layer], records: Mapping[str, RecordInfo]) -> None:
    """Raise JobError where a layer reads a store of which nothing is told, or takes labels that no store has."""
    if cls.is_input and layer.name not in records:
        raise layer.error(f"layer {layer.name!r} reads a store, but nothing is known of its records")
    if cls.label_source is None or cls.label_source >= len(layer.srclayers):
        return
    labelled = layer.srclayers[cls.label_source]
    if labelled in records and not records[labelled].has_labels:
        raise layer.error(f"layer {layer.name!r} takes labels from {labelled!r}, whose records have none", "srclayers")


def check_ends(layer: LayerConf, cls: type[Layer], sources: Sequence[Layer]) -> None:
    """Raise JobError where a layer that is no output layer follows one."""
    for source in sources:
        if source.is_output and not cls.is_output:
            raise layer.error(
                f"layer {layer.name!r} cannot follow {source.name!r}, an output layer ({source.conf.type_name}); "
                "take what that one takes",
                "srclayers",
            )


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


def sort_layers(confs: Sequence[LayerConf], phase: Phase) -> list[LayerConf]:
    """Return the layers so that sources come first, in the job's order where that leaves a choice.

    Raises JobError for a source that is not there and for a cycle, spelling it out.
    """
    position = {layer.name: k for k, layer in enumerate(confs)}
    for layer in confs:
        for source in layer.srclayers:
            if source not in position:
                raise layer.error(
                    f"layer {layer.name!r} has the source {source!r}, but there is no such layer in phase "
                    f"{phase.name}{nearest(source, position)}",
                    "srclayers",
                )
    missing = [len(layer.srclayers) for layer in confs]
    destinations: list[list[int]] = [[] for _ in confs]
    for k, layer in enumerate(confs):
        for source in layer.srclayers:
            destinations[position[source]].append(k)
    ready = [k for k, count in enumerate(missing) if not count]
    ordered: list[LayerConf] = []
    while ready:
        k = heapq.heappop(ready)
        ordered.append(confs[k])
        for destination in destinations[k]:
            missing[destination] -= 1
            if not missing[destination]:
                heapq.heappush(ready, destination)
    if len(ordered) < len(confs):
        cycle = find_cycle({layer.name: layer for k, layer in enumerate(confs) if missing[k]})
        raise cycle[0].error(
            "these layers feed each other in a circle: " + " -> ".join(repr(layer.name) for layer in cycle), "srclayers"
        )
    return ordered


def find_cycle(stuck: Mapping[str, LayerConf]) -> list[LayerConf]:
    """Return a cycle, its first layer again at the end, among layers each of which waits for another of them."""
    path: dict[str, LayerConf] = {}
    layer = next(iter(stuck.values()))
    while layer.name not in path:
        path[layer.name] = layer
        layer = stuck[next(source for source in layer.srclayers if source in stuck)]
    against = [*list(path.values())[list(path).index(layer.name) :], layer]
    return against[::-1]
