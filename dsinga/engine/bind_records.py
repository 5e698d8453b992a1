"""Binding arrays to a job: its input layers then read these in place of stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsinga.data import open_records
from dsinga.errors import UserError
from dsinga.job import Job, LayerConf, LayerType, NetConf, Phase, StoreConf
from dsinga.job.enums import PHASES
from dsinga.net import input_layers
from dsinga.net.layer_classes import layer_class
from dsinga.registry import nearest_or_listed


def bind_records(job: Job, data: Any, phase: Phase = Phase.kTrain, roots: Sequence[str] = ()) -> Job:
    """Return the job with input layers that read ``data`` in place of the stores that they name.

    The other fields of an input layer, such as its batch size, mean and shape of a record, hold as before. A layer that
    belongs to other phases, too, reads what it read before in these.

    Args:
        job: the job, which is not changed.
        data: a source as :func:`dsinga.data.open_records` takes it, such as an array or a pair (x, y), which the input
            layer of ``phase`` reads; or a dict of such sources by phase ("train", "val", "test", "deploy"). Where a
            phase has several input layers, a dict of sources by the layer's name takes the place of one source.
        phase: the phase of data that name none.
        roots: folders where a relative path is looked up after the working directory.

    Raises:
        UserError: a source cannot be read, or the net has no input layer for it.
    """
    net = job.neuralnet
    for each, source in _by_phase(net, data, phase).items():
        named = {layer.name: open_records(part, roots=roots) for layer, part in _by_layer(net, source, each)}
        layers = [part for layer in net.layer for part in _bind(layer, named.get(layer.name), each)]
        net = net.replace(layer=layers)
    return job.replace(neuralnet=net)


def _by_phase(net: NetConf, data: Any, phase: Phase) -> Mapping[Phase, Any]:
    """Return the data of each phase."""
    if not isinstance(data, dict) or data.keys() <= {layer.name for layer in input_layers(net, phase)}:
        return {phase: data}
    names = [layer.name for layer in input_layers(net, phase)]
    for key in data:
        if key not in PHASES:
            known = [*PHASES, *names]
            text = f"data are given for {key!r}, which is no phase and no input layer in phase {phase.name}"
            raise UserError(f"{text}{nearest_or_listed(str(key), known, 'these are')}")
    return {PHASES[key]: source for key, source in data.items()}


def _by_layer(net: NetConf, source: Any, phase: Phase) -> list[tuple[LayerConf, Any]]:
    """Return the input layers of ``phase`` that get data, each with its source."""
    layers = {layer.name: layer for layer in input_layers(net, phase)}
    if not layers:
        raise net.error(
            f"there are data for phase {phase.name}, but the net has no input layer in it; add {phase.name} to the "
            "include of an input layer, or leave these data out"
        )
    if isinstance(source, dict):
        for name in source:
            if name not in layers:
                hint = nearest_or_listed(str(name), layers, "its input layers are")
                raise net.error(f"there are data for {name!r}, which is no input layer in phase {phase.name}{hint}")
        return [(layers[name], part) for name, part in source.items()]
    if len(layers) > 1:
        names = ", ".join(f"{name!r}: ..." for name in layers)
        raise net.error(f"phase {phase.name} has {len(layers)} input layers; give the data of each: {{{names}}}")
    return [(layer, source) for layer in layers.values()]


def _bind(layer: LayerConf, records: Any, phase: Phase) -> list[LayerConf]:
    """Return the layer bound to ``records`` in ``phase``, and as it was for its other phases, if it has any."""
    if records is None or not layer.in_phase(phase):
        return [layer]
    if layer.type is LayerType.kCharRNN:
        raise layer.error(f"layer {layer.name!r} reads a text, not records; give it the path of a text")
    legacy = layer.lmdbdata_conf or layer.sharddata_conf
    conf = layer_class(layer).reads(layer)
    if conf is None:
        conf = StoreConf(batchsize=[legacy.batchsize], random_skip=legacy.random_skip) if legacy else StoreConf()
    bound = layer.replace(include=[phase], exclude=[], store_conf=conf.replace(records=records))
    if layer.include == [phase]:
        return [bound]
    if layer.include:
        return [bound, layer.replace(include=[other for other in layer.include if other != phase])]
    return [bound, layer.replace(exclude=[*layer.exclude, phase])]
