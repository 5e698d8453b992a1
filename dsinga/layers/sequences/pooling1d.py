"""kPooling1D: pooling over windows of the steps of sequences, or over all steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf, StepPoolMethod
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Steps
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Output, Shape
from dsinga.layers.sequences.steps import StepWindows, WindowLayer

CHOOSING = (StepPoolMethod.FIRST, StepPoolMethod.LAST, StepPoolMethod.ENDS)  # methods that choose steps


@register("layer", kPooling1D=742)
class Pooling1D(WindowLayer):
    """Maximum, mean, sum, first or last step of each window: (B, T, n) to (B, T', n), or of all steps: (B, n).

    ENDS takes the first half of the features from the last step and the second half from the first: what both
    directions of a recurrent layer have computed of all steps.

    With ``kernel`` the windows have as many steps and begin every ``stride`` steps, T' = floor((T - kernel) / stride) +
    1. The labels of the optional second source give the lengths of the sequences: only steps before the end count, so
    that a mean is over these, and the last step is the last of these. A window after the end gives 0, and so does an
    empty sequence. A sequence shorter than ``kernel`` has one window.
    """

    class Conf(Settings):
        """Settings of kPooling1D."""

        pool: StepPoolMethod = setting(
            StepPoolMethod.MAX,
            "what a window gives: its maximum, mean, sum, first step, last step, or, of both directions of a recurrent "
            "layer, the last step of the one and the first of the other",
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
            dx = xp.zeros(x.shape, x.dtype)  # no step is chosen by two windows that count
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
        """Return (B, T', n), or (B, n) for the one window of all steps."""
        return y[:, 0] if self.over_all else y

    def _masked(self, x: Array, lengths: np.ndarray, ctx: Context, fill: float) -> Array:
        """Return ``x`` with ``fill`` after the ends of sequences."""
        real = ctx.ops.asarray(np.arange(self.steps) < lengths[:, None])
        return ctx.ops.xp.where(real[:, :, None], x, x.dtype.type(fill))

    def _counts(self, lengths: np.ndarray | None, ctx: Context) -> Array | None:
        """Return how many steps of each window count, (B, T', 1), None if all do."""
        if lengths is None:
            return None
        starts = self.windows.starts(self.steps)
        inside = np.arange(len(starts)) < self.windows.count(lengths)[:, None]
        counts = np.clip(lengths[:, None] - starts, 0, self.windows.kernel) * inside
        return ctx.ops.asarray(counts[:, :, None])

    def _mean_factor(self, counts: Array | None, dtype: Any, ctx: Context) -> Array | None:
        """Return the factor from means over whole windows to the sum, or the mean over the steps that count."""
        kernel = self.windows.kernel
        if self.method is StepPoolMethod.SUM:
            return dtype.type(kernel) if counts is None else ((counts > 0) * kernel).astype(dtype)
        if counts is None:
            return None
        return ((counts > 0) * kernel / ctx.ops.xp.maximum(counts, 1)).astype(dtype)

    def _halves(self, steps: Array, ctx: Context) -> list[tuple[Array, slice]]:
        """Return which steps, (B, T') or (1, T'), windows take of which features."""
        if self.method is not StepPoolMethod.ENDS:
            return [(steps, slice(None))]
        half = self.source_shapes[0][2] // 2
        firsts = ctx.ops.asarray(self.windows.starts(self.steps)[None])
        return [(steps, slice(half)), (firsts, slice(half, None))]

    def _at(self, x: Array, steps: Array, ctx: Context) -> Array:
        """Return the chosen steps (B, T', n)."""
        rows = ctx.ops.xp.arange(len(x))[:, None]
        parts = [x[rows, chosen, features] for chosen, features in self._halves(steps, ctx)]
        return parts[0] if len(parts) == 1 else ctx.ops.xp.concatenate(parts, axis=2)

    def _chosen_steps(self, lengths: np.ndarray | None, ctx: Context) -> tuple[Array, Array | None]:
        """Return the first or last step of each window, (B, T') or (1, T'), and whether it counts, (B, T', 1)."""
        starts, last = self.windows.starts(self.steps), self.windows.kernel - 1
        is_last = self.method is not StepPoolMethod.FIRST
        if lengths is None:
            return ctx.ops.asarray((starts + last if is_last else starts)[None]), None
        counts = self._counts(lengths, ctx)
        assert counts is not None
        ends = np.minimum(starts + last, np.maximum(lengths, 1)[:, None] - 1)
        steps = np.maximum(ends, starts) if is_last else np.broadcast_to(starts, ends.shape)
        return ctx.ops.asarray(np.ascontiguousarray(steps)), counts > 0


def as_image(x: Array) -> Array:
    """Return (B, T, n) as an image (B, n, T, 1), channels-last in memory."""
    return x.transpose(0, 2, 1)[..., None]


def as_steps(image: Array) -> Array:
    """Undo :func:`as_image`."""
    return image[..., 0].transpose(0, 2, 1)
