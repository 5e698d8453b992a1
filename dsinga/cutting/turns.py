"""Checks that the blocks of a batch can be computed in turns, to save memory."""

from __future__ import annotations

from math import prod

from dsinga.cutting.gradient_sums import LARGE
from dsinga.cutting.partitioned import ROWS, LayerCut, PartitionedNet
from dsinga.layers import Layer
from dsinga.layers.dense.batchnorm import BatchNorm
from dsinga.layers.dense.innerproduct import InnerProduct


def check_turns(net: PartitionedNet) -> None:
    """Raise JobError for a layer whose blocks wait for each other, with their features in memory."""
    for node, place in zip(net.nodes, net.places, strict=True):
        why, remedy = _needs_all_blocks(node.layer, net.cuts[place.layer])
        if why:
            text = f"{why}, so that it needs all blocks of a batch at once; leave micro_batches out"
            raise net.whole.layer(place.layer).fail(text + remedy)


def wait_for_each_other(net: PartitionedNet) -> bool:
    """Whether blocks that one thread computes are in memory together: layers wait, or large gradients take turns."""
    sizes = [4 * prod(part.shape) for part in net.parts.values()]
    pairs = zip(net.nodes, net.places, strict=True)
    return max(sizes, default=0) >= LARGE or any(
        _needs_all_blocks(node.layer, net.cuts[place.layer])[0] for node, place in pairs
    )


def _needs_all_blocks(layer: Layer, cut: LayerCut) -> tuple[str, str]:
    """Return why a part of a layer waits for the other blocks, "" if it does not, and another remedy."""
    if cut.dim != ROWS:
        return cut.reason or "is not cut by rows", "" if cut.reason else ", or give it partition_dim: 0"
    if isinstance(layer, BatchNorm) and layer.synchronized and not layer.use_global_stats:
        return "takes its statistics over the whole batch", ", or set synchronized: false"
    if isinstance(layer, InnerProduct) and layer.gathers:
        return "gathers the rows of all blocks", ", or fullc_gather"
    return "", ""
