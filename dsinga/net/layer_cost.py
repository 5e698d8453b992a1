"""Estimates the cost of a layer in operations and bytes, with which the planner divides nets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from dsinga.layers.bridge import BridgeEnd
from dsinga.layers.interface.declarations import ParamSpec, SourceKind
from dsinga.layers.interface.layer import FLOAT_BYTES, Layer, float_bytes
from dsinga.net.dataflow import Stage

# Moving a number through memory takes as long as so many operations of a matrix product.
OPERATIONS_PER_NUMBER = 50


class LayerCost(NamedTuple):
    """The cost of a layer: operations of its forward and backward pass, bytes of its output and params."""

    forward: int
    backward: int
    feature: int
    params: int


def layer_cost(layer: Layer) -> LayerCost:
    """Count the operations and bytes of a whole layer.

    Forward, each weight needs a multiplication and an addition for each position of the output, backward twice as many.
    A layer without weights needs one operation per number of its output.
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
    """Return how many rows of a batch a worker computes at a layer."""
    return stage.rows.stop - stage.rows.start if stage.rows else stage.layer.shape[0]


def count_operations(layers: Iterable[Layer]) -> int:
    """Return how many operations a training step needs, with the memory traffic of outputs."""
    return sum(
        cost.forward + cost.backward + OPERATIONS_PER_NUMBER * cost.feature // FLOAT_BYTES
        for cost in map(layer_cost, layers)
    )


def feature_sizes(stage: Stage) -> list[int]:
    """Return the bytes of each array that a layer outputs."""
    layer = stage.layer
    if layer.part_shapes or layer.is_output or (isinstance(layer, BridgeEnd) and layer.sends):
        return []
    rows = layer.shape[0] if isinstance(layer, BridgeEnd) else rows_of(stage)
    return [float_bytes(rows, layer.shape)]


def as_size(size: int) -> str:
    """Word a number of bytes in MiB or GiB."""
    return in_gib(size) if size >= 1 << 30 else f"{size / 2**20:,.0f} MiB"


def in_gib(size: int) -> str:
    """Word a number of bytes in GiB."""
    return f"{size / 2**30:,.1f} GiB"
