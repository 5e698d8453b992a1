"""The cost of a layer, counted in operations and bytes (section 5.4.1), and a check that nets fit into memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from dsinga.base.errors import UserError
from dsinga.layers.connect.bridge import BridgeDst, BridgeSrc
from dsinga.layers.interface.declarations import ParamSpec, SourceKind
from dsinga.layers.interface.layer import FLOAT_BYTES, Layer, float_bytes
from dsinga.net.dataflow import Stage

if TYPE_CHECKING:
    from dsinga.net.neuralnet import NeuralNet

# Moving a number through memory takes as long as so many operations of a matrix product.
OPERATIONS_PER_NUMBER = 50


class LayerCost(NamedTuple):
    """Arithmetic operations of a layer's forward and backward pass; bytes of its feature and of its params."""

    forward: int
    backward: int
    feature: int
    params: int


def layer_cost(layer: Layer) -> LayerCost:
    """Count the operations and bytes of a layer that is not cut.

    Forward, each weight takes a multiplication and an addition for each position of the feature; backward takes twice
    as many, for the gradients of the sources and of the weight. A recurrent layer multiplies by every weight at every
    step, whatever the weight's shape. A layer without weights takes one operation for each number of its feature.
    """
    numbers = math.prod(layer.shape)
    weights = [spec for spec in layer.params if len(spec.shape) > 1 and spec.cut_axis is not None]

    def positions(spec: ParamSpec) -> int:
        is_recurrent = layer.source_kind is SourceKind.kRecurrent
        return numbers // (layer.shape[-1] if is_recurrent else spec.shape[spec.cut_axis or 0])

    forward = sum(2 * math.prod(spec.shape) * positions(spec) for spec in weights) or numbers
    params = sum(math.prod(spec.shape) for spec in layer.params)
    return LayerCost(forward, 2 * forward if weights else forward, FLOAT_BYTES * numbers, FLOAT_BYTES * params)


def rows_of(stage: Stage) -> int:
    """Return how many rows of its batch a worker computes at a node."""
    return stage.rows.stop - stage.rows.start if stage.rows else stage.layer.shape[0]


def count_operations(layers: Iterable[Layer]) -> int:
    """Return the operations of an iteration of these layers, moving features through memory included."""
    return sum(
        cost.forward + cost.backward + OPERATIONS_PER_NUMBER * cost.feature // FLOAT_BYTES
        for cost in map(layer_cost, layers)
    )


def feature_sizes(stage: Stage) -> list[int]:
    """Return the sizes in bytes of the arrays that a layer makes for its feature; parts of a feature are views."""
    layer = stage.layer
    if layer.part_shapes or isinstance(layer, BridgeSrc) or layer.is_output:
        return []
    rows = layer.shape[0] if isinstance(layer, BridgeDst) else rows_of(stage)
    return [float_bytes(rows, layer.shape)]


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
