"""Checks the graph of a job's layers, phase by phase: unique names, known sources, no cycles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dsinga.base.registry import nearest_or_listed
from dsinga.job.enums import LayerType, Phase
from dsinga.job.layerconf import LayerConf
from dsinga.job.schema import NetConf


def check_net(net: NetConf, phases: Iterable[Phase]) -> None:
    """Raise JobError for the first invalid layer in the net of one of ``phases``."""
    if not net.layer:
        raise net.error("the job's neuralnet has no layers; add at least one, as in layer { name: ... }")
    for phase in phases:
        layers = unique([layer for layer in net.layer if layer.in_phase(phase)], phase)
        if not layers:
            raise net.error(f"no layer is in phase {phase.name}; change the include or exclude of its layers")
        for layer in layers.values():
            check_sources(layer, layers, net.layer, phase)
        check_cycles(layers, phase)


def unique(layers: Sequence[LayerConf], phase: Phase) -> dict[str, LayerConf]:
    """Return the layers of a phase by name; raise JobError for a name that two layers have."""
    named: dict[str, LayerConf] = {}
    for layer in layers:
        if layer.name in named:
            where = named[layer.name].where()
            first = f", first on line {where.line}" if where else ""
            remedy = "rename one, or give each its own include"
            raise layer.error(f"layer {layer.name!r} is in phase {phase.name} twice{first}; {remedy}")
        named[layer.name] = layer
    return named


def check_sources(layer: LayerConf, in_phase: Mapping[str, LayerConf], all_: Sequence[LayerConf], phase: Phase) -> None:
    """Raise JobError for a source that is not in the phase."""
    for item, name in enumerate(layer.srclayers):
        if name in in_phase:
            continue
        elsewhere = next((layer for layer in all_ if layer.name == name), None)
        if elsewhere is not None:
            where = elsewhere.where()
            hint = f"; the layer of this name{f' on line {where.line}' if where else ''} is in other phases"
        else:
            hint = nearest_or_listed(name, in_phase, "its layers are")
        text = f"layer {layer.name!r}: its source {name!r} is not in phase {phase.name}{hint}"
        raise layer.error(text, "srclayers", item)


def check_cycles(layers: Mapping[str, LayerConf], phase: Phase) -> None:
    """Raise JobError for a layer that is its own source, directly or through other layers."""
    done: set[str] = set()
    for start in layers:
        path = [start]  # depth first, without recursion because nets may be deep
        pending = [iter(forward_sources(layers[start], layers))]
        while path:
            name = next(pending[-1], None)
            if name is None:
                done.add(path.pop())
                pending.pop()
            elif name in path:
                loop = " <- ".join([*path[path.index(name) :], name])
                text = f"layer {name!r}: its srclayers lead back to it in phase {phase.name}: {loop}"
                raise layers[name].error(text, "srclayers")
            elif name not in done:
                path.append(name)
                pending.append(iter(forward_sources(layers[name], layers)))


def forward_sources(layer: LayerConf, layers: Mapping[str, LayerConf]) -> list[str]:
    """Return the sources of a layer that must be computed before it.

    Left out are sources with a ``shift``, which are copies of an earlier time step, and the hidden layer of a
    restricted Boltzmann machine as a source of its visible layer: the visible layer needs the hidden sample only after
    the hidden layer has seen the data. The hidden layer of another machine is a source like any other.
    """
    shifted = {name for name, shift in zip(layer.srclayers, layer.shift, strict=False) if shift}
    visible = layer.type is LayerType.kRBMVis
    return [
        name
        for name in layer.srclayers
        if name not in shifted and not (visible and is_hidden_side(layers[name], layer.name))
    ]


def is_hidden_side(layer: LayerConf, visible: str) -> bool:
    """Whether a layer is the hidden layer of the restricted Boltzmann machine with this visible layer."""
    return layer.type is LayerType.kRBMHid and visible in layer.srclayers
