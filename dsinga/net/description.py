"""Describes a net as a table with a row for each layer, as ``dsinga show`` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.layer import Shape
from dsinga.layers.sequences.timedistributed import TimeDistributed
from dsinga.net.neuralnet import NeuralNet

FLOAT_BYTES = 4


@dataclass(frozen=True)
class LayerRow:
    """A row of the table that describes a net: a layer's type, sources, output shape and params.

    ``shared`` are the params that earlier layers use too, and ``count`` the elements of the others. ``steps`` is how
    many time steps it computes together.
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
        """How many bytes the counted params need."""
        return self.count * FLOAT_BYTES


def describe(net: NeuralNet) -> list[LayerRow]:
    """Describe a net: return a row for each layer, in order."""
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


def as_table(net: NeuralNet, name: str) -> str:
    """Write a net as a table of layers: type, output shape, number of params; then the sum."""
    rows = describe(net)
    cells = [("layer", "type", "feature", "params")]
    cells += [(row.layer, row.typed, shape_text(row.shape[1:] or (1,)), f"{row.count:,}") for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    pattern = "{{:<{}}}  {{:<{}}}  {{:<{}}}  {{:>{}}}".format(*widths)
    lines = [pattern.format(*line) for line in cells]
    total = sum(row.count for row in rows)
    return "\n".join([*lines, f"{name}: {total:,} numbers in params, {sum(row.bytes for row in rows):,} bytes"])
