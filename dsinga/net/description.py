"""Describes a net as a table with a row for each layer, or for each part of a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsinga.layers.bridge import BridgeDst
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.declarations import Bfloat16
from dsinga.layers.interface.layer import Shape
from dsinga.layers.sequences.timedistributed import TimeDistributed
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.node import Node
from dsinga.net.partitioned import WHOLE_LAYER, PartitionedNet

FLOAT_BYTES = 4


@dataclass(frozen=True)
class LayerRow:
    """A layer: its type, sources, feature shape, the params that it uses, and the size of the params that it owns.

    ``shared`` are those of its ``params`` that an earlier layer uses too. ``count`` leaves these out, so the counts of
    all layers add up to the net's. ``steps`` is how many time steps the layer computes together, 1 if the job does not
    unroll it.
    """

    layer: str
    type: str
    sources: tuple[str, ...]
    shape: Shape
    params: tuple[str, ...]
    shared: tuple[str, ...]
    count: int
    steps: int = 1

    @property
    def typed(self) -> str:
        """The type, with the number of time steps if there are several."""
        return f"{self.type} x{self.steps}" if self.steps > 1 else self.type

    @property
    def bytes(self) -> int:
        """Size of the counted params in float32."""
        return self.count * FLOAT_BYTES


def describe(net: NeuralNet) -> list[LayerRow]:
    """Return a row for each layer of ``net``, in the order of its nodes."""
    return [
        LayerRow(
            layer=node.layer.name,
            type=node.layer.conf.type_name,
            sources=tuple(net.nodes[source].layer.name for source in node.sources),
            shape=node.layer.shape,
            params=node.params,
            shared=tuple(name for name in node.params if name not in stage.completes),
            count=sum(net.params[name].size for name in stage.completes),
            steps=node.layer.steps if isinstance(node.layer, TimeDistributed) else node.layer.conf.unroll_len or 1,
        )
        for node, stage in zip(net.nodes, net.stages, strict=True)
    ]


@dataclass(frozen=True)
class PartRow:
    """A part of a layer: the worker that computes it, its rows or features, its shape, and the params that it uses.

    ``count`` is the size of its params, without those that an earlier layer of the same worker uses. ``reason`` says
    why the layer is not cut as the job asks.
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
    """Return a row for each part of each layer of the uncut net; connection layers from partitioning are left out."""
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
    """Return how many numbers an iteration sends over bridges: (features and labels forward, gradients back)."""
    bridges = [node.layer for node in net.nodes if isinstance(node.layer, BridgeDst)]
    sizes = [math.prod(bridge.shape) for bridge in bridges]
    back = [size for size, bridge in zip(sizes, bridges, strict=True) if bridge.returns_gradient]
    return sum(sizes), sum(back)


def cut_reasons(net: PartitionedNet) -> list[str]:
    """Return a line for each layer that is not cut as the job asks: how it is cut instead, and why."""
    lines = []
    for name, cut in net.cuts.items():
        how = "whole" if cut.dim == WHOLE_LAYER else "by space" if cut.grid else ("by rows", "by features")[cut.dim]
        if cut.reason:
            lines.append(f"{name} is computed {how}: {cut.reason}")
    return lines


def float32_layers(net: NeuralNet) -> list[str]:
    """Return the names of the layers that compute in float32 on CPU cores in kBF16."""
    return [node.layer.name for node in net.nodes if node.layer.bf16 is Bfloat16.kNothing and not node.layer.is_input]


def part_text(node: Node) -> str:
    """Return the part of its layer that a node of a partitioned net computes, as "rows 0-31"."""
    if node.layer.region is not None:
        return str(node.layer.region)
    if node.layer.columns is not None:
        return f"features {node.layer.columns.start}-{node.layer.columns.stop - 1}"
    if node.rows is not None and node.rows.stop - node.rows.start < node.rows.total:
        return f"rows {node.rows.start}-{node.rows.stop - 1}"
    return "all"


def part_shape(node: Node) -> Shape:
    """Return the shape of the feature that a node of a partitioned net computes."""
    shape = node.layer.shape
    return shape if node.rows is None else (node.rows.stop - node.rows.start, *shape[1:])


def as_table(net: NeuralNet, name: str) -> str:
    """Return the table of a net: layer, type, shape of a row of the feature, number of params; then their sum."""
    rows = describe(net)
    cells = [("layer", "type", "feature", "params")]
    cells += [(row.layer, row.typed, shape_text(row.shape[1:] or (1,)), f"{row.count:,}") for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    pattern = "{{:<{}}}  {{:<{}}}  {{:<{}}}  {{:>{}}}".format(*widths)
    lines = [pattern.format(*line) for line in cells]
    total = sum(row.count for row in rows)
    return "\n".join([*lines, f"{name}: {total:,} numbers in params, {sum(row.bytes for row in rows):,} bytes"])
