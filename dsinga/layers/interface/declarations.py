"""The declarations of a layer class: its params, the axes of its sources, its labels, and its cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import numpy as np

from dsinga.ops.types import Shape


@dataclass(frozen=True)
class ParamSpec:
    """A param of a layer: its role, its shape, and how it is cut, filled and updated.

    ``role`` ("weight", "bias", ...) names the param when the job does not. ``cut_axis`` is the axis cut with the
    layer's dimension 1, None if the param is replicated. ``trainable`` is False for lasting state (running means):
    its new value is sent in place of a gradient, and replaces the old one. ``initial``, a number or an array that
    broadcasts, fills it if the job has no ``init``. ``static`` says that no step changes it, as ``static`` of a job's
    param does.

    ``sparse`` says that its gradient may be a :class:`dsinga.ops.SparseRows`: then only these rows are sent and
    updated. Where it must be added to a dense gradient, it is made dense.

    ``by_rows`` is for state (B, ...) with an entry for each row of the batch, such as the hidden state that a recurrent
    layer carries over to the next batch: a worker that computes some rows of the batch gets and returns these rows of
    the param. Such a param exists in training only: in other phases the layer is made without it.
    """

    role: str
    shape: Shape
    cut_axis: int | None = 0
    trainable: bool = True
    initial: float | np.ndarray = field(default=0.0, compare=False)
    by_rows: bool = False
    sparse: bool = False
    static: bool = False


class Bfloat16(Enum):
    """The part of a layer that is computed in bfloat16, in a job with the precision kBF16."""

    kNothing = 0  # it gets its sources in float32, and rounds no factors of products
    kProducts = 1  # its products round their factors; its sources and its feature are float32
    kFeatures = 2  # it takes features and gradients in bfloat16, too; the gradient for a source has its dtype


class SourceKind(Enum):
    """How a layer uses the axes of its sources after the batch axis.

    Sequences are (B, T, ...), batch first, so that rows mean the same as elsewhere; the labels of their steps are
    (B, T) int64, -1 for the steps after the end. The feature of a step after the end and its gradient are 0. A
    layer that needs lengths takes these labels from an optional last source; without it all sequences have length T.
    ``conf.unroll_len`` is T, None for all steps that the source has; of a source with more steps (kCharRNN gives T + 1)
    a layer takes those that it needs. Where a layer knows one step only, a
    :class:`dsinga.layers.sequences.timedistributed.TimeDistributed` applies it to sequences. Where a net must be
    unrolled, each layer is made once for each step, as by SINGA: the copy has its step in ``conf.unroll_index`` and the
    feature (B, ...) of that step; of a source that is not unrolled, such as (B, T + 1) characters, it takes its own
    step.
    """

    kShaped = 0  # it takes certain shapes, which it checks itself
    kVectors = 1  # it takes each row as a vector, whatever its axes: an nn.Flatten before it needs no layer
    kAnyShape = 2  # it takes rows of any shape, which is that of its feature, too; neither does it need an nn.Flatten
    kSequences = 3  # it computes all steps of sequences at once
    kRecurrent = 4  # likewise; the last source of a copy in an unrolled net is the feature (B, H) of the step before

    @property
    def over_steps(self) -> bool:
        """Whether the layer computes all steps of sequences at once."""
        return self in (SourceKind.kSequences, SourceKind.kRecurrent)

    @property
    def takes_vectors(self) -> bool:
        """Whether the layer flattens rows of any shape itself, so that an nn.Flatten before it writes no kReshape."""
        return self in (SourceKind.kVectors, SourceKind.kAnyShape)


@dataclass(frozen=True)
class Labels:
    """The labels that a layer reads: the labels of the source with the index ``source``, in place of its feature.

    The shape of this source is then that of the labels: (B,), (B, K), or (B, T) of sequences. ``per`` says of what the
    layer takes one label, "row", (B,), or "step", (B, T) for a feature (B, T, ...), None if it takes any of these
    shapes; ``floats`` whether the labels may be float32. A net refuses other labels. ``shares`` says that a layer which
    takes a class also takes a share for each of its classes, (B, K) float32. ``any_shape`` says that they may have any
    shape, which need not follow from that of the feature; ``of_scores`` that they are classes of scores, the first
    source, so that ``nn`` leaves out a softmax before; ``per_point`` that there is one for each point of a field.
    """

    source: int | None = None
    per: Literal["row", "step"] | None = None
    floats: bool = False
    shares: bool = False
    any_shape: bool = False
    of_scores: bool = False
    per_point: bool = False

    def layer_of(self, srclayers: Sequence[str]) -> str:
        """Return the name of the layer that gives the labels, the empty string if ``srclayers`` lack it."""
        return "" if self.source is None or self.source >= len(srclayers) else srclayers[self.source]


@dataclass(frozen=True)
class LabelFormat:
    """The labels that a layer gives to the layers after it.

    ``shape`` is that of the label of a row: () for one number, (K,) for several, (T,) for sequences. ``dtype`` is int64
    or float32, None where there are no labels; a layer that makes labels may leave it at None for the dtype of its
    sources' labels, or of its records'. ``names`` are the names of the labels 0, 1, ..., if known.
    """

    shape: Shape = ()
    dtype: Any = None
    names: tuple[str, ...] = ()


class Connection(Enum):
    """The columns (``Cut.axis``) of its sources that a layer needs for some columns of its feature (SINGA's name)."""

    kOneToOne = 0  # columns of the feature need the same columns of every source
    kOneToAll = 1  # columns of the feature need all columns of every source


@dataclass(frozen=True)
class Cut:
    """How a layer is cut over workers by features (dimension 1); by rows (dimension 0) it computes any of the batch.

    ``connection`` says what a part needs of the sources. Where it is None the layer is not cut by features,
    ``gathered_because`` says why, and each worker gathers the features of its rows. The features are those of ``axis``,
    2 for layers that compute sequences (B, T, n). A cut keeps ``groups`` equal groups of features whole, such as heads
    of kAttention; 0 for features that may be cut anywhere. ``width`` is the setting, if any, that has the number of
    features; in a part it has that of the part. ``whole_because``, where it is not empty, says why the layer cannot be
    cut by rows: one worker then computes it on all rows.

    ``by_space`` says that the layer can also be cut along the axes after the channels: points of the feature need the
    points of the sources that ``Layer.source_points`` names, the same points by default.
    """

    connection: Connection | None = None
    axis: int = 1
    groups: int = 0
    gathered_because: str = "does not say how it is cut along features"
    whole_because: str = ""
    width: str = ""
    by_space: bool = False


# The type of each declaration, and an example for messages.
DECLARED = {
    "source_kind": (SourceKind, "source_kind = SourceKind.kVectors"),
    "labels": (Labels, "labels = Labels(source=1)"),
    "new_labels": (LabelFormat | None, "new_labels = LabelFormat()"),
    "cut": (Cut, "cut = Cut(Connection.kOneToOne)"),
}


def fault_of(owner: Any) -> str:
    """Return the fault in the declarations of a layer, or of its class; the empty string if there is none."""
    for name, (kind, example) in DECLARED.items():
        if not isinstance(value := getattr(owner, name), kind):
            return f"sets {name} to {value!r}; write {example}"
    return ""
