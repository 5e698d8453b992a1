"""Normalisation over channels (kLRN), of rows (kLayerNorm, kRMSNorm, kSoftmax), by given moments (kNormalization)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Fault, Settings, setting
from dsinga.job.limits import Count, NonNegative, Pixels, Positive, Range
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Columns, Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut, Keeps, ParamSpec, SourceKind
from dsinga.layers.interface.layer import (
    Array,
    Arrays,
    Gradients,
    Layer,
    Output,
    Shape,
    float_bytes,
    from_matrix,
    to_matrix,
)
from dsinga.layers.interface.region import Reach, Region


@register("layer", kLRN=206, kCudnnLRN=252)
class LRN(Layer):
    """Local response normalisation of images (B, C, H, W), over ``local_size`` neighbouring channels.

    x·norm^(-beta) with norm = knorm + alpha/local_size · Σ x² over the channels c ± local_size//2. Krizhevsky,
    Sutskever and Hinton, ImageNet Classification with Deep CNNs (2012), 3.3, with alpha divided by local_size.
    """

    class Conf(Settings):
        """Settings of kLRN."""

        local_size: Pixels = setting(5, "how many channels are normalised together; an odd number")
        alpha: NonNegative = setting(1.0, "the factor of the mean of squares")
        beta: NonNegative = setting(0.75, "the exponent of the norm")
        knorm: Positive = setting(1.0, "what is added to the mean of squares")

        def faults(self) -> Iterator[Fault]:
            if self.local_size % 2 == 0:
                text = f"local_size is {self.local_size}; give an odd number, for as many channels on either side"
                yield Fault(text, "local_size")

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="looks at neighbouring channels", by_space=True)
    bf16 = Bfloat16.kFeatures

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        lrn = self.settings
        self.expect_axes((4,), "images (batch, channels, height, width)")
        self.factors = (lrn.local_size, lrn.alpha, lrn.beta, lrn.knorm)

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(*ctx.ops.lrn(sources[0], *self.factors, ctx.training))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (ctx.ops.lrn_grad(sources[0], output.saved, grad, *self.factors) if needs[0] else None,), ()

    def saved_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, self.source_shapes[0])] * 2  # the norm, and its power


class RowNorm(Layer):
    """Base of layers that normalise (B, ...) over ``first_axis`` and later axes, with params of the same shape."""

    source_kind = SourceKind.kAnyShape
    settings: Any
    source_count = 1
    cut = Cut(gathered_because="normalises over the features of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.axes_shape = self.shape[self.expect_axis("first_axis", 1) :]
        self.params = (ParamSpec("scale", self.axes_shape, None, initial=1.0),)

    def saved_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, self.source_shapes[0])]

    def _rows(self, x: Array, ctx: Context) -> Array:
        """Return x as (R, n), a row for each set of numbers normalised together."""
        return to_matrix(x, ctx.ops).reshape(-1, math.prod(self.axes_shape))

    def _unrow(self, rows: Array, like: Array, ctx: Context) -> Array:
        return from_matrix(rows.reshape(like.shape[0], math.prod(self.shape[1:])), like, ctx.ops)


@register("layer", kLayerNorm=722)
class LayerNorm(RowNorm):
    """Layer normalisation of (B, ...): scale·(x - mean)/√(var + epsilon) + bias, elementwise.

    Ba, Kiros and Hinton, Layer Normalization (2016). Mean and biased variance cover ``first_axis`` and the later axes:
    by default all numbers of a row; 2 normalises each step of a sequence (B, T, n). Params: scale and bias, with the
    shape of the normalised axes.
    """

    class Conf(Settings):
        """Settings of kLayerNorm."""

        first_axis: Annotated[int, Range(1, 3)] = setting(
            1, "the first axis normalised: 1 for all numbers of a row, 2 for each step"
        )
        epsilon: Positive = setting(1e-5, "what is added to the variance; beyond SINGA")

    settings: Conf
    keeps = Keeps(feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.params = (*self.params, ParamSpec("bias", self.axes_shape, None))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = self._rows(sources[0], ctx)
        scale, bias = (param.reshape(-1) for param in params)
        y, workspace = ctx.ops.layer_norm(x, scale, bias, self.settings.epsilon, ctx.training)
        return Output(self._unrow(y, sources[0], ctx), saved=(x, workspace) if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        x, workspace = output.saved
        scale = params[0].reshape(-1)
        dx, dscale, dbias = ctx.ops.layer_norm_grad(x, workspace, self._rows(grad, ctx), scale, self.settings.epsilon)
        for_source = self._unrow(dx, sources[0], ctx) if needs[0] else None
        return (for_source,), (dscale.reshape(self.axes_shape), dbias.reshape(self.axes_shape))


@register("layer", kRMSNorm=790)
class RMSNorm(RowNorm):
    """Division of (B, ...) by its root mean square: scale·x/√(mean(x²) + epsilon), without mean or bias.

    Zhang and Sennrich, Root Mean Square Layer Normalization (2019). The mean covers ``first_axis`` and the later axes,
    by default all numbers of a row. As in PyTorch, ε is inside the root. (PyTorch's default is 1.2e-7.)
    """

    class Conf(Settings):
        """Settings of kRMSNorm."""

        first_axis: Annotated[int, Range(1, 3)] = setting(
            1, "the first axis normalised: 1 for all numbers of a row, 2 for each step"
        )
        epsilon: Positive = setting(1e-5, "what is added to the mean square; beyond SINGA")

    settings: Conf
    keeps = Keeps(feature=False)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = self._rows(sources[0], ctx)
        y, workspace = ctx.ops.rms_norm(x, params[0].reshape(-1), self.settings.epsilon, ctx.training)
        return Output(self._unrow(y, sources[0], ctx), saved=(x, workspace) if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        x, workspace = output.saved
        dx, dscale = ctx.ops.rms_norm_grad(x, workspace, self._rows(grad, ctx), params[0].reshape(-1))
        return (self._unrow(dx, sources[0], ctx) if needs[0] else None,), (dscale.reshape(self.axes_shape),)

    def saved_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, self.shape[: self.settings.first_axis])]  # the inverse of each root


@register("layer", kSoftmax=214, kCudnnSoftmax=253)
class Softmax(Layer):
    """Softmax over each row of (B, ...), or over each of ``num_softmax_per_instance`` equal parts of a row."""

    source_kind = SourceKind.kAnyShape

    class Conf(Settings):
        """Settings of kSoftmax."""

        num_softmax_per_instance: Count = setting(
            1, "into how many equal parts a row is divided, each with a softmax of its own"
        )

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="normalises over all features of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        columns = math.prod(self.shape[1:])
        self.parts = self.expect_equal_groups("num_softmax_per_instance", features=columns)
        self.width = columns // self.parts

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        y = ctx.ops.softmax(self._to_rows(sources[0], ctx))
        return Output(self._from_rows(y, sources[0], ctx))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        dx = ctx.ops.softmax_grad(self._to_rows(output.feature, ctx), self._to_rows(grad, ctx))
        return (self._from_rows(dx, sources[0], ctx),), ()

    def _to_rows(self, x: Array, ctx: Context) -> Array:
        matrix = to_matrix(x, ctx.ops)
        return matrix if self.parts == 1 else matrix.reshape(x.shape[0] * self.parts, self.width)

    def _from_rows(self, rows: Array, like: Array, ctx: Context) -> Array:
        matrix = rows if self.parts == 1 else rows.reshape(like.shape[0], self.parts * self.width)
        return from_matrix(matrix, like, ctx.ops)


@register("layer", kNormalization=810)
class Normalization(Layer):
    """(x - mean)/std of (B, C, ...), or its inverse x·std + mean, with statistics by channel or by channel and point.

    The statistics are static params of the shape (C,) or of a row, rounded to float32. A net that starts with a
    kNormalization and ends with an ``inverse`` one reads and returns numbers in the units of the data. NaN stays NaN.
    """

    class Conf(Settings):
        """Settings of kNormalization: each is one number, one for each channel, or one for each number of a row."""

        mean: list[float] = setting([], "the means; 0 by default")
        std: list[Positive] = setting([], "the standard deviations; 1 by default")
        inverse: bool = setting(False, "whether the result is x·std + mean")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.expect_channels()
        self.params = (self._param("mean", 0.0), self._param("std", 1.0))

    def _param(self, name: str, default: float) -> ParamSpec:
        """Return the param that holds a statistic."""
        numbers: list[float] = getattr(self.settings, name) or [default]
        row = self.shape[1:]
        shape = row if len(numbers) == math.prod(row) and len(row) > 1 else row[:1]
        text = f"rows are {shape_text(row)}; give 1, one for each of {row[0]} channels, or all {math.prod(row)}"
        self.expect_numbers(name, (0, 1, math.prod(shape)), text)
        initial = np.broadcast_to(np.array(numbers, np.float32).reshape(shape if len(numbers) > 1 else ()), shape)
        return ParamSpec(name, shape, trainable=False, static=True, initial=initial)

    def cut_conf(self, columns: Columns) -> LayerConf:
        kept = {}
        for spec in self.params:
            numbers = getattr(self.settings, spec.role)
            if len(numbers) > 1:
                kept[spec.role] = np.reshape(numbers, spec.shape)[columns.start : columns.stop].reshape(-1).tolist()
        return self.conf.replace(normalization_conf=self.settings.replace(**kept))

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        return self.copy_for_region(region, source_shapes)

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, (mean, std) = sources[0], (self._by_point(param) for param in params)
        if self.settings.inverse:
            y = x * std
            y += mean
        else:
            y = x - mean
            y /= std
        return Output(y)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        std = self._by_point(params[1])
        dx = (grad * std if self.settings.inverse else grad / std) if needs[0] else None
        return (dx,), (None, None)

    def _by_point(self, param: Array) -> Array:
        """Reshape a statistic to broadcast against rows, or against this worker's points of them."""
        if self.region is not None and param.ndim > 1:
            return self.region.of(param, missing=1)
        return param.reshape(*param.shape, *(1,) * (len(self.shape) - 1 - param.ndim))


def statistics_lists(mean: Any, std: Any) -> dict[str, list[float]]:
    """Convert a mean and a std (numbers, arrays or None) to settings."""
    settings = {}
    for name, values in (("mean", mean), ("std", std)):
        if values is None:
            continue
        array = np.asarray(values, np.float64)
        if not np.isfinite(array).all() or (name == "std" and (array <= 0).any()):
            wrong = array[~np.isfinite(array) | (array <= 0 if name == "std" else False)][0]
            remedy = "give finite numbers" + (" above 0: a constant has nothing to normalise" if name == "std" else "")
            raise UserError(f"the {name} has {wrong:g}; {remedy}")
        settings[name] = array.reshape(-1).tolist()
    return settings
