"""The receptive field of a layer: which points of a field each point of its feature depends on, along each axis.

A field is one row (C, H, W) of the net's input, or one with another number of axes after the channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from dsinga.layers.interface.layer import Layer
from dsinga.layers.interface.region import Reach
from dsinga.net.neuralnet import NeuralNet


class AxisField(NamedTuple):
    """The receptive field of a layer along one axis of a net's input.

    Point j of the feature depends on the points from ``j·stride - before`` to ``j·stride + after`` of the input, as far
    as they exist. A shift of the input by ``alignment`` points, or a multiple, shifts the features of all layers by
    whole points. In a feature of a part of a field, its first ``invalid_before`` points differ from those of the field
    where the field has points before the part, and its last ``invalid_after`` likewise. ``periodic`` says that layers
    take points beyond an edge from the opposite one.
    """

    stride: Fraction
    before: int
    after: int
    alignment: int
    invalid_before: int
    invalid_after: int
    periodic: bool = False

    @property
    def size(self) -> int:
        """The number of points of the input on which a point of the feature depends."""
        return self.before + self.after + 1


class _Tracked(NamedTuple):
    """What is known of a layer's feature along one axis: an :class:`AxisField` before it is rounded.

    ``first`` and ``last`` are the points of the feature of the net's own input that do not depend on its edges.
    """

    stride: Fraction = Fraction(1)
    before: Fraction = Fraction(0)
    after: Fraction = Fraction(0)
    first: int = 0
    last: int = 0
    alignment: int = 1
    paddings: frozenset[str] = frozenset()


def receptive_field(net: NeuralNet, layer: str) -> tuple[AxisField, ...] | None:
    """Return the receptive field of ``layer`` along each axis after the channels of the net's input.

    It is None where a point of the feature depends on the whole field, because of a layer such as kInnerProduct or
    kGroupNorm, or where layers pad one axis by both edges and opposite edges. ``layer`` is that of a net with one input
    layer. Raises UserError for an unknown layer.
    """
    (name,) = net.inputs
    end = net.position(layer)
    sizes = net.layer(name).shape[2:]
    tracked: list[tuple[_Tracked, ...] | None] = []
    for node in net.nodes[: end + 1]:
        if node.layer.name == name:
            tracked.append(tuple(_Tracked(last=size - 1) for size in sizes))
            continue
        sources = [tracked[source] for source in node.sources]
        tracked.append(_follow(node.layer, sources) if sources else None)
    axes = tracked[end]
    if axes is None or not axes or any(len(axis.paddings) > 1 for axis in axes):
        return None
    lengths = net.layer(layer).shape[2:]
    return tuple(_rounded(axis, length) for axis, length in zip(axes, lengths, strict=True))


def _follow(layer: Layer, sources: Sequence[tuple[_Tracked, ...] | None]) -> tuple[_Tracked, ...] | None:
    """Return what is known of the feature of a layer, given that of its sources; None where it needs whole fields."""
    known = [source for source in sources if source is not None]
    reaches = layer.reach()
    if reaches is None or len(known) < len(sources) or any(len(reaches) != len(source) for source in known):
        return None
    merged = [_merge([_through(source[axis], reach) for source in known]) for axis, reach in enumerate(reaches)]
    axes = tuple(axis for axis in merged if axis is not None)
    return axes if len(axes) == len(merged) else None


def _through(source: _Tracked, reach: Reach) -> _Tracked:
    """Return what is known of a layer's feature along an axis, from one source."""
    stride = source.stride * Fraction(reach.step, reach.factor)
    # floor((j·step - before) / factor) lies up to (factor - 1) / factor below the quotient.
    before = source.before + source.stride * Fraction(reach.before + reach.factor - 1, reach.factor)
    after = source.after + source.stride * Fraction(reach.after, reach.factor)
    return _Tracked(
        stride, before, after, reach.first(source.first), reach.last(source.last),
        math.lcm(source.alignment, stride.numerator), source.paddings | ({reach.padding} - {""}),
    )  # fmt: skip


def _merge(axes: Sequence[_Tracked]) -> _Tracked | None:
    """Return what is known of a feature of several sources; None where these have different strides."""
    if len({axis.stride for axis in axes}) > 1:
        return None
    return _Tracked(
        axes[0].stride,
        max(axis.before for axis in axes),
        max(axis.after for axis in axes),
        max(axis.first for axis in axes),
        min(axis.last for axis in axes),
        math.lcm(*(axis.alignment for axis in axes)),
        frozenset().union(*(axis.paddings for axis in axes)),
    )


def _rounded(axis: _Tracked, length: int) -> AxisField:
    return AxisField(
        axis.stride,
        math.floor(axis.before),
        math.floor(axis.after),
        axis.alignment,
        axis.first,
        max(0, length - 1 - axis.last),
        "periodic" in axis.paddings,
    )
