"""Attention layers: kAttention, kAttentionWeights, attention with a cache, and positional encodings."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.base.registry import register
from dsinga.job import AttentionScore, LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count, Positive
from dsinga.layers.interface.context import Columns, Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut, Keeps, Labels, ParamSpec, SourceKind
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape, float_bytes
from dsinga.layers.records.label import step_lengths
from dsinga.ops import Array, Ops, computes_in_blocks


class AttentionLayer(Layer):
    """Base of layers that weigh keys (B, Tk, n) for queries (B, Tq, n): a softmax of scores for each of ``num_heads``.

    Head h has the h-th of ``num_heads`` equal parts of n. The score of a query q and a key k is q·k/√(n/num_heads)
    (kScaledDot; Vaswani et al., Attention Is All You Need, 2017), q·k (kDot; Luong et al. 2015), or v·tanh(q + k) with
    the param v (kAdditive; Bahdanau et al. 2015).

    The labels (B, Tk) of an optional last source give the lengths of the keys; keys after the end have weight 0. With
    ``causal``, query t sees the keys 0 to t only. A query that sees no key gets zeros. With ``rotary``, queries and
    keys are first rotated by their positions (Su et al., RoFormer, 2021).
    """

    class Conf(Settings, name="AttentionConf"):
        """Settings of kAttention and kAttentionWeights."""

        num_heads: Count = setting(1, "the number of heads")
        score: AttentionScore = setting(
            AttentionScore.kScaledDot,
            "the score of key k for query q (n numbers): q·k/√n, q·k, or v·tanh(q + k) with a param v",
        )
        causal: bool = setting(False, "whether a query sees no later keys")
        rotary: bool = setting(
            False, "whether queries and keys are rotated by their positions, which scores by products then compare"
        )

    settings: Conf
    source_kind = SourceKind.kSequences
    cut = Cut(axis=2, gathered_because="needs all features of a head")
    bf16 = Bfloat16.kProducts
    values: ClassVar[int]
    """The largest number of sources that are values."""

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        count = 2 + (len(source_shapes) > 2 and self.values and len(source_shapes[2]) == 3)
        if len(source_shapes) == count + 1:
            self.labels = Labels(count)
        super().__init__(conf, source_shapes, info)
        self._check_sources(count)
        (rows, self.queries, columns), (_, self.keys, _) = self.source_shapes[:2]
        for shape in self.source_shapes[:count]:
            heads = self.heads = self.expect_equal_groups("num_heads", features=shape[2])
        if self.settings.causal and self.queries != self.keys:
            text = f"is causal, but has {self.queries} queries and {self.keys} keys"
            raise self.fail(f"{text}; leave causal out, or give both the same steps", field="causal")
        self._check_rotary(columns // heads)
        self.factor = 1.0
        if self.settings.score is AttentionScore.kScaledDot:
            self.factor = 1 / math.sqrt(columns // heads)
        if self.settings.score is AttentionScore.kAdditive:
            self.params = (ParamSpec("score", (columns,)),)
        self.rows = rows

    def _check_rotary(self, size: int) -> None:
        if not self.settings.rotary:
            return
        if self.settings.score is AttentionScore.kAdditive:
            raise self.fail("rotates what only products compare; leave rotary or kAdditive out", field="rotary")
        if size % 2:
            text = f"rotates pairs of features, but a head has {size}"
            raise self.fail(f"{text}; give queries and keys an even number of features a head", field="num_heads")

    def _check_sources(self, count: int) -> None:
        shapes = self.source_shapes
        if not 2 <= len(shapes) <= count + 1:
            values = ", values (batch, steps, m)" if self.values else ""
            raise self.fail(
                f"takes queries (batch, steps, n), keys (batch, steps, n){values} and a layer whose labels give the "
                f"lengths of the keys, not {len(shapes)} source layers; correct its srclayers",
                field="srclayers",
            )
        for index in range(count):
            self.expect_axes((3,), *SEQUENCES, index)
            fit = shapes[index][0] == shapes[0][0] and (index != 1 or shapes[1][2] == shapes[0][2])
            self.expect_alike(fit, "give both as many rows and features, by a kInnerProduct per_step", index)
        if count == 3:
            self.expect_alike(shapes[2][1] == shapes[1][1], "give as many values as keys", second=2, first=1)

    def visible(self, sources: Arrays) -> np.ndarray | None:
        """Return how many keys, from the first, each query sees, (B, Tq); None for all."""
        visible = None
        if self.labels.source is not None:
            lengths = step_lengths(self, sources[self.labels.source], self.keys, f"{self.keys} keys")
            visible = np.repeat(lengths[:, None], self.queries, axis=1)
        if self.settings.causal:
            before = np.arange(1, self.queries + 1)
            visible = np.tile(before, (len(sources[0]), 1)) if visible is None else np.minimum(visible, before)
        return visible

    def positioned(self, sources: Arrays, ctx: Context) -> tuple[Any, Any]:
        """Return queries and keys, rotated by their positions if ``rotary``."""
        query, keys = sources[:2]
        if not self.settings.rotary:
            return query, keys
        return rotate(query, self.heads, ctx.ops), rotate(keys, self.heads, ctx.ops)

    def weigh(self, params: Arrays, sources: Arrays, ctx: Context) -> tuple[Any, Any]:
        """Compute the attention weights (B, num_heads, Tq, Tk) and a workspace for their gradient."""
        score = params[0] if params else None
        query, keys = self.positioned(sources, ctx)
        return ctx.ops.attention_weights(query, keys, self.heads, self.factor, self.visible(sources), score)


@register("layer", kAttention=712)
class Attention(AttentionLayer):
    """For each query, the mean of the values, weighted by how well their keys match: (B, Tq, m).

    Sources are queries (B, Tq, n), keys (B, Tk, n), and optionally values (B, Tk, m), by default the keys. An optional
    last source has labels (B, Tk), which give the lengths. A third source with three axes is values.

    With ``num_heads`` h > 1, each of h parts of the features has weights of its own, and kScaledDot divides by √(n/h).
    Projections are kInnerProduct layers with ``per_step``. kAdditive has the param score (n,).
    """

    cut = Cut(Connection.kOneToOne, axis=2)
    bf16 = Bfloat16.kProducts
    values: ClassVar[int] = 1

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.has_values = len(self.source_shapes) - (self.labels.source is not None) == 3
        self.shape = (self.rows, self.queries, self.source_shapes[2 if self.has_values else 1][2])
        self.cut = Cut(Connection.kOneToOne, axis=2, groups=self.heads)
        if not self.params and not self.runs_user_code:
            self.keeps = Keeps(sources=0, feature=computes_in_blocks(self.queries, self.keys))

    def check_labels(self, sources: Sequence[Layer]) -> None:
        """Raise UserError if the third of three sources may be values or labels, as only input layers may."""
        if not self.has_values or self.labels.source is not None or not sources[2].is_input:
            return
        labels = sources[2].label_format
        if labels.dtype is None or labels.dtype.kind == "f" or labels.shape != (self.keys,):
            return
        queries, keys, values = map(repr, self.conf.srclayers)
        lengths = f"srclayers: [{queries}, {keys}, {keys}, {values}]".replace("'", '"')
        records = f"srclayers: [{queries}, {keys}]".replace("'", '"')
        if values != keys:
            records = "a kInnerProduct with per_step: true between"
        raise self.fail(
            f"could take the records of {values} as values, or their labels as lengths of the keys; for lengths write "
            f"{lengths}, for values {records}",
            field="srclayers",
        )

    def cut_conf(self, columns: Columns) -> LayerConf:
        heads = self.heads * (columns.stop - columns.start) // columns.total
        return self.conf.replace(attention_conf=self.settings.replace(num_heads=heads))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        if params:
            weights, workspace = self.weigh(params, sources, ctx)
            y = ctx.ops.weighted_means(weights, self._values(sources))
            return Output(y, saved=(weights, workspace) if ctx.training else None)
        query, keys = self.positioned(sources, ctx)
        visible, values = self.visible(sources), self._values(sources)
        y, workspace = ctx.ops.attention(query, keys, values, self.heads, self.factor, visible, ctx.training)
        if not ctx.training:
            return Output(y)
        return Output(y, saved=([ctx.ops.as_source(x) for x in (query, keys, values)], visible, workspace))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        ops = ctx.ops
        dscore: Sequence[Any] = ()
        if params:
            (weights, workspace), (query, keys) = output.saved, sources[:2]
            dweights, dvalues = ops.weighted_means_grad(weights, self._values(sources), grad)
            settings = self.factor, params[0]
            dquery, dkeys, *dscore = ops.attention_weights_grad(query, keys, weights, workspace, dweights, *settings)
        else:
            dquery, dkeys, dvalues = self._gradient_by_products(output, grad, ctx)
        grads = [dquery, dkeys, dvalues] if self.has_values else [dquery, ops.add(dkeys, dvalues)]
        grads += [None] * (len(sources) - len(grads))
        return [grad if need else None for grad, need in zip(grads, needs, strict=True)], tuple(dscore)

    def _gradient_by_products(self, output: Output, grad: Any, ctx: Context) -> tuple[Any, Any, Any]:
        (query, keys, values), visible, workspace = output.saved
        dquery, dkeys, dvalues = ctx.ops.attention_grad(
            query, keys, values, output.feature, workspace, grad, self.heads, self.factor, visible
        )
        if self.settings.rotary:
            dquery, dkeys = (rotate(x, self.heads, ctx.ops, back=True) for x in (dquery, dkeys))
        return dquery, dkeys, dvalues

    def saved_sizes(self, rows: int) -> list[int]:
        in_blocks = not self.params and computes_in_blocks(self.queries, self.keys)
        weights = (self.rows, self.heads, self.queries, 1 if in_blocks else self.keys)
        kept = self.source_shapes[: 2 + self.has_values] if self.keeps.sources == 0 else ()
        return [float_bytes(rows, weights), *(float_bytes(rows, shape) for shape in kept)]

    def _values(self, sources: Arrays) -> Any:
        return sources[2 if self.has_values else 1]


@register("layer", kAttentionWeights=713)
class AttentionWeights(AttentionLayer):
    """The weights of a kAttention with the same sources and settings, (B, num_heads, Tq, Tk), to look at.

    With kAdditive, it shares the ``score`` of the kAttention by ``share_from``.
    """

    is_output = True
    bf16 = Bfloat16.kProducts
    values: ClassVar[int] = 0

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = (self.rows, self.heads, self.queries, self.keys)
        if self.params and not any(param.share_from for param in conf.param):
            raise self.fail(
                'scores keys by a param, kAdditive, that it cannot train; add param { share_from: "NAME_score" } with '
                "the name of the kAttention"
            )

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(self.weigh(params, sources, ctx)[0])


SEQUENCES = ("sequences (batch, steps, features)", "put a kEmbedding layer between, if these are words")
BASE = 10_000.0


@register("layer", kPositionalEncoding=714)
class PositionalEncoding(Layer):
    """Adds positions to sequences, x·``scale`` + p: p[t, 2i] = sin(t/10000^(2i/n)), p[t, 2i + 1] = cos(t/10000^(2i/n)).

    Vaswani et al., Attention Is All You Need (2017), 3.5. Attention itself does not know the order of steps. The
    paper's ``scale`` for embeddings is √n.
    """

    class Conf(Settings):
        """Settings of kPositionalEncoding."""

        scale: Positive = setting(1.0, "what the source is multiplied by before the encoding is added")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, axis=2)
    source_kind = SourceKind.kSequences
    keeps = Keeps(sources=0, feature=False)

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
    """Compute the sines and cosines of positions, (``steps``, ``columns``) float64."""
    even = np.arange(columns) // 2 * 2
    angles = np.arange(steps)[:, None] / BASE ** (even / columns)
    return np.where(np.arange(columns) % 2 == 0, np.sin(angles), np.cos(angles))


def rotate(x: Array, heads: int, ops: Ops, start: int = 0, back: bool = False) -> Array:
    """Rotate each pair of features of each head of x (B, T, n) by an angle that grows with the step (rotary positions).

    In step ``start`` + t the pair (2i, 2i + 1) of a head of d features is rotated by (start + t)/10000^(2i/d), so the
    product of a query and a key depends only on the difference of their steps (Su et al., RoFormer, 2021, 3.2.2). Pairs
    are neighbours, as in the paper and in LLaMA; Hugging Face pairs features i and i + d/2. ``back`` rotates by the
    opposite angles, which is the gradient.
    """
    factors = rotations(start, x.shape[1], x.shape[2] // heads, heads, x.dtype.type(0).dtype.name)
    return ops.rotate_pairs(x, ops.asarray(factors.conj() if back else factors))


@functools.lru_cache(maxsize=64)
def rotations(start: int, steps: int, size: int, heads: int, dtype: str) -> np.ndarray:
    """Return e^(i·angle) for ``steps`` steps from ``start``, (steps, heads·size/2), equal for each head."""
    angles = np.arange(start, start + steps)[:, None] / BASE ** (np.arange(0, size, 2) / size)
    return np.tile(np.exp(1j * angles), (1, heads)).astype(np.result_type(dtype, np.complex64))


KEYS_AT_ONCE = 32  # attention is computed for a multiple of so many keys, so that few kernels are made


@register("layer", kCachedAttention=791)
class CachedAttention(Attention):
    """Attention for text generation: one step (B, 1, n) at a time, with the cached keys and values of earlier steps.

    Generation replaces each causal kAttention by it. It keeps the last ``steps`` steps.
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
    """Append a step (B, 1, n) to a copy of a cache (B, S, n) of ``count`` steps, dropping the first if full."""
    if count < cache.shape[1]:
        longer = cache.copy()
        longer[:, count : count + 1] = step
        return longer
    longer = cache.copy()
    longer[:, :-1], longer[:, -1:] = cache[:, 1:], step
    return longer
