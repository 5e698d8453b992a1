"""Describes a cut net as a table, with a row for each part of each layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsinga.cutting.bridges import BridgeDst
from dsinga.cutting.partitioned import WHOLE_LAYER, PartitionedNet
from dsinga.layers.interface.layer import Shape
from dsinga.net.node import Node


@dataclass(frozen=True)
class PartRow:
    """A row of the table of a cut net: one part of a layer, with its worker, shape and params.

    ``count`` is the size of its params, except those that an earlier layer of the same worker uses.
    """

    layer: str
    location: int
    type: str
    part: str
    shape: Shape
    params: tuple[str, ...]
    count: int
    reason: str


def describe_parts(net: PartitionedNet) -> list[PartRow]:
    """Return the rows of a cut net's table, without the connection layers that cutting added."""
    rows: dict[str, list[PartRow]] = {name: [] for name in net.cuts}
    for location, local in enumerate(net.locals):
        for node, stage in zip(local.nodes, local.stages, strict=True):
            if node.layer.name in rows:
                rows[node.layer.name].append(
                    PartRow(
                        layer=node.layer.name,
                        location=location,
                        type=node.layer.conf.type_name,
                        part=part_text(node),
                        shape=part_shape(node),
                        params=node.params,
                        count=sum(local.params[name].size for name in stage.completes),
                        reason=net.cuts[node.layer.name].reason,
                    )
                )
    return [row for parts in rows.values() for row in parts]


def bridge_traffic(net: PartitionedNet) -> tuple[int, int]:
    """Count the numbers that an iteration sends between workers: (features and labels forward, gradients back)."""
    bridges = [node.layer for node in net.nodes if isinstance(node.layer, BridgeDst)]
    sizes = [math.prod(bridge.shape) for bridge in bridges]
    back = [size for size, bridge in zip(sizes, bridges, strict=True) if bridge.returns_gradient]
    return sum(sizes), sum(back)


def cut_reasons(net: PartitionedNet) -> list[str]:
    """Explain each layer that is not cut as the job asks, in a line for each."""
    lines = []
    for name, cut in net.cuts.items():
        how = "whole" if cut.dim == WHOLE_LAYER else "by space" if cut.grid else ("by rows", "by features")[cut.dim]
        if cut.reason:
            lines.append(f"{name} is computed {how}: {cut.reason}")
    return lines


def part_text(node: Node) -> str:
    """Return which part of its layer a node computes, as "rows 0-31"."""
    if node.layer.region is not None:
        return str(node.layer.region)
    if node.layer.columns is not None:
        return f"features {node.layer.columns.start}-{node.layer.columns.stop - 1}"
    if node.rows is not None and node.rows.stop - node.rows.start < node.rows.total:
        return f"rows {node.rows.start}-{node.rows.stop - 1}"
    return "all"


def part_shape(node: Node) -> Shape:
    """Return the shape of a node's feature."""
    shape = node.layer.shape
    return shape if node.rows is None else (node.rows.stop - node.rows.start, *shape[1:])
