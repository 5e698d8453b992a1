"""Positions of steps: kPositionalEncoding, which adds a vector of each position, and rotations of queries and keys."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Positive
from dsinga.layers.interface.context import Columns, Context, RecordInfo
from dsinga.layers.interface.declarations import Connection, Cut, SourceKind
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape
from dsinga.ops import Array, Ops

SEQUENCES = ("sequences (batch, steps, features)", "put a kEmbedding layer between, if these are words")
BASE = 10_000.0


@register("layer", kPositionalEncoding=714)
class PositionalEncoding(Layer):
    """(B, T, n) to x·``scale`` + p, where p[t, 2i] = sin(t/10000^(2i/n)) and p[t, 2i + 1] = cos(t/10000^(2i/n)).

    Vaswani et al., Attention Is All You Need (2017), 3.5. Attention itself does not know the order of the steps. The
    paper multiplies embeddings by ``scale`` √n.
    """

    class Conf(Settings):
        """Settings of kPositionalEncoding."""

        scale: Positive = setting(1.0, "what the source is multiplied by before the encoding is added")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, axis=2)
    source_kind = SourceKind.kSequences

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.expect_axes((3,), *SEQUENCES)
        self.scale = self.settings.scale

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = sources[0]
        columns = self.columns or Columns(0, x.shape[2], x.shape[2])
        positions = encoding(x.shape[1], columns.total)[:, columns.start : columns.stop]
        y = x * x.dtype.type(self.scale)
        y += ctx.ops.asarray(np.ascontiguousarray(positions, x.dtype))
        return Output(y)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        return (grad if self.scale == 1 else grad * grad.dtype.type(self.scale),), ()


@functools.lru_cache(maxsize=8)
def encoding(steps: int, columns: int) -> np.ndarray:
    """Return the sines and cosines of the positions, (``steps``, ``columns``) in float64."""
    even = np.arange(columns) // 2 * 2
    angles = np.arange(steps)[:, None] / BASE ** (even / columns)
    return np.where(np.arange(columns) % 2 == 0, np.sin(angles), np.cos(angles))


def rotate(x: Array, heads: int, ops: Ops, start: int = 0, back: bool = False) -> Array:
    """Return x (B, T, n) with each pair of features of each head rotated by an angle that grows with the step.

    In step ``start`` + t the pair (2i, 2i + 1) of a head of d features is rotated by (start + t)/10000^(2i/d), so that
    the product of a query and a key depends on the difference of their steps only: Su et al., RoFormer (2021), 3.2.2.
    Pairs are neighbours, as there and in Meta's LLaMA; in Hugging Face's they are features i and i + d/2, which is the
    same net with the rows of the projections in another order. ``back`` rotates by the opposite angles, which is the
    gradient.
    """
    factors = rotations(start, x.shape[1], x.shape[2] // heads, heads, x.dtype.type(0).dtype.name)
    return ops.rotate_pairs(x, ops.asarray(factors.conj() if back else factors))


@functools.lru_cache(maxsize=64)
def rotations(start: int, steps: int, size: int, heads: int, dtype: str) -> np.ndarray:
    """Return e^(i·angle) of ``steps`` steps from ``start`` on, (steps, heads·size/2), the same for each head."""
    angles = np.arange(start, start + steps)[:, None] / BASE ** (np.arange(0, size, 2) / size)
    return np.tile(np.exp(1j * angles), (1, heads)).astype(np.result_type(dtype, np.complex64))
