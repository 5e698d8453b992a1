"""Layers that combine two or more features: kAdd, kMultiply, kCosineSimilarity, and kDueling for Q-values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Positive
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut, Keeps, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, from_matrix, to_matrix
from dsinga.layers.interface.region import Reach


class ElementwiseCombination(Layer):
    """Base of layers that combine sources of one shape into a feature of that shape."""

    source_kind = SourceKind.kAnyShape
    cut = Cut(Connection.kOneToOne, by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.expect_some_source()
        for index, shape in enumerate(self.source_shapes):
            remedy = "bring both to one shape, by a dense layer or a convolution"
            self.expect_alike(shape == self.shape, remedy, index, verb="combines")

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()


@register("layer", kAdd=720)
class Add(ElementwiseCombination):
    """The sum of the sources, such as x + f(x) of a residual net (He et al., Deep Residual Learning, 2016)."""

    bf16 = Bfloat16.kFeatures
    keeps = Keeps(sources=0, feature=False)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(reduce(ctx.ops.add, sources))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return tuple(grad if need else None for need in needs), ()


@register("layer", kMultiply=721)
class Multiply(ElementwiseCombination):
    """The product of the sources, such as x·gate(x)."""

    keeps = Keeps(feature=False)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(reduce(ctx.ops.multiply, sources))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        def gradient_times_others(index: int) -> Array:
            """Return the gradient for one source: dy times all other sources (dividing the product fails at 0)."""
            return reduce(ctx.ops.multiply, (*sources[:index], *sources[index + 1 :]), grad)

        return tuple(gradient_times_others(index) if need else None for index, need in enumerate(needs)), ()


SMALLEST_NORM = 1e-8  # as PyTorch's: a shorter row counts as one of this length


@register("layer", kCosineSimilarity=743)
class CosineSimilarity(Layer):
    """Cosine similarity of two sources: ``scale``·x·y / (|x|·|y|) for each row of (B, ...), as (B, 1).

    A row of zeros has the similarity 0.
    """

    source_kind = SourceKind.kVectors

    class Conf(Settings):
        """Settings of kCosineSimilarity."""

        scale: Positive = setting(1.0, "the factor of the cosine")

    settings: Conf
    source_count = 2
    cut = Cut(gathered_because="compares the features of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.scale = self.settings.scale
        first, second = self.source_shapes
        self.expect_alike(first == second, "give both the same num_output")
        self.shape = (first[0], 1)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        xp = ctx.ops.xp
        x, y = (to_matrix(source, ctx.ops) for source in sources)
        inverse_x, inverse_y = (
            1 / xp.maximum(xp.sqrt(xp.einsum("ij,ij->i", z, z)[:, None]), SMALLEST_NORM) for z in (x, y)
        )
        cosine = xp.einsum("ij,ij->i", x, y)[:, None] * inverse_x * inverse_y
        return Output(cosine * x.dtype.type(self.scale), saved=(cosine, inverse_x, inverse_y) if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        cosine, inverse_x, inverse_y = output.saved
        x, y = (to_matrix(source, ctx.ops) for source in sources)
        slope = grad * grad.dtype.type(self.scale)
        pairs = ((x, inverse_x, y * inverse_y), (y, inverse_y, x * inverse_x))
        gradients = [
            from_matrix(slope * inverse * (unit - cosine * inverse * z), source, ctx.ops) if need else None
            for need, source, (z, inverse, unit) in zip(needs, sources, pairs, strict=True)
        ]
        return gradients, ()


@register("layer", kDueling=739)
class Dueling(Layer):
    """Q-values of a dueling net, v + a - mean(a), from a value v (B, 1) and advantages a (B, K) (Wang et al. 2016)."""

    source_count = 2
    cut = Cut(gathered_because="takes the mean over all advantages of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        value, advantages = self.source_shapes
        fit = value == (advantages[0], 1) and len(advantages) == 2
        self.expect_alike(fit, f"give a value {advantages[0]} x 1 and then the advantages (batch, K)", verb="combines")
        self.shape = advantages

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        value, advantages = sources
        return Output(advantages + (value - advantages.sum(axis=1, keepdims=True) / self.shape[1]))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        of_value = grad.sum(axis=1, keepdims=True)
        of_advantages = grad - of_value / self.shape[1] if needs[1] else None
        return [of_value if needs[0] else None, of_advantages], ()
