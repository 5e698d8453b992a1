"""kEmbedding: a trained table with a row for each character or word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.job import EmbeddingConf, LayerConf
from dsinga.layers.base import Arrays, Gradients, Output, ParamSpec, Shape
from dsinga.layers.codes import CodesLayer
from dsinga.layers.context import Context, RecordInfo
from dsinga.ops import SparseRows
from dsinga.registry import register


@register("layer", "kEmbedding")
class Embedding(CodesLayer):
    """Look up codes (B, T) in a table: (B, T, ``feature_dim``), or (B, ``feature_dim``) for one step (B,).

    Weight (``vocab_size``, ``feature_dim``), whose gradient has only the rows that were looked up. The feature is 0
    where a sequence has ended (code -1).
    """

    gathered_because = "makes all columns from one code"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = conf.embedding_conf or EmbeddingConf()
        self.size = self.vocabulary_size(settings, settings.vocab_size)
        self.params = (ParamSpec("weight", (self.size, settings.feature_dim), sparse=True),)
        self.shape = (*self.codes_shape, settings.feature_dim)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        codes = self.codes(sources[0], ctx)
        return Output(ctx.ops.embedding(params[0], codes), saved=codes if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        rows, values = map(ctx.ops.to_numpy, ctx.ops.embedding_grad(output.saved, grad))
        return (None,), (SparseRows(rows.astype(np.int64, copy=False), values, params[0].shape),)
