"""The layers of a job as a graph, phase by phase: names that are there once, sources that are there, no cycles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dsinga.job.enums import LayerType, Phase
from dsinga.job.layerconf import LayerConf
from dsinga.job.schema import NetConf
from dsinga.registry import nearest


def check_net(net: NetConf, phases: Iterable[Phase]) -> None:
    """Raise JobError for the first layer that does not fit into the net of one of ``phases``."""
    if not net.layer:
        raise net.error("the job's neuralnet has no layers")
    for phase in phases:
        layers = unique([layer for layer in net.layer if layer.in_phase(phase)], phase)
        if not layers:
            raise net.error(f"no layer is in phase {phase.name}")
        for layer in layers.values():
            check_sources(layer, layers, net.layer, phase)
        check_cycles(layers, phase)


def unique(layers: Sequence[LayerConf], phase: Phase) -> dict[str, LayerConf]:
    """Return the layers of a phase by name; refuse a name that is there twice."""
    found: dict[str, LayerConf] = {}
    for layer in layers:
        if layer.name in found:
            where = found[layer.name].where()
            first = f", first on line {where.line}" if where else ""
            remedy = "rename one, or give each its own include"
            raise layer.error(f"layer {layer.name!r} is in phase {phase.name} twice{first}; {remedy}")
        found[layer.name] = layer
    return found


def check_sources(layer: LayerConf, there: Mapping[str, LayerConf], all_: Sequence[LayerConf], phase: Phase) -> None:
    """Refuse a source that the phase does not have."""
    for item, name in enumerate(layer.srclayers):
        if name in there:
            continue
        elsewhere = next((one for one in all_ if one.name == name), None)
        if elsewhere is not None:
            where = elsewhere.where()
            hint = f"; the one{f' of line {where.line}' if where else ''} has another include"
        else:
            hint = nearest(name, there) or f"; its layers are {', '.join(there)}"
        text = f"layer {layer.name!r}: phase {phase.name} has no layer {name!r} for its srclayers{hint}"
        raise layer.error(text, "srclayers", item)


def check_cycles(layers: Mapping[str, LayerConf], phase: Phase) -> None:
    """Refuse layers that are their own source, be it through others."""
    done: set[str] = set()
    for start in layers:
        path = [start]  # depth first, without recursion: nets may be deep
        pending = [iter(sources(layers[start], layers))]
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
                pending.append(iter(sources(layers[name], layers)))


def sources(layer: LayerConf, layers: Mapping[str, LayerConf]) -> list[str]:
    """Return the sources that must be computed before a layer.

    Not so the hidden layer of a restricted Boltzmann machine, though it is a source of the visible one, which needs its
    sample only after the hidden layer has seen the data; nor a source with a ``shift``, a copy of an earlier time step.
    The hidden layer of another machine, one below, is a source like any other.
    """
    shifted = {name for name, shift in zip(layer.srclayers, layer.shift, strict=False) if shift}
    visible = layer.type is LayerType.kRBMVis
    return [
        name
        for name in layer.srclayers
        if name not in shifted and not (visible and is_hidden_side(layers[name], layer.name))
    ]


def is_hidden_side(layer: LayerConf, visible: str) -> bool:
    """Whether a layer is the hidden side of the restricted Boltzmann machine whose visible side has this name."""
    return layer.type is LayerType.kRBMHid and visible in layer.srclayers
