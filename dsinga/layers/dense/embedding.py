"""kEmbedding and kOneHot: map integer codes to rows of a trained table or to one-hot vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count, Natural
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Connection, Cut, Keeps, ParamSpec, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.ops import SparseRows
from dsinga.ops.recorded_array import recorder
from dsinga.ops.types import is_on_device


class CodesLayer(Layer):
    """Base of layers of codes in [0, ``vocab_size``): (B, T) for sequences, -1 after the end, or (B,) for one step."""

    source_count = 1
    source_kind = SourceKind.kSequences
    takes_codes = True

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        shape = self.expect_axes((1, 2), "one code for each step, (batch, steps)")
        self.step = conf.unroll_index if len(shape) == 2 else None
        steps = (conf.unroll_len or shape[-1]) if self.step is None else self.step + 1
        if len(shape) == 2 and steps > shape[1]:
            raise self.fail(
                f"takes {steps} steps, but {self.source_name(0)} gives {shape[1]}; give both the same unroll_len",
                field="srclayers",
            )
        self.codes_shape = (shape[0], steps) if len(shape) == 2 and self.step is None else shape[:1]

    def codes(self, source: Any, ctx: Context) -> Array:
        """Check the source's codes and return them as int64.

        Codes on the device are not checked.
        """
        is_recorded = ctx.unread is not None and is_on_device(source)
        numbers = source if is_recorded else ctx.ops.to_numpy(source)
        if numbers.ndim == 2:
            numbers = numbers[:, : self.codes_shape[1]] if self.step is None else numbers[:, self.step]
        codes = numbers.astype(np.int64)  # a store may have numbers of any dtype
        if is_recorded:
            return (
                codes
                if numbers.dtype.kind in "iu"
                else ctx.ops.xp.where(codes == numbers, codes, np.int64(self.vocab_size))
            )
        wrong = (codes < -1) | (codes >= self.vocab_size) | (codes != numbers)
        if wrong.any():
            first = numbers[wrong].flat[0]
            remedy = "give vocab_size (input_dim in Python) the number of different words, users or films, with those"
            remedy += " that training does not see"
            if first != np.rint(first):
                remedy = "codes are whole numbers: number the values, or put a dense layer in place for plain numbers"
            raise self.fail(
                f"{self.source_name(0)} gives {first}, which is none of the codes from 0 to {self.vocab_size - 1}; "
                f"{remedy}"
            )
        return ctx.ops.asarray(codes)


@register("layer", kOneHot=197)
class OneHot(CodesLayer):
    """One-hot vectors (B, T, ``vocab_size``) of codes (B, T), or (B, ``vocab_size``) of codes (B,).

    The vectors after the end of a sequence (code -1) are 0.
    """

    class Conf(Settings, name="OnehotConf"):
        """Settings of kOneHot."""

        vocab_size: Count | None = setting(None, "the number of different codes; must be given")

    settings: Conf
    cut = Cut(gathered_because="makes all columns from one code")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        if self.settings.vocab_size is None:
            text = "needs vocab_size, the number of different characters or words"
            raise self.fail(text, field="vocab_size")
        self.vocab_size = self.settings.vocab_size
        self.shape = (*self.codes_shape, self.vocab_size)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(ctx.ops.one_hot(self.codes(sources[0], ctx), self.vocab_size))


@register("layer", kEmbedding=216)
class Embedding(CodesLayer):
    """Look up codes (B, T) in a table: (B, T, ``feature_dim``), or (B, ``feature_dim``) for one step (B,).

    Param: weight (``vocab_size``, ``feature_dim``). Its gradient has only the rows that were looked up. Other rows do
    not move, unless ``dense_gradient`` makes the gradient a whole array.

    The feature is 0 after the end of a sequence (code -1). The vector of ``padding_code`` gets no gradient.
    """

    class Conf(Settings):
        """Settings of kEmbedding."""

        vocab_size: Count = required("the number of different codes")
        feature_dim: Count = setting(100, "the width of the vectors")
        dense_gradient: bool = setting(
            False, "whether the gradient is a whole array, so that updaters move all rows in each step"
        )
        padding_code: Natural | None = setting(None, "the code of padding; its vector gets no gradient")

    settings: Conf
    cut = Cut(gathered_because="has steps where others have features")
    keeps = Keeps(feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        self.vocab_size = settings.vocab_size
        self.dense_gradient = settings.dense_gradient
        sparse = not self.dense_gradient
        self.params = (ParamSpec("weight", (self.vocab_size, settings.feature_dim), cut_axis=1, sparse=sparse),)
        self.shape = (*self.codes_shape, settings.feature_dim)
        if len(self.shape) == 2:
            self.cut = Cut(Connection.kOneToAll, width="feature_dim")

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        codes = self.codes(sources[0], ctx)
        if not ctx.training:
            return Output(ctx.ops.embedding(params[0], codes))
        padding = self.settings.padding_code
        trained = codes if padding is None else ctx.ops.xp.where(codes == padding, -1, codes)
        return Output(ctx.ops.embedding(params[0], codes), saved=trained)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        def compute(codes: Array, dy: Array) -> Any:
            rows, values = map(ctx.ops.to_numpy, ctx.ops.embedding_grad(codes, dy))
            gradient = SparseRows(rows.astype(np.int64, copy=False), values, params[0].shape)
            return ctx.ops.asarray(gradient.dense()) if self.dense_gradient else gradient

        if (recorded := recorder()) is None:
            return (None,), (compute(output.saved, grad),)
        in_each_pass = recorded.array_of if self.dense_gradient else recorded.result_of
        return (None,), (in_each_pass(compute, output.saved, grad),)
