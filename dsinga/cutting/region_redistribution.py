"""Redistributes features cut by space: each worker gets the points that it needs, its neighbours' included.

Every worker with a part of a feature has a box of it: some rows, some features, or a region of points. Every worker
that needs a part needs certain points along each axis (:class:`dsinga.cutting.point_runs.PointRun`). Points common to
both are sliced at the first worker, sent over a bridge, and joined at the second.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.cutting.partitioned import COPIED, LayerCut, Place, cut_regions
from dsinga.cutting.point_runs import PointRun, find_runs
from dsinga.cutting.redistribution import (
    GraphBuilder,
    NodeOutput,
    ShardedFeature,
    Sharding,
    add_bridge,
    connection_conf,
    redistribute,
    rows_at,
)
from dsinga.cutting.region_layers import Index, Piece, RegionJoin, RegionSlice, box_shape, padding_runs
from dsinga.job import LayerType
from dsinga.layers.interface.layer import Layer, Shape


class _Sent(NamedTuple):
    """A box that one worker sends to another: its place in the array, and the points that copy it."""

    source: int
    destination: int
    box: Index
    runs: tuple[PointRun, ...]


def redistribute_any(
    graph: GraphBuilder, feature: ShardedFeature, target: Sharding, purpose: str
) -> Mapping[int, NodeOutput]:
    """Add the layers that bring ``feature`` to the workers as ``target`` requires; return each worker's output.

    ``purpose`` names layers for points that only one layer needs.
    """
    replicated = feature.dim == COPIED and len(feature.outputs) > 1
    if feature.grid or target.grid or replicated:
        return _redistribute_boxes(graph, feature, target, purpose if target.needs else str(target))
    return redistribute(graph, feature, target)


def space_sharding(layer: Layer, cut: LayerCut, source: Shape) -> Sharding:
    """Return how a layer cut by space needs a source of the shape ``source`` distributed."""
    own = [
        [PointRun(0, stop - start, start) for start, stop, _ in region.ranges]
        for region in cut_regions(source, cut.dim, cut.grid)
    ]
    needs = [
        [
            find_runs(layer.source_points(axis, start, stop))
            for axis, (start, stop, _) in zip(region.axes, region.ranges, strict=True)
        ]
        for region in cut_regions(layer.field_shape, cut.dim, cut.grid)
    ]
    locations = tuple(range(math.prod(cut.grid)))
    if needs == [[(run,) for run in runs] for runs in own]:
        return Sharding(cut.dim, locations, cut.grid)
    return Sharding(cut.dim, locations, cut.grid, tuple(map(tuple, needs)), layer.source_fill)


def needed_shape(shape: Shape, target: Sharding, part: int) -> Shape:
    """Return the shape of the points that one part needs of a feature."""
    if not target.needs:
        return cut_regions(shape, target.dim, target.grid)[part].part(shape)
    sizes = [sum(run.length for run in runs) for runs in target.needs[part]]
    return (*shape[: target.dim], *sizes, *shape[target.dim + len(sizes) :])


def _redistribute_boxes(
    graph: GraphBuilder, feature: ShardedFeature, target: Sharding, purpose: str
) -> Mapping[int, NodeOutput]:
    axes = sorted({*_cut_axes(feature.dim, feature.grid), *_cut_axes(target.dim, target.grid)})
    parts = {location: part for part, location in enumerate(feature.outputs)}
    boxes = {
        location: _box(graph, feature.shape, feature.dim, feature.grid, part, axes) for location, part in parts.items()
    }
    needs = {
        location: _needs(graph, feature.shape, target, part, axes) for part, location in enumerate(target.locations)
    }
    sent = [piece for destination in target.locations for piece in _pieces(feature, boxes, needs, destination, axes)]
    arrived: dict[int, list[tuple[NodeOutput, Piece]]] = {destination: [] for destination in target.locations}
    numbers: dict[tuple[int, int], int] = {}
    for source, output in feature.outputs.items():
        own = [piece for piece in sent if piece.source == source]
        shape = _shape(feature.shape, boxes[source], axes)
        outputs = _slice(graph, feature, purpose, source, output, shape, own)
        for piece, sliced in zip(own, outputs, strict=True):
            piece_shape, received = box_shape(shape, piece.box), sliced
            if piece.destination != source:
                pair = source, piece.destination
                numbers[pair] = numbers.get(pair, -1) + 1
                key = f"{feature.name}:{purpose}@{source}-{piece.destination}" + "'" * numbers[pair]
                received = add_bridge(graph, feature, key, sliced, piece_shape, *pair)
            arrived[piece.destination].append((received, Piece(piece_shape, piece.runs)))
    return {
        destination: _join(graph, feature, target, purpose, destination, pieces, needs[destination], axes)
        for destination, pieces in arrived.items()
    }


def _cut_axes(dim: int, grid: Sequence[int]) -> range:
    if dim == COPIED:
        return range(0)
    return range(dim, dim + max(len(grid), 1))


def _box(
    graph: GraphBuilder, shape: Shape, dim: int, grid: tuple[int, ...], part: int, axes: Sequence[int]
) -> dict[int, tuple[int, int]]:
    box = {axis: (0, shape[axis]) for axis in axes}
    if grid:
        region = cut_regions(shape, dim, grid)[part]
        box.update({axis: (start, stop) for axis, (start, stop, _) in zip(region.axes, region.ranges, strict=True)})
    elif dim != COPIED:
        start, stop = graph.bounds(shape, dim)[part : part + 2]
        box[dim] = (start, stop)
    return box


def _needs(
    graph: GraphBuilder, shape: Shape, target: Sharding, part: int, axes: Sequence[int]
) -> dict[int, tuple[PointRun, ...]]:
    box = _box(graph, shape, target.dim, target.grid, part, axes)
    runs: dict[int, tuple[PointRun, ...]] = {
        axis: (PointRun(0, stop - start, start),) for axis, (start, stop) in box.items()
    }
    if target.needs:
        runs.update(zip(_cut_axes(target.dim, target.grid), target.needs[part], strict=True))
    return runs


def _pieces(
    feature: ShardedFeature,
    boxes: Mapping[int, Mapping[int, tuple[int, int]]],
    needs: Mapping[int, Mapping[int, tuple[PointRun, ...]]],
    destination: int,
    axes: Sequence[int],
) -> list[_Sent]:
    holders = list(boxes)
    if feature.dim == COPIED:
        holders = [destination if destination in boxes else holders[0]]
    sent = []
    for source in holders:
        common = [
            [part for run in needs[destination][axis] if (part := run.within(*boxes[source][axis]))] for axis in axes
        ]
        for runs in itertools.product(*common):
            box = [slice(None)] * (axes[-1] + 1)
            for axis, run in zip(axes, runs, strict=True):
                first = boxes[source][axis][0]
                box[axis] = slice(run.source.start - first, run.source.stop - first)
            sent.append(_Sent(source, destination, tuple(box), runs))
    return sent


def _slice(
    graph: GraphBuilder,
    feature: ShardedFeature,
    purpose: str,
    location: int,
    output: NodeOutput,
    shape: Shape,
    sent: Sequence[_Sent],
) -> list[NodeOutput]:
    """Cut a worker's feature into the boxes to send; add no layer if it is sent whole, and once."""
    if [box_shape(shape, piece.box) for piece in sent] == [shape]:
        return [output]
    if not sent:
        return []
    conf = connection_conf(LayerType.kSlice, feature, f"{feature.name}:{purpose}")
    layer = RegionSlice(conf, shape, [piece.box for piece in sent])
    rows = rows_at(graph, feature, feature.dim, location)
    node = graph.add(layer, Place(location, feature.name), [output], rows=rows)
    return [NodeOutput(node, part) for part in range(len(sent))]


def _join(
    graph: GraphBuilder,
    feature: ShardedFeature,
    target: Sharding,
    purpose: str,
    location: int,
    arrived: Sequence[tuple[NodeOutput, Piece]],
    needs: Mapping[int, Sequence[PointRun]],
    axes: Sequence[int],
) -> NodeOutput:
    """Assemble the boxes that arrived at a worker, by a layer if necessary."""
    sizes = {axis: sum(run.length for run in needs[axis]) for axis in axes}
    shape = tuple(sizes.get(axis, size) for axis, size in enumerate(feature.shape))
    if [piece.shape for _, piece in arrived] == [shape] and all(run.step == 1 for run in arrived[0][1].runs):
        return arrived[0][0]
    # Its feature is a copy of features that are kept anyway: it is computed again for the backward pass.
    conf = connection_conf(LayerType.kConcate, feature, f"{feature.name}:{purpose}", recompute=True)
    padding = padding_runs(axes, [needs[axis] for axis in axes])
    layer = RegionJoin(conf, shape, axes, [piece for _, piece in arrived], padding, target.fill)
    rows = rows_at(graph, feature, target.dim, location)
    outputs = [output for output, _ in arrived]
    return NodeOutput(graph.add(layer, Place(location, feature.name), outputs, rows=rows))


def _shape(shape: Shape, box: Mapping[int, tuple[int, int]], axes: Sequence[int]) -> Shape:
    sizes = {axis: box[axis][1] - box[axis][0] for axis in axes}
    return tuple(sizes.get(axis, size) for axis, size in enumerate(shape))
