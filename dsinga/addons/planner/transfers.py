"""The features that workers send each other where neighbouring layers are cut differently.

These are the transfers for which :mod:`dsinga.net.redistribution` inserts connection layers; here nothing is inserted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from dsinga.job import LayerType
from dsinga.layers.interface.declarations import Connection
from dsinga.layers.interface.layer import Layer
from dsinga.layers.interface.region import FILL
from dsinga.net import NeuralNet
from dsinga.net.bridges import features_rounded, gradients_rounded, is_bf16_image, rounds_source
from dsinga.net.cut import WHOLE_LAYER, LayerCut, cut_regions
from dsinga.net.region_redistribution import space_sharding
from dsinga.ops.types import Shape


class FeatureTransfer(NamedTuple):
    """A feature that the workers ``holders`` have and the workers ``targets`` need: ``numbers`` values for each pair.

    It leads from the node ``source`` to the node ``destination``, the first one that needs the feature in this cut.
    ``sums_gradients`` means that every target gets the whole feature, so that their gradients are added up on the way
    back, not joined. ``gradient`` says whether gradients are sent back at all. ``bf16_feature`` and ``bf16_gradient``
    say whether they are sent in bfloat16 in the precision kBF16.
    """

    key: str
    source: int
    destination: int
    holders: tuple[int, ...]
    targets: tuple[int, ...]
    numbers: int
    sums_gradients: bool
    gradient: bool
    bf16_feature: bool
    bf16_gradient: bool

    @property
    def all_to_all(self) -> bool:
        """Whether every worker sends to every worker."""
        return len(self.holders) > 1 and len(self.targets) > 1


def locations(cut: LayerCut, workers: int) -> tuple[int, ...]:
    """Return the workers that compute a layer with this cut."""
    return (cut.location,) if cut.dim == WHOLE_LAYER else tuple(range(workers))


def find_transfers(net: NeuralNet, cuts: Mapping[str, LayerCut], workers: int) -> list[FeatureTransfer]:
    """Return the transfers of a net, one for all layers that need a feature in the same cut.

    Labels are left out: they are one number a row, or cut like the layers that take them.
    """
    transfers: dict[tuple, FeatureTransfer] = {}
    rounded, gradients = features_rounded(net.nodes), gradients_rounded(net.nodes, net.stages)
    for position, (node, stage) in enumerate(zip(net.nodes, net.stages, strict=True)):
        cut = cuts[node.layer.name]
        gathers = cut.dim == 1 and node.layer.cut.connection is Connection.kOneToAll
        needed_dim, targets = WHOLE_LAYER if gathers else cut.dim, locations(cut, workers)
        for index, (edge, gradient) in enumerate(zip(stage.edges, stage.needs, strict=True)):
            source = net.nodes[edge.node].layer
            dim, holders = cuts[source.name].dim, locations(cuts[source.name], workers)
            if edge.labels:
                continue
            part = 0 if source.conf.type is LayerType.kSplit else edge.part
            key: tuple = (edge.node, part, needed_dim, targets)
            shape = source.part_shapes[part] if source.part_shapes else source.shape
            halo = 0
            if dim == needed_dim and (dim != WHOLE_LAYER or set(targets) <= set(holders)):
                if not (halo := halo_numbers(node.layer, index, cut, shape, workers)):
                    continue
                key = (*key, halo)
            bf16_gradient = gradients[edge.node]
            rounds = rounds_source(node.layer, index, rounded[position]) or is_bf16_image(shape, bf16_gradient)
            if key in transfers:
                before = transfers[key]
                transfers[key] = before._replace(
                    gradient=before.gradient or gradient, bf16_feature=before.bf16_feature and rounds
                )
                continue
            whole = needed_dim == WHOLE_LAYER
            numbers = halo or math.prod(shape) // len(holders) // (1 if whole else len(targets))
            name = f"{source.name}.{part}:{needed_dim}@{targets[0]}" + (f" halo {halo}" if halo else "")
            sums_gradients = bool(halo) or (whole and len(targets) > 1)
            transfers[key] = FeatureTransfer(
                name, edge.node, position, holders, targets, numbers, sums_gradients, gradient, rounds, bf16_gradient
            )
    return list(transfers.values())


def halo_numbers(layer: Layer, source: int, cut: LayerCut, shape: Shape, workers: int) -> int:
    """Return the numbers of a source that a part of a layer cut by space needs of others, for each other worker.

    The part is the one that needs most. It gets them from its neighbours; their sum is what counts here.
    """
    if not cut.grid or not layer.takes_points(source):
        return 0
    target, last = space_sharding(layer, cut, shape), cut.dim + len(cut.grid)
    missing = [0]
    for needs, region in zip(target.needs, cut_regions(shape, cut.dim, cut.grid), strict=False):
        points = [sum(run.length for run in runs if run.start != FILL) for runs in needs]
        missing.append(math.prod([*shape[: cut.dim], *points, *shape[last:]]) - math.prod(region.part(shape)))
    return -(-max(missing) // (workers - 1))
