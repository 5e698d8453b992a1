"""How a net computes a field of any size: whole, or in tiles of a size that follows from the net and the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsinga.base.errors import UserError
from dsinga.layers.interface.layer import Shape, as_text
from dsinga.net import NeuralNet
from dsinga.net.receptive_field import AxisField, receptive_field
from dsinga.net.tiles import AxisTiles, cut_axis, whole_axis
from dsinga.passes.predictor import row_bytes
from dsinga.training import check_params

TILE_BYTES = 1 << 26  # of a tile, at most, where its context is small: features of all layers, and COPIES
COPIES = 4  # of the input and of the prediction, that are made on the way
WHOLE_BYTES = 1 << 33  # of the features of all layers for a field that cannot be cut into tiles, at most
LEAST_CORE = 32  # points along an axis that a tile gives at least, if the axis has as many

MakeNet = Callable[[Shape], NeuralNet]  # of fields (H, W)


@dataclass(frozen=True)
class FieldTiles:
    """The tiles of a field, and the net that computes one of them.

    Attributes:
        axes: the tiles along each axis.
        net: the net for a batch of tiles.
    """

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
    """Return the tiles in which a net computes ``layer`` for fields of ``lengths`` points along each axis.

    The tiles follow from the net, the field's size and the window's, never from chunks. What they give together are the
    bits of the whole field. A net with a layer that needs whole fields has a single tile.

    Args:
        make_net: returns the net for fields (H, W), a batch of one row.
        params: the params of the net, by name.
        layer: the name of the layer whose feature is the prediction.
        window: the points along each axis of the windows that the net was trained on, which it takes for sure.
        lengths: the points of the field that the net gets, with its context.
        outputs: the points that the feature must have.
        margins: the points along each axis before and after those of the feature, which the result has besides.

    Raises:
        UserError: the net cannot take such fields, gives others than those expected, or takes too much memory.
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
    """Return the whole field as the only tile."""
    net = _net_for(make_net, params, window, lengths)
    if (given := net.layer(layer).shape[2:]) != outputs:
        raise _misfit(layer, given, lengths, outputs, None)
    if (size := row_bytes(net)) > WHOLE_BYTES:
        whole = next(node.layer.name for node in net.nodes if not node.layer.is_input and node.layer.reach() is None)
        raise UserError(
            f"layer {whole!r} needs the whole field of {as_text(lengths)} points at once, so that the features of all "
            f"layers take {size / 2**30:.1f} GiB; predict parts of the dataset, or use a net of layers that look at "
            "neighbouring points only"
        )
    return FieldTiles(tuple(map(whole_axis, lengths, outputs, margins)), net)


def _sample_length(axis: AxisField, window: int, length: int) -> int:
    """Return a length that is divided and padded as ``length`` by every layer, and small where that is large."""
    least = max(window, axis.size)
    return min(length, least + (length - least) % axis.alignment)


def _net_for(make_net: MakeNet, params: Mapping[str, Any], window: Shape, size: Shape) -> NeuralNet:
    """Return the net for fields of ``size``; raise UserError for a net that takes those of ``window`` only."""
    try:
        net = make_net(size)
        check_params(net, params)
    except UserError as error:
        raise UserError(
            f"the net takes windows of {as_text(window)} points, but not fields of {as_text(size)}: {error}"
        ) from error
    return net


def _misfit(layer: str, given: Shape, lengths: Shape, outputs: Shape, field: tuple[AxisField, ...] | None) -> UserError:
    strides = () if field is None else tuple(axis.stride for axis in field)
    if any(stride != 1 for stride in strides):
        ratio = " x ".join(map(str, strides))
        return UserError(f"layer {layer!r} gives a point for each {ratio} points of its field; give one for each point")
    return UserError(
        f"layer {layer!r} gives {as_text(given) if given else 'no'} points for fields of {as_text(lengths)}, but the "
        f"targets have {as_text(outputs)}; name the layer whose feature is the prediction"
    )


def _cut(
    field: tuple[AxisField, ...],
    lengths: Shape,
    outputs: Shape,
    margins: Sequence[tuple[int, int]],
    bytes_per_point: float,
) -> tuple[AxisTiles, ...]:
    """Return the largest tiles whose features take TILE_BYTES or less; at least LEAST_CORE points, or the context."""
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
