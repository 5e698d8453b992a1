"""kPositionalEncoding: adds to each step of a sequence a vector that says which step it is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import LayerConf, PositionalEncodingConf
from dsinga.layers.base import Arrays, Connection, Gradients, Layer, Output, Shape, as_text
from dsinga.layers.context import Columns, Context, RecordInfo
from dsinga.registry import register

BASE = 10_000.0


@register("layer", "kPositionalEncoding")
class PositionalEncoding(Layer):
    """(B, T, n) to x·``scale`` + p, where p[t, 2i] = sin(t/10000^(2i/n)) and p[t, 2i + 1] = cos(t/10000^(2i/n)).

    Vaswani et al., Attention Is All You Need (2017), 3.5. Attention itself does not know the order of the steps. The
    paper multiplies embeddings by ``scale`` √n.
    """

    source_count: ClassVar[int | None] = 1
    connection = Connection.kOneToOne
    over_steps: ClassVar[bool] = True
    feature_axis: int = 2

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        if len(self.shape) != 3:
            raise self.fail(
                f"takes sequences (batch, steps, features), but {self.source_name(0)} gives {as_text(self.shape)}; put "
                "a kEmbedding layer between, if these are words",
                field="srclayers",
            )
        self.scale = (conf.positionalencoding_conf or PositionalEncodingConf()).scale

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
