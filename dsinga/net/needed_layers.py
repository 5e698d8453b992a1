"""Selects the layers that a prediction needs, or that need no labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.job import LayerConf, LayerType, NetConf, Phase
from dsinga.layers.interface.context import RecordInfo
from dsinga.net.build import filter_layers, with_followers
from dsinga.net.layer_classes import layer_class

# Losses whose feature does not depend on the labels, and the layer that computes this feature.
PROBABILITIES = {
    LayerType.kSoftmaxLoss: LayerType.kSoftmax,
    LayerType.kCudnnSoftmaxLoss: LayerType.kSoftmax,
    LayerType.kKLDivergenceLoss: LayerType.kSoftmax,
    LayerType.kSigmoidCrossEntropyLoss: LayerType.kSigmoid,
    LayerType.kFocalLoss: LayerType.kSigmoid,
}
HAND_OUT = (LayerType.kSlice, LayerType.kSplit)  # a part to each destination


def needed_layers(conf: NetConf, phase: Phase, names: Sequence[str] = ()) -> NetConf:
    """Return a net of only the layers that the outputs ``names`` need, to predict records without labels.

    By default these are all layers that need no labels. A loss of :data:`PROBABILITIES` becomes the layer of its
    probabilities.
    """
    layers = {layer.name: layer for layer in filter_layers(conf, phase)}
    takes_labels = {name for name, layer in layers.items() if _takes_labels(layer, layers)}
    labelled = with_followers(takes_labels, layers.values())
    for name in names:
        if name not in layers:
            raise UserError(f"the net has no layer {name!r} in phase {phase.name}{nearest(name, layers)}")
        if layers[name].type in PROBABILITIES:
            layers[name] = _probabilities(layers[name])
            labelled.discard(name)
        elif name in labelled:
            raise UserError(f"layer {name!r} needs labels; give them, or name a layer below it")
    needed = [name for name in names or layers if name not in labelled]
    reached = set()
    while needed:
        name = needed.pop()
        if name in layers and name not in reached:
            reached.add(name)
            needed += layers[name].srclayers
            if layers[name].type in HAND_OUT:  # to all layers that take parts
                needed += [other for other, layer in layers.items() if name in layer.srclayers]
    confs = [layer for name, layer in layers.items() if name in reached]
    return conf.replace(layer=_own_missing_params(confs))


def _takes_labels(layer: LayerConf, layers: Mapping[str, LayerConf]) -> bool:
    """Whether a layer needs labels: it is a loss with labels, or reads the records' labels."""
    cls = layer_class(layer)
    name = cls.labels.layer_of(layer.srclayers)
    if not name:
        return False
    source = layers.get(name)
    while source is not None and source.srclayers and layer_class(source).new_labels is None:
        source = layers.get(layer_class(source).labels.layer_of(source.srclayers) or source.srclayers[0])
    return cls.is_loss or source is None or layer_class(source).new_labels is None


def _probabilities(layer: LayerConf) -> LayerConf:
    return LayerConf(name=layer.name, type=PROBABILITIES[layer.type], srclayers=layer.srclayers[:1])


def _own_missing_params(layers: list[LayerConf]) -> list[LayerConf]:
    """Let layers own the params that they share with dropped layers."""
    names: set[str | None] = {param.name for layer in layers for param in layer.param if not param.share_from}
    defaults = tuple(f"{layer.name}_" for layer in layers)  # params without a name: <layer>_<role>

    def is_kept(owner: str | None) -> bool:
        return not owner or owner in names or owner.startswith(defaults)

    def own(layer: LayerConf) -> LayerConf:
        missing = {param.share_from for param in layer.param if not is_kept(param.share_from)}
        if not missing:
            return layer
        params = [
            param.replace(name=param.share_from, share_from=None) if param.share_from in missing else param
            for param in layer.param
        ]
        names.update(missing)  # other layers share it from this one
        return layer.replace(param=params)

    return [own(layer) for layer in layers]


def without_labels(conf: NetConf, phase: Phase, records: Mapping[str, RecordInfo], layer: str) -> NetConf:
    """Drop the layers that need labels which the records lack, to predict the output of ``layer``.

    If ``layer`` is a loss of :data:`PROBABILITIES`, its probabilities replace it. Raises UserError if ``layer`` needs
    the labels.
    """
    unlabelled: set[str] = set()
    layers = filter_layers(conf, phase)
    for candidate in layers:
        labelled = layer_class(candidate).labels.layer_of(candidate.srclayers)
        if labelled in records and not records[labelled].has_labels:
            unlabelled.add(candidate.name)
    if not unlabelled:
        return conf
    removed = with_followers(unlabelled, layers)
    if layer in removed:
        return needed_layers(conf, phase, (layer,))
    return conf.replace(layer=[candidate for candidate in layers if candidate.name not in removed])
