"""The shape and dtype of the labels that each layer of a net gives to the layers after it, known before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dsinga.layers.attention import Attention
from dsinga.layers.base import Layer, Shape
from dsinga.layers.connection import Concate, SliceLayer
from dsinga.layers.context import RecordInfo
from dsinga.layers.label import check_one_label, check_step_labels, class_labels, float_labels_fault
from dsinga.layers.tagging import EntityF1


def makes_labels(layer: Layer) -> bool:
    """Whether the layer gives other labels than its first source that has some, for the same rows."""
    if layer.is_input:
        return getattr(layer, "has_labels", True)
    overridden = type(layer).hand_on_labels is not Layer.hand_on_labels and not isinstance(layer, (SliceLayer, Concate))
    return layer.makes_labels or overridden


def labels_shape(layer: Layer) -> Shape:
    """Return the shape of the labels that ``layer`` gives: (B, ...), (B,) where it has none."""
    return (layer.shape[0], *layer.label_shape)


def describe_labels(layer: Layer, sources: Sequence[Layer], info: RecordInfo | None) -> None:
    """Set shape, dtype and names of the labels of a layer: those of its records or its first source that has labels.

    A layer that makes labels keeps its own shape, and its own dtype unless that is None; it has the names of labels
    that it takes. ``info`` describes the records of an input layer.
    """
    if layer.is_input:
        if info and info.has_labels and makes_labels(layer):
            layer.label_shape = layer.label_shape or tuple(info.label_shape)
            layer.label_dtype = np.dtype(layer.label_dtype or info.label_dtype)
            layer.label_names = layer.label_names or tuple(info.label_names)
        return
    source = next((source for source in sources if source.label_dtype is not None), None)
    if makes_labels(layer):
        inherited = np.dtype(np.int64) if source is None else source.label_dtype
        layer.label_dtype = inherited if layer.label_dtype is None else np.dtype(layer.label_dtype)
        if layer.label_source is not None:
            layer.label_names = layer.label_names or sources[layer.label_source].label_names
    elif source is not None:
        layer.label_shape, layer.label_dtype = source.label_shape, source.label_dtype
        layer.label_names = source.label_names


def check_labels(layer: Layer, sources: Sequence[Layer], records: Mapping[str, RecordInfo]) -> None:
    """Raise UserError where a layer gets labels of a kind that it does not take.

    These are float labels where it takes classes, several labels a row where it takes one or one for each step, and, of
    layers that take labels directly from a store, labels beyond its classes. kEntityF1 learns the names of its tags.
    Values of a kAttention that may as well be meant for the lengths of its keys are refused, too.
    """
    if isinstance(layer, Attention):
        _check_values(layer, sources)
    if layer.label_source is None:
        return
    source = sources[layer.label_source]
    dtype = source.label_dtype
    if dtype is not None and dtype.kind == "f" and not layer.takes_float_labels:
        raise float_labels_fault(layer)
    if layer.takes_one_label:
        check_one_label(layer, labels_shape(source))
    if layer.takes_step_labels and dtype is not None:
        check_step_labels(layer, labels_shape(source), layer.shape[1])
    if isinstance(layer, EntityF1):
        layer.name_tags(source.label_names)
    classes = getattr(layer, "classes", None)
    info = records.get(layer.conf.srclayers[layer.label_source])
    if classes is not None and info and info.label_range:
        class_labels(layer, np.array(info.label_range), classes)


def _check_values(layer: Attention, sources: Sequence[Layer]) -> None:
    """Raise UserError where the third source of three may be values, or give the lengths of the keys by its labels.

    Only an input layer leaves that open: other layers pass on the labels of their sources, and are values.
    """
    if not layer.has_values or layer.label_source is not None or not sources[2].is_input:
        return
    labels = sources[2]
    if labels.label_dtype is None or labels.label_dtype.kind == "f" or labels.label_shape != (layer.keys,):
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
