"""Plans the tiles in which a net computes a field of any size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from dsinga.base.errors import UserError
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.layer import Layer, Shape
from dsinga.layers.interface.region import Reach
from dsinga.net import NeuralNet
from dsinga.passes.predictor import row_bytes
from dsinga.training import check_params


class AxisField(NamedTuple):
    """The receptive field of a layer along one axis of a net's input.

    Point j of the feature depends on the input points from ``j·stride - before`` to ``j·stride + after``, if they
    exist. Shifting the input by a multiple of ``alignment`` points shifts the features of all layers by whole points.
    For a part of a field, the feature's first ``invalid_before`` and last ``invalid_after`` points differ from the
    whole field's, if the field continues there. ``periodic`` says that layers read points beyond an edge from the
    opposite edge.
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
        """The number of input points on which a point of the feature depends."""
        return self.before + self.after + 1


class _Tracked(NamedTuple):
    """The unrounded receptive field of a layer along one axis.

    ``first`` and ``last`` are the points of the feature that do not depend on the edges of the net's input.
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

    It is None if a point of the feature depends on the whole field, as of kInnerProduct or kGroupNorm, or if layers mix
    periodic and other padding.
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
    """Derive a layer's receptive field from its sources' fields; None if it needs whole fields."""
    known = [source for source in sources if source is not None]
    reaches = layer.reach()
    if reaches is None or len(known) < len(sources) or any(len(reaches) != len(source) for source in known):
        return None
    merged = [_merge([_through(source[axis], reach) for source in known]) for axis, reach in enumerate(reaches)]
    axes = tuple(axis for axis in merged if axis is not None)
    return axes if len(axes) == len(merged) else None


def _through(source: _Tracked, reach: Reach) -> _Tracked:
    stride = source.stride * Fraction(reach.step, reach.factor)
    # floor((j·step - before) / factor) lies up to (factor - 1) / factor below the quotient.
    before = source.before + source.stride * Fraction(reach.before + reach.factor - 1, reach.factor)
    after = source.after + source.stride * Fraction(reach.after, reach.factor)
    return _Tracked(
        stride, before, after, reach.first(source.first), reach.last(source.last),
        math.lcm(source.alignment, stride.numerator), source.paddings | ({reach.padding} - {""}),
    )  # fmt: skip


def _merge(axes: Sequence[_Tracked]) -> _Tracked | None:
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


TILE_BYTES = 1 << 26  # of a tile, at most, where its context is small: features of all layers, and COPIES
COPIES = 4  # of the input and of the prediction, that are made on the way
WHOLE_BYTES = 1 << 33  # of the features of all layers for a field that cannot be cut into tiles, at most
LEAST_CORE = 32  # points along an axis that a tile gives at least, if the axis has as many


class Tile(NamedTuple):
    """A part of a field along one axis, computed in one call of the net.

    The net gets ``size`` input points, the first at ``start``; it is negative if a tile on a periodic axis begins
    before the first point. The feature's points after the first ``skip`` are the points ``first`` to ``stop`` - 1 of
    the result.
    """

    start: int
    size: int
    skip: int
    first: int
    stop: int


@dataclass(frozen=True)
class AxisTiles:
    """The tiles along an axis: one size, each with ``core`` points of the result, except for the last.

    Attributes:
        margins: points of the result before and after the feature, which no tile gives.
        size: the points of a tile with its context; a whole axis is one tile.
        core: the points of the result that a tile gives.
        offset: how far before its first core point's number a tile begins in the input.
        periodic: whether tiles continue at the opposite edge.
    """

    length: int
    outputs: int
    margins: tuple[int, int]
    size: int
    core: int
    offset: int = 0
    periodic: bool = False

    @property
    def points(self) -> int:
        """The number of points of the result along this axis."""
        return sum(self.margins) + self.outputs

    def __len__(self) -> int:
        return -(-self.points // self.core)

    def __iter__(self) -> Iterator[Tile]:
        return (self.tile(index) for index in range(len(self)))

    def tile(self, index: int) -> Tile:
        """Return a tile by its number; a tile that covers only margins has no points."""
        before, end = self.margins[0], self.margins[0] + self.outputs
        low, high = index * self.core, (index + 1) * self.core
        first, stop = min(max(low, before), end), max(min(high, end), before)
        start = low - self.offset
        if not self.periodic:  # at an edge of the field a tile begins or ends there, as the net's padding does
            start = max(0, min(start, self.length - self.size))
        return Tile(start, self.size, first - before - start, first, stop)

    @property
    def chunks(self) -> tuple[int, ...]:
        """How many points of the result each tile covers along this axis."""
        return tuple(min(self.core, self.points - index * self.core) for index in range(len(self)))


def whole_axis(length: int, outputs: int, margins: tuple[int, int] = (0, 0)) -> AxisTiles:
    """Create the tiles of an axis that is not cut: a single one."""
    return AxisTiles(length, outputs, margins, length, outputs + sum(margins))


def cut_axis(field: AxisField, length: int, outputs: int, core: int, margins: tuple[int, int] = (0, 0)) -> AxisTiles:
    """Cut an axis of ``length`` points into tiles that each give ``core`` points of the result.

    All tiles have one size, and begin at multiples of the alignment. An axis no longer than a tile is one tile.
    """
    step = field.alignment
    assert field.stride == 1, "the feature has a point for each point of the input"
    assert core % step == 0, "tiles begin at multiples of the alignment"
    offset = -(-(field.invalid_before + margins[0]) // step) * step
    least = offset - margins[0] + core + field.invalid_after + length - outputs
    size = least + (length - least) % step
    if size >= length or (field.periodic and (length % step or length != outputs)):
        return whole_axis(length, outputs, margins)
    return AxisTiles(length, outputs, margins, size, core, offset, field.periodic)


MakeNet = Callable[[Shape], NeuralNet]  # of fields (H, W)


@dataclass(frozen=True)
class FieldTiles:
    """The tiles of a field, and the net that computes one of them."""

    axes: tuple[AxisTiles, ...]
    net: NeuralNet


def plan_tiles(
    make_net: MakeNet,
    params: Mapping[str, Any],
    layer: str,
    window: Shape,
    lengths: Shape,
    outputs: Shape,
    margins: Sequence[tuple[int, int]] = (),
) -> FieldTiles:
    """Plan the tiles in which a net computes ``layer`` for fields of ``lengths`` points by axis.

    The tiles follow from the net, the field's size and the window's, never from chunks. Together they give the bits of
    the whole field.

    ``window`` has the points of the training windows along each axis, ``lengths`` the net's input points with context,
    ``outputs`` the feature's points. ``margins`` are additional points of the result around the feature.
    """
    margins = margins or ((0, 0),) * len(lengths)
    trained = make_net(window)
    check_params(trained, params)
    field = receptive_field(trained, layer)
    if field is None or any(len(axes) != len(lengths) for axes in (field, trained.layer(layer).shape[2:])):
        return _one_tile(make_net, params, layer, window, lengths, outputs, margins)
    sample = tuple(map(_sample_length, field, window, lengths))
    net = _net_for(make_net, params, window, sample)
    field = receptive_field(net, layer)
    assert field is not None, "as of the windows"
    given = tuple(n - m + length for n, m, length in zip(net.layer(layer).shape[2:], sample, lengths, strict=True))
    if any(axis.stride != 1 for axis in field) or given != outputs:
        raise _misfit(layer, given, lengths, outputs, field)
    channels = net.layer(net.inputs[0]).shape[1] + net.layer(layer).shape[1]
    bytes_per_point = row_bytes(net) / math.prod(sample) + 4 * COPIES * channels
    axes = _cut(field, lengths, outputs, margins, bytes_per_point)
    tile = tuple(axis.size for axis in axes)
    return FieldTiles(axes, net if tile == sample else make_net(tile))


def _one_tile(
    make_net: MakeNet,
    params: Mapping[str, Any],
    layer: str,
    window: Shape,
    lengths: Shape,
    outputs: Shape,
    margins: Sequence[tuple[int, int]],
) -> FieldTiles:
    net = _net_for(make_net, params, window, lengths)
    if (given := net.layer(layer).shape[2:]) != outputs:
        raise _misfit(layer, given, lengths, outputs, None)
    if (size := row_bytes(net)) > WHOLE_BYTES:
        whole = next(node.layer.name for node in net.nodes if not node.layer.is_input and node.layer.reach() is None)
        raise UserError(
            f"layer {whole!r} needs the whole field of {shape_text(lengths)} points at once, so that the features of "
            f"all layers take {size / 2**30:.1f} GiB; predict parts of the dataset, or use a net of layers that look "
            "at neighbouring points only"
        )
    return FieldTiles(tuple(map(whole_axis, lengths, outputs, margins)), net)


def _sample_length(axis: AxisField, window: int, length: int) -> int:
    """Return a small length that every layer divides and pads as ``length``; at most ``length``."""
    least = max(window, axis.size)
    return min(length, least + (length - least) % axis.alignment)


def _net_for(make_net: MakeNet, params: Mapping[str, Any], window: Shape, size: Shape) -> NeuralNet:
    try:
        net = make_net(size)
        check_params(net, params)
    except UserError as error:
        raise UserError(
            f"the net takes windows of {shape_text(window)} points, but not fields of {shape_text(size)}: {error}"
        ) from error
    return net


def _misfit(layer: str, given: Shape, lengths: Shape, outputs: Shape, field: tuple[AxisField, ...] | None) -> UserError:
    strides = () if field is None else tuple(axis.stride for axis in field)
    if any(stride != 1 for stride in strides):
        ratio = " x ".join(map(str, strides))
        return UserError(f"layer {layer!r} gives a point for each {ratio} points of its field; give one for each point")
    return UserError(
        f"layer {layer!r} gives {shape_text(given) if given else 'no'} points for fields of {shape_text(lengths)}, but "
        f"the targets have {shape_text(outputs)}; name the layer whose feature is the prediction"
    )


def _cut(
    field: tuple[AxisField, ...],
    lengths: Shape,
    outputs: Shape,
    margins: Sequence[tuple[int, int]],
    bytes_per_point: float,
) -> tuple[AxisTiles, ...]:
    """Cut a field into the largest tiles within TILE_BYTES; each has at least LEAST_CORE points, or the context."""
    core = 1
    while core < max(axis + sum(margin) for axis, margin in zip(lengths, margins, strict=True)):
        core *= 2
    while True:
        axes = tuple(
            cut_axis(axis, length, output, -(-core // axis.alignment) * axis.alignment, margin)
            for axis, length, output, margin in zip(field, lengths, outputs, margins, strict=True)
        )
        least = max(LEAST_CORE, *(axis.size for axis in field))
        if bytes_per_point * math.prod(axis.size for axis in axes) <= TILE_BYTES or core <= least:
            return axes
        core //= 2
