"""kConvolution1D and kPooling1D: convolution and pooling over the steps of sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf, StepPoolMethod
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count, Range, Steps
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Cut, ParamSpec
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Output, Shape
from dsinga.layers.sequences.steps import StepWindows, WindowLayer
from dsinga.ops.layout import contiguous
from dsinga.ops.recorded_array import check_equal_lengths


class _Gathered(NamedTuple):
    """Which windows of a batch count, as positions among B·T', and each window's steps among B·T."""

    positions: Array | None
    steps: Array
    padding: Array | None


@register("layer", kConvolution1D=741)
class Convolution1D(WindowLayer):
    """Convolution (cross-correlation) over steps: (B, T, n) to (B, T', num_filters).

    y[t] = W · (the ``kernel`` steps from t·``stride`` - pad on, joined) + b. The labels of an optional second source
    give the lengths of the sequences. Steps after the end count as zeros, and windows after the end give zeros.

    With ``group``, each group of filters reads only its group of the features. The steps of a window are ``dilation``
    apart. Params: weight (num_filters, kernel·n/group), with the steps of a window one after the other, and bias
    (num_filters,) unless ``bias_term`` is false.
    """

    class Conf(Settings):
        """Settings of kConvolution1D."""

        num_filters: Count = required("the number of filters")
        kernel: Steps = setting(3, "how many steps a window has")
        stride: Steps = setting(1, "by how many steps the window moves")
        pad: Annotated[int, Range(0, 100_000)] = setting(0, "the number of zero steps before and after each sequence")
        same: bool = setting(
            False,
            "whether to pad so that a stride of 1 keeps the number of steps; an even kernel has one more step after "
            "than before",
        )
        causal: bool = setting(
            False, "whether to pad before each sequence alone, so that no step depends on later ones; beyond SINGA"
        )
        bias_term: bool = setting(True, "whether a bias is added")
        group: Count = setting(1, "into how many equal groups filters and features are divided, as in kConvolution")
        dilation: Steps = setting(1, "how many steps apart neighbours in a window are")

    settings: Conf
    cut = Cut(gathered_because="has steps where others have features")
    bf16 = Bfloat16.kProducts
    rounds_source = rounds_gradient = True

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        rows, steps, features = self.source_shapes[0]
        kernel = settings.kernel
        windows = StepWindows(kernel, settings.stride, *self._padding(), settings.dilation)
        if steps + windows.before + windows.after < windows.extent:
            gaps = f" with a dilation of {settings.dilation}" if settings.dilation > 1 else ""
            raise self.fail(
                f"a kernel of {kernel}{gaps} does not fit {steps} steps padded by {settings.pad}; make kernel smaller, "
                "or set same: true",
                field="kernel",
            )
        self.bias = settings.bias_term
        self.groups = self.expect_equal_groups("group", features=features, filters=settings.num_filters)
        self.params = (ParamSpec("weight", (settings.num_filters, kernel * features // self.groups)),)
        if self.bias:
            self.params += (ParamSpec("bias", (settings.num_filters,)),)
        self.shape = (rows, self.set_windows(windows), settings.num_filters)

    def _padding(self) -> tuple[int, int]:
        settings = self.settings
        given = [name for name in ("pad", "same", "causal") if getattr(settings, name)]
        if len(given) > 1:
            raise self.fail(f"has both {given[0]} and {given[1]}; leave one of them out", settings, given[0])
        if given in ([], ["pad"]):
            return settings.pad, settings.pad
        around = (settings.kernel - 1) * settings.dilation
        return (around, 0) if settings.causal else (around // 2, around - around // 2)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, lengths = sources[0], self.lengths(sources)
        gathered = self._gather(len(x), lengths, ctx)
        windows = self._windows(x, gathered, ctx)
        y = self._multiply(windows, params[0], params[1] if self.bias else None, ctx)
        if gathered.positions is not None:
            computed = y
            y = ctx.ops.xp.zeros((len(x) * self.shape[1], self.shape[2]), x.dtype)
            y[gathered.positions] = computed
        saved = (gathered, windows) if ctx.training else None
        return Output(y.reshape(len(x), *self.shape[1:]), saved=saved, labels=self.window_labels(lengths, len(x)))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        gathered, windows = output.saved
        dy = grad.reshape(len(grad) * self.shape[1], self.shape[2])
        if gathered.positions is not None:
            dy = dy[gathered.positions]
        dwindows, dw, db = self._multiply_grad(windows, params[0], dy, needs[0], ctx)
        dx = None if dwindows is None else self._scatter(dwindows, gathered, sources[0], ctx)
        return (dx, *(None for _ in sources[1:])), (dw, db) if self.bias else (dw,)

    def _multiply(self, windows: Array, weight: Array, bias: Array | None, ctx: Context) -> Array:
        """Multiply windows (N, kernel·n) by the filters, group by group: (N, F)."""
        if self.groups == 1:
            return ctx.ops.inner_product(windows, weight, bias)
        y = ctx.ops.xp.empty_like(windows, shape=(len(windows), len(weight)))
        for part, rows in self._groups(windows):
            y[:, rows] = ctx.ops.inner_product(part, weight[rows], None if bias is None else bias[rows])
        return y

    def _multiply_grad(
        self, windows: Array, weight: Array, dy: Array, need_dx: bool, ctx: Context
    ) -> tuple[Array | None, Array, Array | None]:
        """Return the gradients for windows (None unless needed), weight and bias (or None)."""
        if self.groups == 1:
            return ctx.ops.inner_product_grad(windows, weight, dy, False, need_dx, self.bias)
        xp = ctx.ops.xp
        dw, db = xp.empty_like(weight), xp.empty_like(weight, shape=(len(weight),)) if self.bias else None
        shape = (len(windows), self.windows.kernel, self.groups, self._group_width)
        dwindows = xp.empty_like(windows, shape=shape)
        for group, (part, rows) in enumerate(self._groups(windows)):
            of_dy = contiguous(dy[:, rows])
            dx, dw[rows], of_bias = ctx.ops.inner_product_grad(part, weight[rows], of_dy, False, need_dx, self.bias)
            if db is not None:
                db[rows] = of_bias
            if dx is not None:
                dwindows[:, :, group] = dx.reshape(len(windows), self.windows.kernel, self._group_width)
        return dwindows.reshape(windows.shape) if need_dx else None, dw, db

    def _groups(self, windows: Array) -> Iterator[tuple[Array, slice]]:
        """Yield each group's features of the windows, (N, kernel·n/group), and its filters."""
        width, filters = self._group_width, self.shape[2] // self.groups
        by_group = windows.reshape(len(windows), self.windows.kernel, self.groups, width)
        for group in range(self.groups):
            part = by_group[:, :, group].reshape(len(windows), self.windows.kernel * width)
            yield part, slice(group * filters, (group + 1) * filters)

    @property
    def _group_width(self) -> int:
        return self.source_shapes[0][2] // self.groups

    def _gather(self, rows: int, lengths: np.ndarray | None, ctx: Context) -> _Gathered:
        taps = np.arange(self.windows.kernel) * self.windows.dilation
        steps = self.windows.starts(self.steps)[:, None] + taps  # (T', kernel)
        ends = np.full(rows, self.steps) if lengths is None else lengths
        steps = np.broadcast_to(steps, (rows, *steps.shape))
        real = (steps >= 0) & (steps < ends[:, None, None])
        steps = np.where(real, steps + np.arange(rows)[:, None, None] * self.steps, rows * self.steps)
        steps = steps.reshape(rows * self.shape[1], self.windows.kernel)
        real = real.reshape(steps.shape)
        positions = None
        if lengths is not None:
            check_equal_lengths(lengths)
            counted = np.arange(self.shape[1]) < self.windows.count(lengths)[:, None]
            positions = np.flatnonzero(counted)
            steps, real = steps[positions], real[positions]
        asarray = ctx.ops.asarray
        return _Gathered(
            None if positions is None else asarray(positions), asarray(steps), None if real.all() else asarray(~real)
        )

    def _windows(self, x: Array, gathered: _Gathered, ctx: Context) -> Array:
        """Return the windows that count as rows of a matrix (windows, kernel·n)."""
        features = x.shape[2]
        steps, flat = gathered.steps, x.reshape(x.shape[0] * self.steps, features)
        if gathered.padding is None:
            windows = flat[steps]
        else:
            windows = flat[ctx.ops.xp.minimum(steps, len(flat) - 1)]
            windows[gathered.padding] = 0
        return windows.reshape(len(windows), self.windows.kernel * features)

    def _scatter(self, dwindows: Array, gathered: _Gathered, x: Array, ctx: Context) -> Array:
        """Return the gradient for x: the sum over windows that contain a step."""
        features = x.shape[2]
        dwindows = dwindows.reshape(len(dwindows), self.windows.kernel, features)
        dx = ctx.ops.xp.zeros_like(x, shape=(x.shape[0] * self.steps + 1, features))  # the last row is for padding
        for tap in range(self.windows.kernel):  # no two windows take the same real step at one tap
            dx[gathered.steps[:, tap]] += dwindows[:, tap]
        return dx[:-1].reshape(x.shape)


CHOOSING = (StepPoolMethod.FIRST, StepPoolMethod.LAST, StepPoolMethod.ENDS)  # methods that choose steps


@register("layer", kPooling1D=742)
class Pooling1D(WindowLayer):
    """Maximum, mean, sum, first or last step of each window: (B, T, n) to (B, T', n), or of all steps: (B, n).

    With ``kernel`` the windows have as many steps and start every ``stride`` steps, T' = floor((T - kernel) / stride) +
    1. The labels of an optional second source give the lengths of the sequences. Only steps before the end count. A
    window after the end gives 0. A sequence shorter than ``kernel`` has one window.

    ENDS returns the last results of both directions of a recurrent layer.
    """

    class Conf(Settings):
        """Settings of kPooling1D."""

        pool: StepPoolMethod = setting(
            StepPoolMethod.MAX,
            "what a window gives: its maximum, mean, sum, first step, last step, or the ends of both directions",
        )
        kernel: Steps | None = setting(None, "how many steps are pooled together; all without it")
        stride: Steps | None = setting(None, "by how many steps the window moves; by kernel without it")

    settings: Conf
    cut = Cut(gathered_because="has steps where others have features")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        rows, steps, features = self.source_shapes[0]
        self.method = settings.pool
        self.over_all = settings.kernel is None
        if self.method is StepPoolMethod.ENDS and features % 2:
            raise self.fail(
                f"takes the features of both directions, but {self.source_name(0)} gives {features} a step, which have "
                "no halves; give pool: LAST for one direction",
                field="pool",
            )
        if settings.kernel is None:
            if settings.stride is not None:
                raise self.fail("pools over all steps, so that it has no stride; give it a kernel", settings, "stride")
            self.windows, self.shape = StepWindows(steps, 1), (rows, features)
            return
        if settings.kernel > steps:
            raise self.fail(
                f"a kernel of {settings.kernel} does not fit {steps} steps; make kernel smaller, or leave it out to "
                "pool over all steps",
                field="kernel",
            )
        count = self.set_windows(StepWindows(settings.kernel, settings.stride or settings.kernel))
        self.shape = (rows, count, features)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, lengths = sources[0], self.lengths(sources)
        labels = self.window_labels(lengths, len(x))
        if self.method in CHOOSING:
            steps, counted = self._chosen_steps(lengths, ctx)
            y = self._at(x, steps, ctx)
            return Output(self._joined(y if counted is None else y * counted.astype(x.dtype)), labels=labels)
        kernel, stride = (self.windows.kernel, 1), (self.windows.stride, 1)
        counts = self._counts(lengths, ctx)
        if self.method is StepPoolMethod.MAX:
            image = as_image(x if lengths is None else self._masked(x, lengths, ctx, -np.inf))
            y, workspace = ctx.ops.max_pool(image, kernel, stride, (0, 0), ctx.training)
            y = as_steps(y)
            if counts is not None:
                y = ctx.ops.xp.where(counts > 0, y, y.dtype.type(0))
            return Output(self._joined(y), saved=(image, workspace) if ctx.training else None, labels=labels)
        image = as_image(x if lengths is None else self._masked(x, lengths, ctx, 0))
        y = as_steps(ctx.ops.avg_pool(image, kernel, stride, (0, 0)))
        factor = self._mean_factor(counts, y.dtype, ctx)
        return Output(self._joined(y if factor is None else y * factor), labels=labels)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,) * len(sources), ()
        x, lengths, xp = sources[0], self.lengths(sources), ctx.ops.xp
        dy = grad[:, None] if self.over_all else grad
        kernel, stride = (self.windows.kernel, 1), (self.windows.stride, 1)
        if self.method in CHOOSING:
            steps, counted = self._chosen_steps(lengths, ctx)
            dx = xp.zeros_like(x, order="C")  # no step is chosen by two windows that count
            dy = dy if counted is None else dy * counted.astype(x.dtype)
            rows = xp.arange(len(x))[:, None]
            for chosen, features in self._halves(steps, ctx):
                dx[rows, chosen, features] += dy[:, :, features]
        elif self.method is StepPoolMethod.MAX:
            counts = self._counts(lengths, ctx)
            image, workspace = output.saved
            dy = dy if counts is None else dy * (counts > 0).astype(dy.dtype)
            dx = as_steps(ctx.ops.max_pool_grad(image, workspace, as_image(dy), kernel, stride, (0, 0)))
        else:
            factor = self._mean_factor(self._counts(lengths, ctx), dy.dtype, ctx)
            dy = dy if factor is None else dy * factor
            dx = as_steps(ctx.ops.avg_pool_grad(as_image(x), as_image(dy), kernel, stride, (0, 0)))
            dx = dx if lengths is None else self._masked(dx, lengths, ctx, 0)
        return (dx, *(None for _ in sources[1:])), ()

    def _joined(self, y: Array) -> Array:
        """Remove the axis of windows if a single window covers all steps: (B, T', n) becomes (B, n)."""
        return y[:, 0] if self.over_all else y

    def _masked(self, x: Array, lengths: np.ndarray, ctx: Context, fill: float) -> Array:
        real = ctx.ops.asarray(np.arange(self.steps) < lengths[:, None])
        return ctx.ops.xp.where(real[:, :, None], x, x.dtype.type(fill))

    def _counts(self, lengths: np.ndarray | None, ctx: Context) -> Array | None:
        """Return how many steps of each window count, (B, T', 1); None if all do."""
        if lengths is None:
            return None
        starts = self.windows.starts(self.steps)
        inside = np.arange(len(starts)) < self.windows.count(lengths)[:, None]
        counts = np.clip(lengths[:, None] - starts, 0, self.windows.kernel) * inside
        return ctx.ops.asarray(counts[:, :, None])

    def _mean_factor(self, counts: Array | None, dtype: Any, ctx: Context) -> Array | None:
        """Return the factor that turns means over whole windows into sums, or into means over steps that count."""
        kernel = self.windows.kernel
        if self.method is StepPoolMethod.SUM:
            return dtype.type(kernel) if counts is None else ((counts > 0) * kernel).astype(dtype)
        if counts is None:
            return None
        return ((counts > 0) * kernel / ctx.ops.xp.maximum(counts, 1)).astype(dtype)

    def _halves(self, steps: Array, ctx: Context) -> list[tuple[Array, slice]]:
        """Return steps, (B, T') or (1, T'), each with the slice of features that windows take from them."""
        if self.method is not StepPoolMethod.ENDS:
            return [(steps, slice(None))]
        half = self.source_shapes[0][2] // 2
        firsts = ctx.ops.asarray(self.windows.starts(self.steps)[None])
        return [(steps, slice(half)), (firsts, slice(half, None))]

    def _at(self, x: Array, steps: Array, ctx: Context) -> Array:
        """Gather the chosen steps of x, (B, T', n)."""
        rows = ctx.ops.xp.arange(len(x))[:, None]
        parts = [x[rows, chosen, features] for chosen, features in self._halves(steps, ctx)]
        return parts[0] if len(parts) == 1 else ctx.ops.xp.concatenate(parts, axis=2)

    def _chosen_steps(self, lengths: np.ndarray | None, ctx: Context) -> tuple[Array, Array | None]:
        """Return each window's first or last step, (B, T') or (1, T'), and whether it counts, (B, T', 1)."""
        starts, last = self.windows.starts(self.steps), self.windows.kernel - 1
        is_last = self.method is not StepPoolMethod.FIRST
        if lengths is None:
            return ctx.ops.asarray((starts + last if is_last else starts)[None]), None
        counts = self._counts(lengths, ctx)
        assert counts is not None
        ends = np.minimum(starts + last, np.maximum(lengths, 1)[:, None] - 1)
        steps = np.maximum(ends, starts) if is_last else np.broadcast_to(starts, ends.shape)
        return ctx.ops.asarray(contiguous(steps)), counts > 0


def as_image(x: Array) -> Array:
    """View sequences (B, T, n) as images (B, n, T, 1), channels-last in memory, for image kernels."""
    return x.transpose(0, 2, 1)[..., None]


def as_steps(image: Array) -> Array:
    """Undo :func:`as_image`: return images as sequences (B, T, n)."""
    return image[..., 0].transpose(0, 2, 1)
