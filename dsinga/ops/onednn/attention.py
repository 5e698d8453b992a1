"""Attention with oneDNN's products, block by block where the table of choices says so."""

from __future__ import annotations

from typing import Any

from dsinga.ops.attention_blocks import BlockSums, attend_in_blocks, derive_in_blocks
from dsinga.ops.numpy.attention import NumpyAttention
from dsinga.ops.onednn.choices import NONE, choose
from dsinga.ops.onednn.library import form_of
from dsinga.ops.onednn.primitive import accepts
from dsinga.ops.onednn.products import Product
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import FLOAT32, Array


class OnednnAttention(NumpyAttention):
    """The products of attention by the library, on float32; its softmax and tanh are those of other layers."""

    def batched_product(self, a: Array, b: Array, out: Array, factor: float = 1.0, add: bool = False) -> None:
        kernel = None
        if accepts(a, b, out):
            kernel = get_kernel(Product, form_of(a), form_of(b), form_of(out), FLOAT32, factor, add)
        if kernel is None:
            super().batched_product(a, b, out, factor, add)
        else:
            kernel.multiply(a, b, out)

    def attention(
        self, query: Array, keys: Array, values: Array, heads: int, factor: float, visible: Array | None, train: bool
    ) -> tuple[Array, Any]:
        """Return the means and a workspace: the weights, or the sums of blocks."""
        if not accepts(query, keys, values) or choose("attention", NONE, query.shape[1], keys.shape[1]) is None:
            return super().attention(query, keys, values, heads, factor, visible, train)
        y, sums = attend_in_blocks(self.batched_product, query, keys, values, heads, factor, visible)
        return y, sums if train else None

    def attention_grad(
        self, query: Array, keys: Array, values: Array, y: Array, workspace: Any, dy: Array, heads: int, factor: float,
        visible: Array | None,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        if isinstance(workspace, BlockSums):
            return derive_in_blocks(self.batched_product, query, keys, values, y, workspace, dy, heads, factor, visible)
        return super().attention_grad(query, keys, values, y, workspace, dy, heads, factor, visible)
