"""kEmbedding: a trained table with a row for each character or word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.job import EmbeddingConf, LayerConf
from dsinga.layers.base import Arrays, Connection, Gradients, Output, ParamSpec, Shape
from dsinga.layers.codes import CodesLayer
from dsinga.layers.context import Columns, Context, RecordInfo
from dsinga.ops import SparseRows
from dsinga.registry import register


@register("layer", "kEmbedding")
class Embedding(CodesLayer):
    """Look up codes (B, T) in a table: (B, T, ``feature_dim``), or (B, ``feature_dim``) for one step (B,).

    Weight (``vocab_size``, ``feature_dim``), whose gradient has only the rows that were looked up. The feature is 0
    where a sequence has ended (code -1). With ``dense_gradient`` the gradient is a whole array, 0 in the other rows,
    which momentum, weight decay and averages then move, too. With one code a row, it can be cut by features, and its
    weight by columns.
    """

    gathered_because = "has steps where others have features"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = conf.embedding_conf or EmbeddingConf()
        self.size = self.vocabulary_size(settings, settings.vocab_size)
        self.dense_gradient = settings.dense_gradient
        sparse = not self.dense_gradient
        self.params = (ParamSpec("weight", (self.size, settings.feature_dim), cut_axis=1, sparse=sparse),)
        self.shape = (*self.codes_shape, settings.feature_dim)
        if len(self.shape) == 2:
            self.connection = Connection.kOneToAll

    def cut_conf(self, columns: Columns) -> LayerConf:
        settings = self.conf.embedding_conf or EmbeddingConf()
        return self.conf.replace(embedding_conf=settings.replace(feature_dim=columns.stop - columns.start))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        codes = self.codes(sources[0], ctx)
        return Output(ctx.ops.embedding(params[0], codes), saved=codes if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        rows, values = map(ctx.ops.to_numpy, ctx.ops.embedding_grad(output.saved, grad))
        gradient = SparseRows(rows.astype(np.int64, copy=False), values, params[0].shape)
        return (None,), (ctx.ops.asarray(gradient.dense()) if self.dense_gradient else gradient,)
