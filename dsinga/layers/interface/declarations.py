"""What a layer class declares: its params, axes of sources, labels, and how workers can cut it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import numpy as np

from dsinga.ops.types import Shape, Shaped


@dataclass(frozen=True)
class ParamSpec:
    """The declaration of a layer's param: role, shape, and how it is cut, initialised and updated.

    Attributes:
        role: "weight", "bias", ...; its name if the job gives none.
        cut_axis: axis that is cut with the layer's features; None for a replicated param.
        trainable: False for lasting state, such as running means. Its new value replaces the old one.
        initial: number or broadcastable array that fills it if the job has no ``init``.
        by_rows: whether it is state (B, ...) with an entry for each row of the batch, such as a carried hidden state.
            It exists in training only.
        sparse: whether its gradient may be a :class:`dsinga.ops.SparseRows`. Then only these rows are sent and updated.
        static: whether no step changes it, like ``static`` of a job's param.
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
    """Which part of a layer is computed in bfloat16, in a job with the precision kBF16."""

    kNothing = 0  # it gets its sources in float32, and rounds no factors of products
    kProducts = 1  # its products round their factors; its sources and its feature are float32
    kFeatures = 2  # it takes features and gradients in bfloat16, too; the gradient for a source has its dtype


class SourceKind(Enum):
    """How a layer reads its sources: rows, or sequences (B, T, ...) step by step.

    Labels of steps are (B, T) int64, -1 after the end. The feature of a step after the end and its gradient are 0. A
    layer that needs lengths reads these labels from an optional last source; without it all sequences have length T.

    :class:`dsinga.layers.sequences.timedistributed.TimeDistributed` applies a layer of one step to sequences. In an
    unrolled net, each layer is made once for each step, ``conf.unroll_index``, as in SINGA.
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
        """Whether the layer flattens rows itself, so that an nn.Flatten before it adds no layer."""
        return self in (SourceKind.kVectors, SourceKind.kAnyShape)


@dataclass(frozen=True)
class Keeps:
    """The declaration of what a layer's gradient reads of its forward pass; training frees the rest.

    Attributes:
        sources: how many sources it reads, from the first; None for all. It gets the others as
            :class:`dsinga.ops.types.Shaped`.
        feature: whether it reads ``output.feature``, which is None otherwise.
    """

    sources: int | None = None
    feature: bool = True

    def of(self, sources: Sequence[Any]) -> list[Any]:
        """Return the sources that are kept, and the shapes and dtypes of the others."""
        kept = len(sources) if self.sources is None else self.sources
        freed = (Shaped(x.shape, x.dtype, x.flags.c_contiguous) if hasattr(x, "flags") else x for x in sources[kept:])
        return [*sources[:kept], *freed]


@dataclass(frozen=True)
class Labels:
    """The declaration of the labels that a layer accepts in place of a source's feature; a net refuses others.

    Attributes:
        per: "row" for labels (B,), "step" for (B, T); None for any.
        floats: whether labels may be float32.
        shares: whether a share for each class, (B, K) float32, may replace a class.
        any_shape: whether labels may have any shape.
        of_scores: whether labels are classes of the first source's scores, so that ``nn`` leaves out a softmax.
        per_point: whether there is a label for each point of a field.
    """

    source: int | None = None
    per: Literal["row", "step"] | None = None
    floats: bool = False
    shares: bool = False
    any_shape: bool = False
    of_scores: bool = False
    per_point: bool = False

    def layer_of(self, srclayers: Sequence[str]) -> str:
        """Return the name of the layer that gives the labels, or "" if ``srclayers`` lack it."""
        return "" if self.source is None or self.source >= len(srclayers) else srclayers[self.source]


@dataclass(frozen=True)
class LabelFormat:
    """The shape and dtype of the labels that a layer passes to later layers.

    Attributes:
        shape: shape of a row's label: () for one number, (K,) for several, (T,) for sequences.
        dtype: int64 or float32; None without labels, or for the sources' dtype.
        names: names of the labels 0, 1, ..., if known.
    """

    shape: Shape = ()
    dtype: Any = None
    names: tuple[str, ...] = ()


class Connection(Enum):
    """Which columns of its sources a part of a layer needs if workers cut it by features (SINGA's name)."""

    kOneToOne = 0  # columns of the feature need the same columns of every source
    kOneToAll = 1  # columns of the feature need all columns of every source


@dataclass(frozen=True)
class Cut:
    """The declaration of how workers can divide a layer: by features (dimension 1), by space, or only by rows.

    Attributes:
        connection: what a part needs of the sources; None if the layer cannot be cut by features.
        axis: axis of the features, 2 for sequences (B, T, n).
        groups: number of equal groups of features that a cut keeps whole, such as heads of kAttention; 0 for any cut.
        whole_because: if not empty, why one worker must compute all rows.
        width: setting, if any, with the number of features, which a part changes.
        by_space: whether the layer can be cut along the axes after the channels.
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
    "keeps": (Keeps, "keeps = Keeps(feature=False)"),
}


def fault_of(owner: Any) -> str:
    """Check the declarations of a layer or its class; return what is wrong, or ""."""
    for name, (kind, example) in DECLARED.items():
        if not isinstance(value := getattr(owner, name), kind):
            return f"sets {name} to {value!r}; write {example}"
    return ""
