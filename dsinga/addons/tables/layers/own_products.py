"""Products with a matrix of each member of an ensemble, or of each number of a record."""

from __future__ import annotations

from dsinga.layers.interface.layer import Array
from dsinga.ops import Ops


def own_products(x: Array, weight: Array, ops: Ops) -> Array:
    """Multiply x (B, k, n) by the k matrices of a weight (k, n, m): (B, k, m)."""
    y = ops.empty((*x.shape[:2], weight.shape[2]), weight.dtype)
    ops.batched_product(_stack(x), weight[None], _stack(y))
    return y


def own_product_gradients(x: Array, weight: Array, grad: Array, needs_x: bool, ops: Ops) -> tuple[Array | None, Array]:
    """Compute the gradients of :func:`own_products` for x, None if not needed, and for the weight."""
    for_x, for_weight = None, ops.empty(weight.shape, weight.dtype)
    ops.batched_product(_stack(x).transpose(0, 1, 3, 2), _stack(grad), for_weight[None])
    if needs_x:
        for_x = ops.empty(x.shape, weight.dtype)
        ops.batched_product(_stack(grad), weight[None].transpose(0, 1, 3, 2), _stack(for_x))
    return for_x, for_weight


def _stack(x: Array) -> Array:
    return x.transpose(1, 0, 2)[None]
