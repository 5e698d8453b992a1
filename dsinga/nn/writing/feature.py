"""The output of a layer that is being written into a job, and the interface of such layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from dsinga.base.errors import UserError
from dsinga.layers.interface.layer import Shape


class Feature(NamedTuple):
    """The output of a layer in a job that is being written, with what later layers must know of it.

    Attributes:
        shape: shape of one row of the feature, None if unknown.
        flat: whether later layers read each row as a vector, though it has more axes.
        before: feature before a softmax or sigmoid, for losses.
        parts: features of the parts that the layer cuts its source into.
        is_input: whether it comes from an input layer, which can still normalise its records.
        records: name of the input layer if it has the records, perhaps normalised or mirrored; else "".
        label_shape: shape of a row's label of an input layer, None if unknown.
        any_length: whether it is an input of codes with any number of steps.
        lengths: feature with labels that end sequences, None if all have all steps.
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
    """Error of an image layer for records with channels last; ``source`` is the input's name."""

    source = ""


class Writable(Protocol):
    """A layer that can be written into a job, such as :class:`dsinga.nn.writing.symbol.LayerBuilder`."""

    kind: str
    name: str | None
    settings: Mapping[str, Any]
    trainable: bool
    write: Callable[[Any], Feature]


def row_shape(feature: Feature) -> Shape | None:
    """Return the shape of a row as later layers see it: one axis if the feature is flat."""
    shape = feature.shape
    return (math.prod(shape),) if shape is not None and feature.flat else shape


def with_unique_names(features: Sequence[Feature]) -> list[Feature]:
    """Number equally named inputs: the second input "data" becomes "data_1", as in the job."""
    names = list({id(feature): feature.layer for feature in features}.items())
    numbers = {key: [name for _, name in names[:place]].count(layer) for place, (key, layer) in enumerate(names)}
    return [
        each._replace(layer=f"{each.layer}_{numbers[id(each)]}") if numbers[id(each)] else each for each in features
    ]


def axis_of(feature: Feature, axis: int, rows: Shape) -> int:
    """Convert a user's axis to an index, with the batch at 0; in the user's count, channels may be last."""
    axes = [*range(len(rows) + 1)]
    return (axes[:1] + axes[2:] + axes[1:2] if feature.channels_last and len(axes) in (4, 5) else axes)[
        axis % len(axes)
    ]


def batch_shape(rows: Shape) -> str:
    """Return the shape of a batch as text for messages: "(batch, 8)"."""
    return f"(batch, {', '.join(map(str, rows))})"
