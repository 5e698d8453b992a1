"""How much memory of a device a partition takes: a sum over its net, in bytes, from shapes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsinga.layers.context import Rows
from dsinga.net import NeuralNet

FLOAT32 = 4  # bytes
COPIES = 2  # of a batch of records: the one that is computed with, and the next, which is on its way up


def memory_of(net: NeuralNet, rows: Rows, slots: int) -> int:
    """Return about how many bytes training takes of a net that computes ``rows`` of the batch.

    They are: each param, its gradient and ``slots`` arrays of the updater, which are on the device where the partition
    updates the param itself; the feature of every layer, which the backward pass still needs; and the gradients of the
    largest layer and its source. What libraries take for themselves is not counted.
    """
    params = sum(math.prod(param.shape) for param in net.params.values())
    features = [_numbers(node.layer.shape, node.rows or rows) for node in net.nodes if node.layer.shape]
    records = sum(_numbers(node.layer.shape, node.rows or rows) for node in net.nodes if node.layer.is_input)
    passing = 2 * max(features, default=0)
    return FLOAT32 * (params * (2 + slots) + sum(features) + passing + (COPIES - 1) * records)


def _numbers(shape: Sequence[int], rows: Rows) -> int:
    """Return how many numbers a feature has of so many rows."""
    return (rows.stop - rows.start) * shape[0] // max(rows.total, 1) * math.prod(shape[1:])
