"""Which features move between workers where a net is cut, as :mod:`dsinga.net.redistribution` moves them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from dsinga.job import LayerType
from dsinga.layers.base import Connection
from dsinga.net import NeuralNet
from dsinga.net.cut import WHOLE_LAYER, LayerCut


class Move(NamedTuple):
    """A feature on its way from the workers that have it to those that want it: ``piece`` numbers from each to each.

    It begins at the node ``source`` and ends at the node ``destination``, the first of those that want it so; ``adds``
    says that every target gets all of it, so that the gradients that come back are added, not joined. Without
    ``gradient`` none comes back.
    """

    key: str
    source: int
    destination: int
    holders: tuple[int, ...]
    targets: tuple[int, ...]
    piece: int
    adds: bool
    gradient: bool

    @property
    def all_to_all(self) -> bool:
        """Whether every worker sends to every worker."""
        return len(self.holders) > 1 and len(self.targets) > 1


def locations(cut: LayerCut, workers: int) -> tuple[int, ...]:
    """Return the workers that compute a layer that is cut so."""
    return (cut.location,) if cut.dim == WHOLE_LAYER else tuple(range(workers))


def find_moves(net: NeuralNet, cuts: Mapping[str, LayerCut], workers: int) -> list[Move]:
    """Return the moves of a net: one for all layers that want a feature alike. Labels, a number a row, are left out."""
    found: dict[tuple, Move] = {}
    for position, (node, stage) in enumerate(zip(net.nodes, net.stages, strict=True)):
        cut = cuts[node.layer.name]
        gathers = cut.dim == 1 and node.layer.connection is Connection.kOneToAll
        wanted, targets = WHOLE_LAYER if gathers else cut.dim, locations(cut, workers)
        for edge, gradient in zip(stage.edges, stage.needs, strict=True):
            source = net.nodes[edge.node].layer
            dim, holders = cuts[source.name].dim, locations(cuts[source.name], workers)
            if edge.labels or (dim == wanted and (dim != WHOLE_LAYER or set(targets) <= set(holders))):
                continue
            part = 0 if source.conf.type is LayerType.kSplit else edge.part
            key = (edge.node, part, wanted, targets)
            if key in found:
                found[key] = found[key]._replace(gradient=found[key].gradient or gradient)
                continue
            shape = source.part_shapes[part] if source.hands_parts else source.shape
            whole = wanted == WHOLE_LAYER
            piece = math.prod(shape) // len(holders) // (1 if whole else len(targets))
            name = f"{source.name}.{part}:{wanted}@{targets[0]}"
            adds = whole and len(targets) > 1
            found[key] = Move(name, edge.node, position, holders, targets, piece, adds, gradient)
    return list(found.values())
