"""The shape and dtype of the labels that each layer of a net gives to the layers after it, known before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dsinga.layers.connect.connection import Concate, SliceLayer
from dsinga.layers.interface.context import RecordInfo
from dsinga.layers.interface.declarations import LabelFormat
from dsinga.layers.interface.layer import Layer, Shape
from dsinga.layers.losses.tagging import EntityF1
from dsinga.layers.records.label import (
    check_one_label,
    check_shares,
    check_step_labels,
    class_labels,
    float_labels_fault,
)
from dsinga.layers.sequences.attention import Attention


def makes_labels(layer: Layer) -> bool:
    """Whether the layer gives other labels than its first source that has some, for the same rows."""
    if layer.is_input:
        return layer.label_format.dtype is not None
    overridden = type(layer).hand_on_labels is not Layer.hand_on_labels and not isinstance(layer, (SliceLayer, Concate))
    return layer.new_labels is not None or overridden


def labels_shape(layer: Layer) -> Shape:
    """Return the shape of the labels that ``layer`` gives: (B, ...), (B,) where it has none."""
    return (layer.shape[0], *layer.label_format.shape)


def describe_labels(layer: Layer, sources: Sequence[Layer], info: RecordInfo | None) -> None:
    """Set ``label_format`` of a layer: that of its records, or of its first source that has labels.

    A layer that makes labels keeps its own shape, and its own dtype unless that is None; it has the names of labels
    that it takes. ``info`` describes the records of an input layer.
    """
    new = layer.new_labels or LabelFormat()
    if layer.is_input:
        if info and info.has_labels:
            dtype = np.dtype(info.label_dtype if new.dtype is None else new.dtype)
            names = new.names or tuple(info.label_names)
            layer.label_format = LabelFormat(new.shape or tuple(info.label_shape), dtype, names)
        return
    passed_on = next((source.label_format for source in sources if source.label_format.dtype is not None), None)
    if makes_labels(layer):
        dtype = np.dtype((passed_on.dtype if passed_on else np.int64) if new.dtype is None else new.dtype)
        names = () if layer.labels.source is None else sources[layer.labels.source].label_format.names
        layer.label_format = LabelFormat(new.shape, dtype, new.names or names)
    elif passed_on:
        layer.label_format = passed_on


def check_labels(layer: Layer, sources: Sequence[Layer], records: Mapping[str, RecordInfo]) -> None:
    """Raise UserError where a layer gets labels of a kind that it does not take.

    These are float labels where it takes classes, several labels a row where it takes one or one for each step, and, of
    layers that take labels directly from a store, labels beyond its classes. kEntityF1 learns the names of its tags.
    Values of a kAttention that may as well be meant for the lengths of its keys are refused, too.
    """
    if isinstance(layer, Attention):
        _check_values(layer, sources)
    labels = layer.labels
    if labels.source is None:
        return
    source = sources[labels.source]
    dtype = source.label_format.dtype
    if dtype is not None and dtype.kind == "f" and not labels.floats:
        if not source.label_format.shape:
            raise float_labels_fault(layer)
        if not labels.shares:
            raise layer.fail(
                f"takes labels that are classes, but {layer.source_name(labels.source)} gives several numbers a row, "
                "as kMixup and kCutMix make them; kSoftmaxLoss takes shares of classes, other layers that take classes "
                "need exclude: kTrain"
            )
        check_shares(layer, labels_shape(source), getattr(layer, "classes", 0))
        return
    if labels.per == "row":
        check_one_label(layer, labels_shape(source))
    if labels.per == "step" and dtype is not None:
        check_step_labels(layer, labels_shape(source), layer.shape[1])
    if isinstance(layer, EntityF1):
        layer.name_tags(source.label_format.names)
    classes = getattr(layer, "classes", None)
    info = records.get(layer.conf.srclayers[labels.source])
    if classes is not None and info and info.label_range:
        class_labels(layer, np.array(info.label_range), classes)


def _check_values(layer: Attention, sources: Sequence[Layer]) -> None:
    """Raise UserError where the third source of three may be values, or give the lengths of the keys by its labels.

    Only an input layer leaves that open: other layers pass on the labels of their sources, and are values.
    """
    if not layer.has_values or layer.labels.source is not None or not sources[2].is_input:
        return
    labels = sources[2].label_format
    if labels.dtype is None or labels.dtype.kind == "f" or labels.shape != (layer.keys,):
        return
    queries, keys, values = map(repr, layer.conf.srclayers)
    lengths = f"srclayers: [{queries}, {keys}, {keys}, {values}]".replace("'", '"')
    records = f"srclayers: [{queries}, {keys}]".replace("'", '"')
    if values != keys:
        records = "a kInnerProduct with per_step: true between"
    raise layer.fail(
        f"could take the records of {values} as values, or their labels as lengths of the keys; for lengths write "
        f"{lengths}, for values {records}",
        field="srclayers",
    )
