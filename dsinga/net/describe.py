"""A net as a table: a row for each layer."""

from __future__ import annotations

from dataclasses import dataclass

from dsinga.layers.base import Shape
from dsinga.net.neuralnet import NeuralNet

FLOAT_BYTES = 4


@dataclass(frozen=True)
class LayerRow:
    """A layer: its type, sources, feature shape, the params that it uses, and the size of those that it owns.

    ``shared`` are those of its ``params`` that an earlier layer uses too: a param counts once, at the first layer that
    uses it, so counts add up to the net's.
    """

    layer: str
    type: str
    sources: tuple[str, ...]
    shape: Shape
    params: tuple[str, ...]
    shared: tuple[str, ...]
    count: int

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
        )
        for node, stage in zip(net.nodes, net.stages, strict=True)
    ]
