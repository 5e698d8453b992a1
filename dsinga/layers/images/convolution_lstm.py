"""kConvLSTM: a convolutional LSTM over sequences of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import required, setting
from dsinga.job.limits import Count
from dsinga.layers.images.sliding import Window, WindowConf, same_window, sliding_window
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Cut, ParamSpec
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, float_bytes
from dsinga.ops import Ops
from dsinga.ops.layout import LAST, contiguous, to_image


class _Step(NamedTuple):
    """The values of a forward step that its gradient needs, for n = B·H'·W' points.

    ``gates`` (n, 4F) are i, f, o after their function, and σ of g's sum at the place of g. Others are (n, F).
    """

    gates: Array
    candidate: Array
    cell: Array
    output: Array


@register("layer", kConvLSTM=890)
class ConvLSTM(Layer):
    """Convolutional LSTM without peepholes, as Keras's ConvLSTM2D: (B, T, C, H, W) to (B, T, F, H', W').

    Shi et al., Convolutional LSTM Network (2015): i, f, o = σ and g = tanh of x ∗ hx + h ∗ hh + b, c' = f∘c + i∘g, h' =
    o∘tanh(c'). ∗ is a convolution and F = ``num_filters``. The convolution of x has the window of the settings. The
    convolution of h has the same kernel, a stride of 1, and padding that keeps the size (H', W'). h and c start with
    zeros. With ``last`` the feature is the last step, (B, F, H', W').

    Params: hx (4F, C·kh·kw), hh (4F, F·kh·kw) and, unless ``bias_term`` is false, b (4F,). The gates i, f, g, o are
    stacked in this order, as in kLSTM.
    """

    class Conf(WindowConf):
        """Settings of kConvLSTM; kernel 3, pad 0, stride 1 by default."""

        num_filters: Count = required("the number of channels of the hidden state")
        bias_term: bool = setting(True, "whether a bias is added")
        last: bool = setting(False, "whether the feature is the last step")

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="computes each feature of a step from all of the step before")
    bf16 = Bfloat16.kProducts
    rounds_source = True

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        remedy = "put a kReshape layer between, if the steps are channels of an image"
        shape = self.expect_axes((5,), "images over steps (batch, steps, channels, height, width)", remedy)
        rows, self.steps, channels, *size = shape
        self.filters = filters = settings.num_filters
        self.window = sliding_window(self, settings, 1, (size[0], size[1]))
        self.recurrent_window = same_window(self.window.outputs, self.window.kernel, (1,) * 2)
        self.kernels = [(4 * filters, inputs, *self.window.kernel) for inputs in (channels, filters)]
        self.params = tuple(
            ParamSpec(role, (4 * filters, math.prod(kernel[1:])))
            for role, kernel in zip(("hx", "hh"), self.kernels, strict=True)
        )
        if settings.bias_term:
            self.params += (ParamSpec("b", (4 * filters,)),)
        self.shape = (rows, *(() if settings.last else (self.steps,)), filters, *self.window.outputs)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        ops, x = ctx.ops, sources[0]
        kernel_x, kernel_h = (w.reshape(shape) for w, shape in zip(params, self.kernels, strict=False))
        images = by_step(x)
        bias = params[2] if self.settings.bias_term else None
        sums = rows_of(convolve(images, kernel_x, bias, self.window, ops), ops)
        steps: list[_Step] = []
        outputs: list[Array] = []
        cell: Array | None = None
        points = len(x) * math.prod(self.window.outputs)
        for step in range(self.steps):
            total = sums[step * points : (step + 1) * points]
            if step:
                hidden = self._image(outputs[-1], len(x))
                total = ops.add(total, rows_of(convolve(hidden, kernel_h, None, self.recurrent_window, ops), ops))
            gates, candidate = ops.sigmoid(total), ops.tanh(contiguous(self._gates(total)[2]))
            i, f, _, o = self._gates(gates)
            new = i * candidate
            cell = new if cell is None else f * cell + new
            output = o * ops.tanh(cell)
            outputs = [output] if self.settings.last else [*outputs, output]
            if ctx.training:
                steps.append(_Step(gates, candidate, cell, output))
        last = self._image(outputs[-1], len(x))
        feature = last if self.settings.last else self._steps(outputs, len(x), ops)
        return Output(feature, saved=(images, steps) if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        ops, rows, (images, steps) = ctx.ops, len(sources[0]), output.saved
        kernel_h = params[1].reshape(self.kernels[1])
        points = rows * math.prod(self.window.outputs)
        sums = ops.xp.empty_like(grad, order="C", shape=(self.steps * points, 4 * self.filters))
        d_hidden: Array | None = None
        d_cell: Array | None = None
        for step in reversed(range(self.steps)):
            given = grad if self.settings.last else grad[:, step]
            if not self.settings.last or step == self.steps - 1:
                dy = rows_of(given, ops)
                d_hidden = dy if d_hidden is None else ops.add(d_hidden, dy)
            into = sums[step * points : (step + 1) * points]
            d_cell = self._step_gradient(steps[step], steps[step - 1].cell if step else 0, d_hidden, d_cell, into, ops)
            if step:
                window = self.recurrent_window
                size = tuple(n + more for n, more in zip(window.outputs, window.extra, strict=True))
                extended = ops.transposed_convolution(
                    self._image(into, rows), kernel_h, None, window.stride, window.pad, size
                )
                d_hidden = rows_of(window.crop(ops.to_float32(extended)), ops)
        return self._gradients(params, images, [step.output for step in steps[:-1]], sums, needs[0], ops)

    def _step_gradient(
        self, step: _Step, before: Any, d_hidden: Any, d_cell: Array | None, into: Array, ops: Ops
    ) -> Array:
        """Write the gradient for a step's gate sums, (n, 4F); return the gradient for the cell state before it."""
        i, f, _, o = self._gates(step.gates)
        candidate, squashed = step.candidate, ops.tanh(step.cell)
        through = ops.tanh_grad(squashed, o * d_hidden)
        d_cell = through if d_cell is None else ops.add(through, d_cell)
        d_i, d_f, d_g, d_o = self._gates(into)
        d_i[...] = candidate * d_cell
        d_f[...] = before * d_cell
        d_o[...] = squashed * d_hidden
        d_g[...] = 0
        into[...] = ops.sigmoid_grad(step.gates, into)  # of all gates at once, since their memory is contiguous
        d_g[...] = ops.tanh_grad(candidate, i * d_cell)
        return f * d_cell

    def _gradients(
        self, params: Arrays, images: Array, outputs: list[Array], sums: Array, need_dx: bool, ops: Ops
    ) -> Gradients:
        """Return the gradients for source and params, given the gradient for the gate sums of all steps, (T·n, 4F)."""
        kernel_x, kernel_h = (w.reshape(shape) for w, shape in zip(params, self.kernels, strict=False))
        count, rows = len(images), len(images) // self.steps
        d_sums = self._image(sums, count)
        x = self.window.extend(images, ops)
        dx, d_hx, db = ops.convolution_grad(
            x, kernel_x, d_sums, self.window.stride, self.window.pad, need_dx, len(params) > 2
        )
        if self.steps > 1:  # the state before the first step is 0
            window = self.recurrent_window
            hidden = window.extend(self._image(ops.xp.concatenate(outputs), count - rows), ops)
            d_sums = self._image(sums[len(sums) // self.steps :], count - rows)
            _, d_hh, _ = ops.convolution_grad(hidden, kernel_h, d_sums, window.stride, window.pad, False, False)
        else:
            d_hh = ops.xp.zeros(params[1].shape, params[1].dtype)
        if dx is not None:
            dx = self.window.crop(dx)
            dx = dx.reshape(self.steps, rows, *dx.shape[1:]).transpose(1, 0, 2, 3, 4)
        weights = d_hx.reshape(params[0].shape), d_hh.reshape(params[1].shape)
        return (dx,), (*weights, db) if len(params) > 2 else weights

    def _gates(self, rows: Array) -> list[Array]:
        """Return views (n, F) of the gates i, f, g, o in (n, 4F)."""
        return [rows[:, gate * self.filters : (gate + 1) * self.filters] for gate in range(4)]

    def _image(self, points: Array, count: int) -> Array:
        """Return (n, k) as images (count, k, H', W')."""
        return to_image(points.reshape(count, *self.window.outputs, points.shape[1]))

    def _steps(self, outputs: Sequence[Array], rows: int, ops: Ops) -> Array:
        """Put the hidden states of all steps together as (B, T, F, H', W')."""
        size = self.window.outputs
        steps = ops.xp.stack([points.reshape(rows, *size, self.filters) for points in outputs], axis=1)
        return ops.xp.moveaxis(steps, -1, 2)

    def saved_sizes(self, rows: int) -> list[int]:
        states = float_bytes(rows * self.steps, (0, self.filters, *self.window.outputs))
        return [float_bytes(rows, self.source_shapes[0]), 4 * states, *[states] * 3]

    def backward_sizes(self, rows: int) -> list[int]:
        states = float_bytes(rows * self.steps, (0, self.filters, *self.window.outputs))
        return [4 * states, states]  # gradients for gates; the states before each step


def by_step(x: Array) -> Array:
    """Return image sequences (B, T, C, H, W) as one batch of images (T·B, C, H, W), ordered by step."""
    steps = x.transpose(1, 0, *range(2, x.ndim))
    return steps.reshape(steps.shape[0] * steps.shape[1], *steps.shape[2:])


def rows_of(image: Array, ops: Ops) -> Array:
    """Return images (B, k, H, W) as C-contiguous rows of points (B·H·W, k), for products."""
    rows = contiguous(image.transpose(LAST[4]))
    return rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])


def convolve(x: Array, w: Array, b: Array | None, window: Window, ops: Ops) -> Array:
    """Convolve images by a window, in float32."""
    return ops.to_float32(ops.convolution(window.extend(x, ops), w, b, window.stride, window.pad))
