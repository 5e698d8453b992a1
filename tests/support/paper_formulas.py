"""The traffic of a partitioning by the formulas of the paper (5.4.1), to compare simulated bytes with."""

from __future__ import annotations

from dsinga.layers.base import Connection
from dsinga.net import NeuralNet
from dsinga.net.cut import WHOLE_LAYER, LayerCut
from dsinga.net.layer_cost import FLOAT_BYTES, layer_cost


def param_traffic(size: int, cut: LayerCut, workers: int) -> float:
    """Return the bytes that a worker sends, which equal those that it receives, for params of ``size`` bytes.

    With a layer cut on dimension 0, every worker sends the whole gradient and gets the whole value: 2p of 5.4.1.
    Otherwise each param has one user, whose process runs the server of that param.
    """
    return size if cut.dim == 0 and workers > 1 else 0


def feature_traffic(size: int, source: LayerCut, cut: LayerCut, connection: Connection | None, workers: int) -> float:
    """Return the bytes that the busiest worker sends of a feature of ``size`` bytes, in the forward pass.

    The gradient goes the same way back. With b rows of d numbers over K workers (5.4.1):

    - a layer cut on dimension 1 that needs all features of its source gathers it: each worker sends its b·d/K to
      K - 1 others (Figure 13b);
    - for any other change between dimension 0 and dimension 1, each worker keeps 1/K of its b·d/K and sends the rest;
    - to or from a layer that is whole on one worker, b·d·(K - 1)/K numbers are sent.
    """
    others = workers - 1
    if source.dim == WHOLE_LAYER and cut.dim == WHOLE_LAYER:
        return 0 if source.location == cut.location else size
    if WHOLE_LAYER in (source.dim, cut.dim):
        gathers = cut.dim == 1 and connection is not Connection.kOneToOne
        return size * others if gathers else size * others / workers
    if cut.dim == 1 and connection is not Connection.kOneToOne:
        return size * others / workers
    if source.dim != cut.dim:
        return size * others / workers**2
    return 0


def net_traffic(net: NeuralNet, cuts: dict[str, LayerCut], workers: int) -> float:
    """Return the bytes that a worker sends in an iteration by the formulas above; it receives as many."""
    total = 0.0
    for node, stage in zip(net.nodes, net.stages, strict=True):
        cut = cuts[node.layer.name]
        size = FLOAT_BYTES * sum(net.params[name].size for name in stage.completes)
        total += param_traffic(size, cut, workers)
        for edge, needs in zip(stage.edges, stage.needs, strict=True):
            if edge.labels:
                continue
            source = net.nodes[edge.node].layer
            forward = feature_traffic(
                layer_cost(source).feature, cuts[source.name], cut, node.layer.connection, workers
            )
            total += 2 * forward if needs else forward
    return total
