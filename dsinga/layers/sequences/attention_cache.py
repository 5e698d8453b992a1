"""kCachedAttention, which keeps the keys and values of earlier steps, so that a text is generated step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import AttentionScore, LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Cut, ParamSpec
from dsinga.layers.interface.layer import Arrays, Gradients, Output, Shape
from dsinga.layers.sequences.attention import Attention, rotate

KEYS_AT_ONCE = 32  # attention is computed for a multiple of so many keys, so that few kernels are made


@register("layer", kCachedAttention=791)
class CachedAttention(Attention):
    """A causal kAttention of one step (B, 1, n), which also sees the keys and values of the steps before it.

    Generation puts it in place of each kAttention. Its state has the keys and values of the last ``steps`` steps. Once
    they are more, the first ones are forgotten; rotary positions are those among the steps that are kept. It has no
    gradient.
    """

    class Conf(Settings, name="CachedattentionConf"):
        """Settings of kCachedAttention."""

        num_heads: Count = setting(1, "the number of heads")
        score: AttentionScore = setting(AttentionScore.kScaledDot, "as in kAttention, kScaledDot or kDot")
        rotary: bool = setting(False, "whether queries and keys are rotated by their positions")
        steps: Count = setting(256, "how many steps are kept")
        causal: bool = setting(True, "must be true")

    settings: Any
    cut = Cut(gathered_because="computes one step, for generation")
    bf16 = Bfloat16.kProducts

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        if self.params or self.labels.source is not None or not self.settings.causal or self.queries > 1:
            raise self.fail(
                "sees the steps before one step by products of queries and keys; kAdditive, lengths of keys, several "
                "steps at once and attention that is not causal need a kAttention"
            )
        rows, kept = self.rows, self.settings.steps
        shapes = {"keys": (rows, kept, self.source_shapes[1][2]), "values": (rows, kept, self.shape[2])}
        specs = {**shapes, "count": (rows,)}
        self.params = tuple(
            ParamSpec(role, shape, None, trainable=False, by_rows=True) for role, shape in specs.items()
        )

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        kept, numbers = self.settings.steps, ctx.ops.to_numpy(params[2])
        count = int(numbers.max(initial=0))  # all rows have as many steps
        new = sources[1], self._values(sources)
        keys, values = (_append(cache, step, count) for cache, step in zip(params[:2], new, strict=True))
        count = min(count + 1, kept)
        stop = min(-(-count // KEYS_AT_ONCE) * KEYS_AT_ONCE, kept)
        query, seen = sources[0], keys[:, :stop]
        if self.settings.rotary:
            query, seen = rotate(query, self.heads, ctx.ops, start=count - 1), rotate(seen, self.heads, ctx.ops)
        visible = np.full((len(query), 1), count)
        y, _ = ctx.ops.attention(query, seen, values[:, :stop], self.heads, self.factor, visible, False)
        counts = ctx.ops.asarray(np.full_like(numbers, count))
        return Output(y, state={"keys": keys, "values": values, "count": counts})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        raise self.fail("has no gradient: it is for generation; train with a kAttention")

    def saved_sizes(self, rows: int) -> list[int]:
        return []


def _append(cache: Any, step: Any, count: int) -> Any:
    """Return a copy of a cache (B, S, n) of ``count`` steps with one more, (B, 1, n), without the first one if full."""
    if count < cache.shape[1]:
        longer = cache.copy()
        longer[:, count : count + 1] = step
        return longer
    longer = cache.copy()
    longer[:, :-1], longer[:, -1:] = cache[:, 1:], step
    return longer
