"""Refuses a net that cannot fit into memory, before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dsinga.base.errors import UserError
from dsinga.net.layer_cost import FLOAT_BYTES
from dsinga.net.neuralnet import NeuralNet


def check_memory(nets: Iterable[NeuralNet], workers: int, memory: int) -> None:
    """Raise UserError where a net needs more than so many bytes of ``memory``, those of the largest host.

    What is counted is less than what training takes, so that no net is refused that could be trained: the values of
    all params, which this process makes, a worker's share of their gradients, and of the largest feature.
    """
    for net in nets:
        sizes = {name: FLOAT_BYTES * param.size for name, param in net.params.items()}
        dense = [name for name, param in net.params.items() if param.trainable and not param.spec.sparse]
        features = {node.layer.name: FLOAT_BYTES * _numbers(node.layer.shape) for node in net.nodes}
        gradients = sum(sizes[name] for name in dense)
        needed = sum(sizes.values()) + (gradients + max(features.values())) // workers
        if needed > memory:
            kind, largest = "param", max(sizes, key=sizes.__getitem__, default="")
            layer = max(features, key=features.__getitem__)
            if features[layer] > sizes.get(largest, 0):
                kind, largest = "feature of layer", layer
            size = max(features[layer], sizes.get(largest, 0))
            raise UserError(
                f"the net of phase {net.phase.name} needs at least {in_gib(needed)} of memory, but there are "
                f"{in_gib(memory)}; most is for the {kind} {largest!r}, {in_gib(size)}: make it smaller, or the batch"
            )


def _numbers(shape: tuple[int, ...]) -> int:
    return math.prod(int(size) for size in shape)


def as_size(size: int) -> str:
    """Return a number of bytes in MiB, from 1 GiB on in GiB."""
    return in_gib(size) if size >= 1 << 30 else f"{size / 2**20:,.0f} MiB"


def in_gib(size: int) -> str:
    """Return a number of bytes in GiB."""
    return f"{size / 2**30:,.1f} GiB"
