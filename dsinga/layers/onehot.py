"""kOneHot: codes of characters or words as one-hot vectors."""

from __future__ import annotations

from collections.abc import Sequence

from dsinga.job import LayerConf, OnehotConf
from dsinga.layers.base import Arrays, Output, Shape
from dsinga.layers.codes import CodesLayer
from dsinga.layers.context import Context, RecordInfo
from dsinga.registry import register


@register("layer", "kOneHot")
class OneHot(CodesLayer):
    """One-hot vectors (B, T, ``vocab_size``) of codes (B, T), or (B, ``vocab_size``) of the codes (B,) of one step.

    The vectors of steps after the end of a sequence (code -1) are 0.
    """

    gathered_because = "makes all columns from one code"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = conf.onehot_conf or OnehotConf()
        self.size = self.vocabulary_size(settings, settings.vocab_size)
        self.shape = (*self.codes_shape, self.size)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(ctx.ops.one_hot(self.codes(sources[0], ctx), self.size))
