"""Embeddings of numbers: learnt piecewise-linear and periodic functions of each number.

Gorishniy, Rubachev and Babenko, On Embeddings for Numerical Features in Tabular Deep Learning (2022). Each number of a
record (B, n) becomes ``width`` neighbouring numbers of the feature (B, n·width).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dsinga.addons.tables.layers.own_products import own_product_gradients, own_products
from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Fault, Settings, setting
from dsinga.job.limits import Count
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut, ParamSpec
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, float_bytes

WIDTH = "how many numbers each number becomes"
RECTIFIED = "whether what is negative becomes 0 in the end"


class NumberEmbedding(Layer):
    """Base class of embeddings of numbers: a code (B, n, c) of each, times its own weight (n, c, width)."""

    settings: Any
    source_count = 1
    cut = Cut(gathered_because="gives several features for each number")
    bf16 = Bfloat16.kProducts

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        rows, self.numbers = self.expect_axes((2,), "numbers (batch, numbers)")
        self.shape = (rows, self.numbers * self.settings.width)

    def flat(self, products: Array) -> Array:
        """Reshape products (B, n, width) to the feature (B, n·width)."""
        return products.reshape(len(products), self.shape[1])

    def by_number(self, grad: Array) -> Array:
        """Reshape a gradient for the feature to (B, n, width)."""
        return grad.reshape(len(grad), self.numbers, self.settings.width)


@register("layer", kPiecewiseLinear=907)
class PiecewiseLinear(NumberEmbedding):
    """A piecewise-linear function of each number, with given kinks and learnt values: (B, n) to (B, n·width).

    The code of a number x with the edges b₀ < b₁ < ... is (x - bᵢ)/(bᵢ₊₁ - bᵢ) for each bin i, limited to [0, 1]. The
    first bin has no lower limit and the last one no upper limit. Params: weight (n, bins, width), which multiplies the
    code, bias (n, width) and, unless ``linear`` is false, slope (n, width): x·slope is added. It is version "B" of the
    package rtdl_num_embeddings if the weight starts with 0, and "A" without ``linear``.
    """

    class Conf(Settings):
        """Settings of kPiecewiseLinear."""

        edge: list[float] = setting([], "the edges of the bins of all numbers, from the first number on")
        edges: list[Count] = setting([], "how many edges each number has, at least 2")
        width: Count = setting(16, WIDTH)
        linear: bool = setting(True, "whether a linear function is added")
        rectified: bool = setting(False, RECTIFIED + ", before the linear function is added")

        def faults(self) -> Iterator[Fault]:
            """Yield an error for edges: too few, not as many as ``edges`` says, or in a wrong order."""
            if sum(self.edges) != len(self.edge):
                yield Fault(f"edge has {len(self.edge)} numbers, but edges has {sum(self.edges)} in all", "edges")
                return
            for number, bins in enumerate(self.bins()):
                if len(bins) < 2 or not all(low < high for low, high in pairwise(bins)):
                    text = f"the edges of number {number} are {bins}; give at least two, each above the last"
                    yield Fault(text, "edge")

        def bins(self) -> list[list[float]]:
            """Return the edges of each number's bins."""
            ends = [sum(self.edges[: number + 1]) for number in range(len(self.edges))]
            return [self.edge[end - count : end] for end, count in zip(ends, self.edges, strict=True)]

    settings: Conf

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        because = f"{self.source_name(0)} gives {self.numbers} numbers; give how many edges each has"
        self.expect_numbers("edges", (self.numbers,), because)
        bins, width = self.settings.bins(), self.settings.width
        most = max(map(len, bins)) - 1
        self.factor, self.shift, self.low, self.high = np.zeros(
            (4, self.numbers, most)
        )  # bins that are not there give 0
        for number, edges in enumerate(np.array(edges, np.float64) for edges in bins):
            count = len(edges) - 1
            self.factor[number, :count] = 1 / np.diff(edges)
            self.shift[number, :count] = -edges[:-1] / np.diff(edges)
            self.high[number, :count] = 1
            self.low[number, 0], self.high[number, count - 1] = -math.inf, math.inf
        self.params = (
            ParamSpec("weight", (self.numbers, most, width), None),
            ParamSpec("bias", (self.numbers, width), None),
        )
        if self.settings.linear:
            self.params += (ParamSpec("slope", (self.numbers, width), None),)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, (weight, bias, *slope), xp = sources[0][:, :, None], params, ctx.ops.xp
        factor, shift, low, high = self._constants(x, ctx)
        code = xp.minimum(xp.maximum(x * factor + shift, low), high)
        y = own_products(code, weight, ctx.ops)
        rectifies = self.settings.rectified
        if not (rectifies and slope):
            y += bias
        positive = y > 0 if rectifies else None
        y = xp.maximum(y, 0) if rectifies else y
        if slope:
            y += x * slope[0] + bias if rectifies else x * slope[0]
        return Output(self.flat(y), saved=(code, positive) if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        x, (weight, _, *slope), (code, positive) = sources[0][:, :, None], params, output.saved
        whole = self.by_number(grad)
        grad = whole if positive is None else whole * positive
        for_code, for_weight = own_product_gradients(code, weight, grad, needs[0], ctx.ops)
        for_params = [for_weight, (whole if slope else grad).sum(axis=0), *((whole * x).sum(axis=0) for _ in slope)]
        if for_code is None:
            return (None,), for_params
        factor, shift, low, high = self._constants(x, ctx)
        moves = (x * factor + shift > low) & (x * factor + shift < high)
        for_x = (for_code * (moves * factor)).sum(axis=2)
        if slope:
            for_x += (whole * slope[0]).sum(axis=2)
        return (for_x,), for_params

    def _constants(self, x: Array, ctx: Context) -> list[Array]:
        return [ctx.ops.asarray(array.astype(x.dtype)) for array in (self.factor, self.shift, self.low, self.high)]

    def saved_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, (rows, *self.factor.shape))]


@register("layer", kPeriodic=908)
class Periodic(NumberEmbedding):
    """Waves of each number times a weight of its own, (B, n) to (B, n·width): embeddings of numbers in tables.

    The code of a number x is ``waves`` cosines cos(2π·f·x + p) with learnt frequencies f and phases p. Without
    ``phases`` it is as many cosines cos(2π·f·x) and sines. ``rectified`` applies max(·, 0) to the sums. Params:
    frequency (n, waves), perhaps phase (n, waves), weight (n, waves or twice as many, width) and bias (n, width).

    Rectified and without phases it is PLR (Gorishniy et al. 2022). With phases, not rectified and next to the number
    itself, it is PBLD (Holzmüller et al., Better by Default, 2024).
    """

    class Conf(Settings):
        """Settings of kPeriodic."""

        waves: Count = setting(16, "how many frequencies each number has")
        width: Count = setting(3, WIDTH)
        phases: bool = setting(True, "whether waves are cosines with learnt phases, not cosines and sines")
        rectified: bool = setting(False, RECTIFIED)

    settings: Conf

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings, numbers = self.settings, self.numbers
        waves = numbers, settings.waves
        self.code_size = settings.waves * (1 if settings.phases else 2)
        weight = ParamSpec("weight", (numbers, self.code_size, settings.width), None)
        phase = (ParamSpec("phase", waves, None),) if settings.phases else ()
        bias = ParamSpec("bias", (numbers, settings.width), None)
        self.params = (ParamSpec("frequency", waves, None), *phase, weight, bias)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        frequency, *phase, weight, bias = params
        x, xp = sources[0][:, :, None], ctx.ops.xp
        angle = x * (frequency * frequency.dtype.type(2 * math.pi))
        if phase:
            angle += phase[0]
        code = xp.cos(angle) if phase else xp.concatenate([xp.cos(angle), xp.sin(angle)], axis=2)
        y = own_products(code, weight, ctx.ops)
        y += bias
        if self.settings.rectified:
            y = xp.maximum(y, 0)
        return Output(self.flat(y), saved=(angle, code) if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        (frequency, *phase, weight, _), (angle, code) = params, output.saved
        x, xp, turn = sources[0][:, :, None], ctx.ops.xp, frequency.dtype.type(2 * math.pi)
        grad = self.by_number(grad * (output.feature > 0) if self.settings.rectified else grad)
        for_code, for_weight = own_product_gradients(code, weight, grad, True, ctx.ops)
        assert for_code is not None
        if phase:
            for_angle = -for_code * xp.sin(angle)
        else:
            waves = angle.shape[2]
            for_angle = for_code[:, :, waves:] * code[:, :, :waves] - for_code[:, :, :waves] * code[:, :, waves:]
        for_phase = [for_angle.sum(axis=0) for _ in phase]
        for_x = (for_angle * (frequency * turn)).sum(axis=2) if needs[0] else None
        return (for_x,), ((for_angle * x).sum(axis=0) * turn, *for_phase, for_weight, grad.sum(axis=0))

    def saved_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, (rows, self.numbers, size)) for size in (self.settings.waves, self.code_size)]


@register("layer", kColumnScale=909)
class ColumnScale(Layer):
    """The source times a learnt factor for each column, (B, n) to (B, n); factors start with 1.

    As the first layer it learns which columns matter (Holzmüller et al., Better by Default, 2024). Param: scale (n,).
    """

    source_count = 1
    cut = Cut(Connection.kOneToOne)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        _, columns = self.expect_axes((2,), "columns (batch, columns)")
        self.params = (ParamSpec("scale", (columns,), initial=1.0),)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(sources[0] * params[0])

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (grad * params[0] if needs[0] else None,), ((grad * sources[0]).sum(axis=0),)
