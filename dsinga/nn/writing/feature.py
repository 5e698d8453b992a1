"""Describes the feature of a layer while it is written into a job, and the interface of layers that can be written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from dsinga.base.errors import UserError
from dsinga.layers.interface.layer import Shape


class Feature(NamedTuple):
    """The output of a layer of a job that is being written.

    Attributes:
        layer: the name of the layer.
        shape: the shape of one row of the feature, None where it is not known.
        flat: whether layers above take each row as a vector, though the layer computes more axes.
        before: the feature whose softmax or sigmoid this is, which losses take in its place.
        parts: the features of the parts, where the layer cuts its source in parts.
        is_input: whether it is that of an input layer, whose records can still be normalised.
        records: the name of the input layer whose records it is, normalised or mirrored perhaps, "" for others.
        label_shape: the shape of a row's label of an input layer, None where it is not known.
        any_length: whether it is an input of codes that says no number of steps, whose sequences may end before.
        channels_last: whether it comes from images that have their channels last in the records.
        lengths: the feature of a layer whose labels say where sequences end, None where all have all steps.
    """

    layer: str
    shape: Shape | None
    flat: bool = False
    before: Feature | None = None
    parts: tuple[Feature, ...] = ()
    is_input: bool = False
    records: str = ""
    label_shape: Shape | None = None
    any_length: bool = False
    channels_last: bool = False
    lengths: Feature | None = None


class ChannelsLast(UserError):
    """The error of an image layer whose records have their channels last; ``source`` is the name of the input."""

    source = ""


class Writable(Protocol):
    """A layer that can be written into a job; see :class:`dsinga.nn.writing.symbol.LayerBuilder`."""

    kind: str
    name: str | None
    settings: Mapping[str, Any]
    trainable: bool
    write: Callable[[Any], Feature]


def row_shape(feature: Feature) -> Shape | None:
    """Return the shape of a row as the next layers see it: one axis if the feature is flat."""
    shape = feature.shape
    return (math.prod(shape),) if shape is not None and feature.flat else shape


def axis_of(feature: Feature, axis: int, rows: Shape) -> int:
    """Return the index of an axis of a feature, where the batch is axis 0; channels may be last in the user's count."""
    axes = [*range(len(rows) + 1)]
    return (axes[:1] + axes[2:] + axes[1:2] if feature.channels_last and len(axes) in (4, 5) else axes)[
        axis % len(axes)
    ]


def batch_shape(rows: Shape) -> str:
    """Return the shape of a batch of rows, for messages: "(batch, 8)"."""
    return f"(batch, {', '.join(map(str, rows))})"
