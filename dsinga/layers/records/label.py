"""kLabel, which makes labels the targets of losses, and checks of labels for losses and metrics."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.arrays import warn_of_rounding
from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Natural
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, LabelFormat, Labels
from dsinga.layers.interface.layer import Array, Arrays, Layer, Output, Shape
from dsinga.layers.interface.region import Region
from dsinga.ops.recorded_array import host_array
from dsinga.ops.types import NotCapturable, is_on_device

CHECKED = "the host checks the labels"


@register("layer", kLabel=191)
class Label(Layer):
    """Makes the source's labels a float32 feature, such as the target of a squared error: (B,), (B, K) or (B, T).

    The feature is the target of a kEuclideanLoss or kSigmoidCrossEntropyLoss: numbers to predict, or a column for each
    of K yes-or-no questions. After the end of a sequence the feature is -1, too. ``first`` and ``count`` select
    channels of fields (B, C, *space).
    """

    class Conf(Settings):
        """Settings of kLabel."""

        first: Natural = setting(0, "the first channel")
        count: Natural = setting(0, "the number of channels; 0 for all")
        weighted: bool = setting(False, "whether the last channel of the labels has weights and is included")

    settings: Conf
    source_count = 1
    labels = Labels(source=0, floats=True)
    new_labels = LabelFormat()
    cut = Cut(gathered_because="has the labels of whole rows", by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        if self.settings.count:
            self.shape = self._shape_of_part(*self.shape)
        self.new_labels = LabelFormat(self.shape[1:])
        if self.shape[1:] and conf.unroll_index is not None:
            raise self.fail(
                f"makes one label a row in a net that is unrolled, but {self.source_name(0)} has {self.shape[1]} of "
                f"them; leave it out: other layers take labels from {self.source_name(0)} itself"
            )

    def _shape_of_part(self, rows: int, channels: int = 0, *space: int) -> Shape:
        settings = self.settings
        if settings.first + settings.count + settings.weighted > channels:
            text = f"takes channels up to {settings.first + settings.count} of labels, but {self.source_name(0)} gives "
            raise self.fail(f"{text}{shape_text(self.source_shapes[0])}", settings, "count")
        return (rows, settings.count + settings.weighted, *space)

    def _part(self, labels: Array, ctx: Context) -> Array:
        """Return the channels of labels that the layer selects."""
        settings = self.settings
        part = labels[:, settings.first : settings.first + settings.count]
        if not settings.weighted:
            return part
        return (ctx.ops.xp if is_on_device(labels) else np).concatenate([part, labels[:, -1:]], axis=1)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = required_labels(self, sources[0])
        shape = self.source_shapes[0][1:]
        if labels.shape[1:] not in (shape, self.shape[1:]):  # perhaps of the region alone
            raise self.fail(
                f"gets labels of shape {labels.shape} from {self.source_name(0)}, not "
                f"{(len(labels), *shape)}; set new_labels in the layer that makes these labels"
            )
        labels = self._part(labels, ctx) if self.settings.count else labels
        feature = labels if self.region is None else self.region.take(labels)
        if not is_on_device(feature):
            warn_of_rounding(feature, ("labels", self.conf.name), lambda place: f"{self.source_name(0)}, as targets,")
        return Output(ctx.ops.asarray(feature.astype(np.float32)), labels=labels)

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        part = copy.copy(self)
        part.shape = region.part(self.shape)
        return part


def required_labels(layer: Layer, labels: Any) -> np.ndarray:
    """Return a source's labels as an array. Raises UserError, with the source's name, if it has none."""
    if labels is None:
        assert layer.labels.source is not None
        source = layer.source_name(layer.labels.source)
        raise layer.fail(f"{source} has no labels; read a store with labels, or leave this layer out of the phase")
    # Labels are in host memory with every backend, except where a pass is recorded.
    return labels if is_on_device(labels) else host_array(labels)


def integer_labels(layer: Layer, labels: Any) -> np.ndarray:
    """Return a source's labels as integers. Raises UserError if it has none or floats."""
    labels = required_labels(layer, labels)
    if labels.dtype.kind == "f":
        raise float_labels_fault(layer)
    return labels


def float_labels_fault(layer: Layer) -> Exception:
    """Return the error for a layer that does not accept float labels; it names layers that do."""
    assert layer.labels.source is not None
    source = layer.source_name(layer.labels.source)
    return layer.fail(
        f"takes labels that are classes, whole numbers, but those of {source} are float32; to predict numbers, use "
        f"kEuclideanLoss with a kLabel layer on {source} as its second source, else store the labels as integers"
    )


def check_one_label(layer: Layer, shape: Shape) -> None:
    """Raise UserError unless labels of ``shape`` are one a row, (B,)."""
    if len(shape) != 1:
        raise layer.fail(
            f"takes one label a row, but gets {shape_text(shape[1:])}; if these are the steps of a sequence, give it "
            f"per_step: true, or the net unroll_len: {shape[1]} and no shift; if they are columns of a matrix, use "
            "kSigmoidCrossEntropyLoss or kEuclideanLoss with a kLabel layer as its second source"
        )


def check_shares(layer: Layer, shape: Shape, classes: int) -> None:
    """Raise UserError unless labels of ``shape`` are a probability for each class, (B, ``classes``)."""
    if shape[1:] != (classes,):
        assert layer.labels.source is not None
        raise layer.fail(
            f"has {classes} classes, but {layer.source_name(layer.labels.source)} gives labels of "
            f"{shape_text(shape[1:])} numbers a row; if they are mixed there, by kMixup or kCutMix, give these "
            f"classes: {classes}"
        )


def check_step_labels(layer: Layer, shape: Shape, steps: int) -> None:
    """Raise UserError unless labels of ``shape`` are one a step, (B, ``steps``)."""
    if shape[1:] != (steps,):
        raise layer.fail(f"takes a label for each of {steps} steps, but gets labels of shape {shape}")


def class_labels(layer: Layer, labels: Any, classes: int, checked_later: bool = False) -> Any:
    """Check labels (B,) and return them as class indices. Raises UserError for a label outside [0, ``classes``)."""
    labels = integer_labels(layer, labels)
    check_one_label(layer, labels.shape)
    if is_on_device(labels):
        if not checked_later:
            raise NotCapturable(CHECKED)
        return labels
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        first = int(labels[wrong][0])
        remedy = "give the layer below as many outputs as there are classes, or correct the labels"
        if labels.min() == 1 <= labels.max() == classes > 1:
            remedy = "labels begin at 0: give y - 1"
        elif classes == 2 and not ((labels != -1) & (labels != 1)).any():
            remedy = "labels begin at 0: give (y + 1) // 2"
        if classes == 1:
            remedy = 'one output answers yes or no: write loss="binary_crossentropy", in a job kSigmoidCrossEntropyLoss'
        raise layer.fail(f"label {first} is none of its {classes} classes (0 to {classes - 1}); {remedy}")
    return labels


def step_lengths(layer: Layer, labels: Any, steps: int, what: str = "") -> np.ndarray:
    """Return the lengths (B,) of sequences of at most ``steps`` steps, from labels that are -1 after the end."""
    assert layer.labels.source is not None
    labels, source = integer_labels(layer, labels), layer.source_name(layer.labels.source)
    if is_on_device(labels):
        raise NotCapturable("sequences have different lengths")
    if labels.shape[1:] != (steps,):
        raise layer.fail(
            f"takes the lengths of {what or f'sequences of {steps} steps'} from the labels of {source}, which gives "
            f"{shape_text(labels.shape[1:])} a row",
            field="srclayers",
        )
    return check_ends(layer, labels, source)


def check_ends(layer: Layer, codes: np.ndarray, source: str, end: int = -1) -> np.ndarray:
    """Return the length of each row of ``codes`` (B, T), which ends before -1. Raises UserError for steps after it."""
    real = codes >= 0
    after = (real[:, 1:] > real[:, :-1]).any(axis=1)
    if after.any():
        row = int(np.argmax(after))
        listed = ", ".join(map(str, np.where(real[row], codes[row], end)[:8]))
        raise layer.fail(
            f"row {row} that {source} gives has {end} before its last step: {listed}; {end} is for the steps after the "
            "end of a sequence"
        )
    return real.sum(axis=1)


def sequence_labels(layer: Layer, labels: Any, steps: int, classes: int) -> np.ndarray:
    """Check labels (B, ``steps``) of sequences: in [0, ``classes``) at each step and -1 after the end."""
    labels = integer_labels(layer, labels)
    check_step_labels(layer, labels.shape, steps)
    if is_on_device(labels):
        raise NotCapturable(CHECKED)
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
