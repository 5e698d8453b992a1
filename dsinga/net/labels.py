"""Finds the shape and dtype of the labels that each layer gets, before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dsinga.base.registry import imported
from dsinga.layers.interface.context import RecordInfo
from dsinga.layers.interface.declarations import LabelFormat
from dsinga.layers.interface.layer import Layer, Shape
from dsinga.layers.records.label import (
    check_one_label,
    check_shares,
    check_step_labels,
    class_labels,
    float_labels_fault,
)


def makes_labels(layer: Layer) -> bool:
    """Whether a layer changes labels, so that later layers get others than its sources had."""
    if layer.is_input:
        return layer.label_format.dtype is not None
    known = imported("layer")  # a net has layers of these types only where they are imported
    passing = isinstance(layer, tuple(known[name] for name in ("kSlice", "kConcate") if name in known))
    overridden = type(layer).hand_on_labels is not Layer.hand_on_labels and not passing
    return layer.new_labels is not None or overridden


def labels_shape(layer: Layer) -> Shape:
    """Return the shape of a layer's labels for a batch: (B, ...), or (B,) without labels."""
    return (layer.shape[0], *layer.label_format.shape)


def describe_labels(layer: Layer, sources: Sequence[Layer], info: RecordInfo | None) -> None:
    """Set the shape, dtype and names of a layer's labels (``label_format``), from its records or its source."""
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
    """Raise UserError if a layer gets labels of a kind that it does not support.

    Examples are floats instead of classes, several labels instead of one, and labels beyond a layer's classes.
    """
    layer.check_labels(sources)
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
    classes = getattr(layer, "classes", None)
    info = records.get(layer.conf.srclayers[labels.source])
    if classes is not None and info and info.label_range:
        class_labels(layer, np.array(info.label_range), classes)
