"""Checks that the blocks of a batch can be computed in turns, to save memory."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dsinga.cutting.gradient_sums import LARGE
from dsinga.cutting.partitioned import ROWS, LayerCut, PartitionedNet
from dsinga.layers import Layer
from dsinga.layers.dense.batchnorm import BatchNorm
from dsinga.layers.dense.innerproduct import InnerProduct


def check_turns(net: PartitionedNet) -> None:
    """Raise JobError for a layer whose blocks wait for each other, with their features in memory."""
    for name, layer in _parts_of_layers(net):
        why, remedy = _needs_all_blocks(layer, net.cuts[name])
        if why:
            text = f"{why}, so that it needs all blocks of a batch at once; leave micro_batches out"
            raise net.whole.layer(name).fail(text + remedy)


def wait_for_each_other(net: PartitionedNet) -> bool:
    """Whether blocks that one thread computes are in memory together: layers wait, or large gradients take turns."""
    sizes = [4 * prod(part.shape) for part in net.parts.values()]
    waits = (_needs_all_blocks(layer, net.cuts[name])[0] for name, layer in _parts_of_layers(net))
    return max(sizes, default=0) >= LARGE or any(waits)


def _parts_of_layers(net: PartitionedNet) -> Iterator[tuple[str, Layer]]:
    """Yield the parts of the net's layers, without those that distribute labels again."""
    for node, place in zip(net.nodes, net.places, strict=True):
        if place.layer in net.cuts:
            yield place.layer, node.layer


def _needs_all_blocks(layer: Layer, cut: LayerCut) -> tuple[str, str]:
    """Return why a part of a layer waits for the other blocks, "" if it does not, and another remedy."""
    if cut.dim != ROWS:
        return cut.reason or "is not cut by rows", "" if cut.reason else ", or give it partition_dim: 0"
    if isinstance(layer, BatchNorm) and layer.synchronized and not layer.use_global_stats:
        return "takes its statistics over the whole batch", ", or set synchronized: false"
    if isinstance(layer, InnerProduct) and layer.gathers:
        return "gathers the rows of all blocks", ", or fullc_gather"
    return "", ""
