"""Finds the part of a net that needs no labels, for records that have none."""

from __future__ import annotations

from collections.abc import Mapping

from dsinga.job import NetConf, Phase
from dsinga.layers.context import RecordInfo
from dsinga.net.build import filter_layers
from dsinga.net.layer_classes import layer_class
from dsinga.net.needed_layers import needed_layers, with_followers


def without_labels(conf: NetConf, phase: Phase, records: Mapping[str, RecordInfo], layer: str) -> NetConf:
    """Return the net without the layers that take labels from records without labels, and those that follow them.

    ``records`` describes the records of each input layer of ``phase``. The net is returned as it is where it needs no
    such labels. Where ``layer`` is a softmax loss or a sigmoid cross-entropy loss, its probabilities take its place;
    see :func:`dsinga.net.needed_layers.needed_layers`. Raises UserError where ``layer`` needs the labels.
    """
    unlabelled: set[str] = set()
    layers = filter_layers(conf, phase)
    for each in layers:
        source = layer_class(each).label_source
        labelled = each.srclayers[source] if source is not None and source < len(each.srclayers) else ""
        if labelled in records and not records[labelled].has_labels:
            unlabelled.add(each.name)
    if not unlabelled:
        return conf
    removed = with_followers(unlabelled, layers)
    if layer in removed:
        return needed_layers(conf, phase, (layer,))
    return conf.replace(layer=[each for each in layers if each.name not in removed])
