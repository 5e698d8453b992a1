"""Label layers, and checks of labels for the layers that compare with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import LayerConf
from dsinga.layers.base import Arrays, Layer, Output, Shape
from dsinga.layers.context import Context, RecordInfo
from dsinga.registry import register


@register("layer", "kLabel")
class Label(Layer):
    """The labels of the source, as labels and as a float32 feature (B,), for instance as target of a kEuclideanLoss."""

    source_count: ClassVar[int | None] = 1
    label_source: int | None = 0
    makes_labels: ClassVar[bool] = True
    gathered_because = "has one label a row"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0][:1]

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = required_labels(self, sources[0])
        if labels.ndim != 1:
            raise self.fail(
                f"makes one label a row, but {self.source_name(0)} has one for each of {labels.shape[1]} steps; leave "
                f"it out: other layers take labels from {self.source_name(0)} itself"
            )
        return Output(ctx.ops.asarray(labels.astype(np.float32)), labels=labels)


class LabelsAsFeature(Layer):
    """The labels of the source as an int64 feature, which partitioning inserts to send labels over a bridge.

    ``source_shapes`` has the shape of the labels: (B,), or (B, T) of sequences.
    """

    source_count: ClassVar[int | None] = 1
    label_source: int | None = 0
    gathered_because = "has one label a row"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(required_labels(self, sources[0]))


class FeatureAsLabels(Layer):
    """The int64 feature of the source as labels: undoes :class:`LabelsAsFeature` after the bridge."""

    source_count: ClassVar[int | None] = 1
    makes_labels: ClassVar[bool] = True
    gathered_because = "has one label a row"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        self.label_shape = self.shape[1:]

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(sources[0], labels=sources[0])


def required_labels(layer: Layer, labels: Any) -> np.ndarray:
    """Return ``labels`` as an array; for None, raise UserError, naming the source that has no labels."""
    if labels is None:
        assert layer.label_source is not None
        source = layer.source_name(layer.label_source)
        raise layer.fail(f"{source} has no labels; read a store with labels, or leave this layer out of the phase")
    return np.asarray(labels)  # labels are in host memory with every backend


def class_labels(layer: Layer, labels: Any, classes: int) -> np.ndarray:
    """Return ``labels`` (B,) as class indices; raise UserError for one outside [0, ``classes``), and for sequences."""
    labels = required_labels(layer, labels)
    if labels.ndim != 1:
        raise layer.fail(
            f"takes one label a row, but gets one for each of {labels.shape[1]} steps; give it per_step: true, or "
            f"the net unroll_len: {labels.shape[1]} and no shift"
        )
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        first = int(labels[wrong][0])
        raise layer.fail(
            f"label {first} is none of its {classes} classes (0 to {classes - 1}); give the layer below as many "
            "outputs as the store has classes, or mend the store"
        )
    return labels


def sequence_labels(layer: Layer, labels: Any, steps: int, classes: int) -> np.ndarray:
    """Return ``labels`` (B, ``steps``) of sequences, in [0, ``classes``) at each step and -1 after the end.

    Raises UserError for the first row that has other labels, a -1 before a label, or no step at all.
    """
    labels = required_labels(layer, labels)
    if labels.ndim != 2 or labels.shape[1] != steps:
        raise layer.fail(f"takes a label for each of {steps} steps, but gets labels of shape {labels.shape}")
    real = labels >= 0
    wrong = (labels < -1) | (labels >= classes)
    faults = (
        (wrong.any(axis=1), f"a label that is none of its {classes} classes (0 to {classes - 1}, or -1 after the end)"),
        ((real[:, 1:] > real[:, :-1]).any(axis=1), "a label -1 before its last step; -1 is for what follows the end"),
        (~real.any(axis=1), "no step at all, but -1 throughout; leave sequences of length 0 out of the store"),
    )
    for rows, fault in faults:
        if rows.any():
            row = int(np.argmax(rows))
            shown = labels[row][wrong[row]][:1] if wrong[row].any() else labels[row][:5]
            raise layer.fail(f"row {row} of the batch has {fault}: {', '.join(map(str, shown))}")
    return labels


def check_topk(layer: Layer, topk: int, classes: int, conf: Any) -> int:
    """Return ``topk``; raise UserError unless it is in [1, ``classes``]."""
    if not 1 <= topk <= classes:
        raise layer.fail(f"topk is {topk}, but there are {classes} classes; give 1 to {classes}", conf, "topk")
    return topk
