"""Elementwise activations and dropout: kReLU, kPReLU, kSigmoid, kSTanh, kDropout."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from dsinga.base.registry import register
from dsinga.job import DropoutUnit, LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Natural, NonNegative, Share
from dsinga.layers.interface.context import Context, RecordInfo, Rows
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut, Keeps, ParamSpec, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, float_bytes, from_matrix
from dsinga.layers.interface.region import Reach
from dsinga.ops import Ops

# 1.7159·tanh(2x/3): LeCun et al., Efficient BackProp (1998), 4.4, with SINGA's digits.
OUTER, INNER = 1.7159047, 0.66666667


class ElementwiseFunction(Layer):
    """Base of activations: layers that apply a function to each element."""

    source_kind = SourceKind.kAnyShape
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)
    keeps = Keeps(sources=0)

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    @abstractmethod
    def forward(self, x: Array, ops: Ops) -> Array:
        """Compute the activation y = f(x)."""

    @abstractmethod
    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        """Compute the activation's gradient dy·f'(x) from y."""

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(self.forward(sources[0], ctx.ops))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (self.backward(output.feature, grad, ctx.ops) if needs[0] else None,), ()


@register("layer", kReLU=211)
class ReLU(ElementwiseFunction):
    """Rectifier, max(x, 0) + negative_slope·min(x, 0)."""

    class Conf(Settings):
        """Settings of kReLU."""

        negative_slope: NonNegative = setting(0.0, "the slope for negative inputs")

    settings: Conf
    bf16 = Bfloat16.kFeatures

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.relu(x, self.settings.negative_slope)

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return ops.relu_grad(y, dy, self.settings.negative_slope)


@register("layer", kPReLU=752)
class PReLU(Layer):
    """Rectifier with learnt slopes, x where x > 0 and slope·x elsewhere, (B, C, ...) with a slope for each channel.

    With ``shared``, all channels share one slope. Param: slope (C,), or (1,). He et al., Delving Deep into Rectifiers
    (2015), train the slopes without weight decay: ``wd_scale: 0``.
    """

    class Conf(Settings):
        """Settings of kPReLU."""

        initial_slope: NonNegative = setting(0.25, "the slope for negative inputs with which training begins")
        shared: bool = setting(False, "whether all channels have the same slope")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)
    keeps = Keeps(feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.expect_channels()
        initial, shared = self.settings.initial_slope, self.settings.shared
        slopes = (1,) if shared else self.shape[1:2]
        self.params = (ParamSpec("slope", slopes, None if shared else 0, initial=initial),)

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    def _select(self, x: Array, values: Array, slope: Array, ctx: Context) -> Array:
        """Return ``values`` where x > 0, and ``values`` times the channel's slope elsewhere."""
        by_channel = slope.reshape(-1, *[1] * (x.ndim - 2))
        return ctx.ops.xp.where(x > 0, values, by_channel * values)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(self._select(sources[0], sources[0], params[0], ctx))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        x, slope = sources[0], params[0]
        sums = ctx.ops.channel_sums(ctx.ops.xp.minimum(x, 0), grad)
        dslope = sums.sum(keepdims=True) if self.settings.shared else sums
        return (self._select(x, grad, slope, ctx) if needs[0] else None,), (dslope.astype(slope.dtype),)

    def backward_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, self.shape)] * 2  # the negative inputs, and the gradient times the slopes


@register("layer", kSigmoid=213)
class Sigmoid(ElementwiseFunction):
    """Logistic sigmoid, 1 / (1 + exp(-x))."""

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.sigmoid(x)

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return ops.sigmoid_grad(y, dy)


@register("layer", kSTanh=212)
class STanh(ElementwiseFunction):
    """Scaled tanh, 1.7159047·tanh(0.66666667·x)."""

    outer: ClassVar[float] = OUTER
    inner: ClassVar[float] = INNER

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.tanh(x, self.outer, self.inner)

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return ops.tanh_grad(y, dy, self.outer, self.inner)


class Tanh(STanh):
    """Plain tanh(x), a function of kActivation."""

    outer: ClassVar[float] = 1.0
    inner: ClassVar[float] = 1.0


@register("layer", kDropout=203)
class Dropout(Layer):
    """Dropout: in training a random share ``dropout_ratio`` of the units is 0, the others are x/(1 - ratio).

    In other phases the feature is x (Srivastava et al., Dropout, JMLR 2014). A ``unit`` is:

    - kNumber: a number.
    - kChannel: a channel of a row (Tompson et al., Efficient Object Localization Using Convolutional Networks, 2015).
    - kRow: a row, to drop a residual branch (Huang et al., Deep Networks with Stochastic Depth, 2016).
    - kFeature: a feature of a sequence (B, T, n) at all steps, as Keras's recurrent layers drop their inputs.

    With a ``member``, units are dropped outside training, too: the same units in all rows, and whole channels of images
    and volumes. (Gal and Ghahramani, Dropout as a Bayesian Approximation, 2016.)
    """

    source_kind = SourceKind.kAnyShape

    class Conf(Settings):
        """Settings of kDropout."""

        dropout_ratio: Share = setting(0.5, "the fraction of units set to zero")
        unit: DropoutUnit = setting(
            DropoutUnit.kNumber,
            "what is set to zero together: single numbers, channels, rows, or features at all steps; beyond SINGA",
        )
        member: Natural = setting(
            0, "the member of an ensemble, from 1: its units are dropped outside training; 0 for none"
        )

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)
    keeps = Keeps(sources=0, feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        if self.settings.unit is DropoutUnit.kFeature:
            self.expect_axes(
                (2, 3), "sequences (batch, steps, n), whose features it drops at all steps", "leave unit out"
            )
            self.cut = Cut(Connection.kOneToOne)

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, ratio = sources[0], self.settings.dropout_ratio
        if ratio and self.settings.member and not ctx.training:
            return Output(x * ctx.ops.dropout_mask(self._numbers_of_member(ctx), ratio).astype(x.dtype, copy=False))
        if not ctx.training or ratio == 0:
            return Output(x)
        mask = ctx.ops.dropout_mask(self._numbers(ctx), ratio)
        if mask.ndim == 2:
            mask = from_matrix(mask, x, ctx.ops)
        return Output(_masked(x, mask, ctx), saved=mask)

    def _numbers(self, ctx: Context) -> Array:
        """Draw uniform random numbers that decide what is dropped: (rows, n), or one a unit, to broadcast."""
        unit, axes = self.settings.unit, len(self.shape)
        if axes > 2 and unit is DropoutUnit.kRow:
            return ctx.random(self.name, 1).reshape(-1, *[1] * (axes - 1))
        if axes > 2 and unit is DropoutUnit.kFeature:
            return ctx.random(self.name, self.shape[-1])[:, None]
        if axes > 2 and unit is DropoutUnit.kChannel:
            numbers = ctx.random(self.name, self.shape[1], self.columns)
            return numbers.reshape(*numbers.shape, *[1] * (axes - 2))
        if unit is DropoutUnit.kRow:
            return ctx.random(self.name, 1).repeat(self.shape[1], axis=1)
        return self.random(ctx)

    def _numbers_of_member(self, ctx: Context) -> Array:
        """Draw the member's uniform random numbers, (1, ...), which broadcast with the feature."""
        ctx, axes = replace(ctx, rows=Rows(0, 1, 1), step=self.settings.member), len(self.shape)
        if self.settings.unit is DropoutUnit.kRow:
            return ctx.random(self.name, 1).reshape((1,) * axes)
        if self.settings.unit is DropoutUnit.kFeature:
            return ctx.random(self.name, self.shape[-1]).reshape(*(1,) * (axes - 1), -1)
        if axes > 3 or self.settings.unit is DropoutUnit.kChannel:
            return ctx.random(self.name, self.shape[1], self.columns).reshape(1, -1, *[1] * (axes - 2))
        return self.random(ctx).reshape(1, *self.shape[1:])

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        return (grad if output.saved is None else _masked(grad, output.saved, ctx),), ()

    def saved_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, self.source_shapes[0])]  # the mask


def _masked(x: Array, mask: Array, ctx: Context) -> Array:
    """Multiply by a mask of each number, or by one that has axes of length 1."""
    return ctx.ops.multiply(x, mask) if mask.shape == x.shape else x * mask
