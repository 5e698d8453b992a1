"""What a layer costs, counted: operations, bytes of its feature and of its params (5.4.1)."""

from __future__ import annotations

import math
from typing import NamedTuple

from dsinga.layers.base import Layer, ParamSpec

FLOAT_BYTES = 4


class Cost(NamedTuple):
    """Of a whole layer: arithmetic operations of forward and backward, bytes of its feature and of its params."""

    forward: int
    backward: int
    feature: int
    params: int


def layer_cost(layer: Layer) -> Cost:
    """Count a layer: a weight is multiplied and added once for each position of the feature that it makes.

    Backward takes that twice, for the sources' gradient and for the weight's. A recurrent layer multiplies by each of
    its weights at each step, whatever the weight's shape. A layer without weights touches each number of its feature
    once.
    """
    numbers = math.prod(layer.shape)
    weights = [spec for spec in layer.params if len(spec.shape) > 1 and spec.cut_axis is not None]

    def positions(spec: ParamSpec) -> int:
        return numbers // (layer.shape[-1] if layer.is_recurrent else spec.shape[spec.cut_axis or 0])

    forward = sum(2 * math.prod(spec.shape) * positions(spec) for spec in weights) or numbers
    params = sum(math.prod(spec.shape) for spec in layer.params)
    return Cost(forward, 2 * forward if weights else forward, FLOAT_BYTES * numbers, FLOAT_BYTES * params)
