"""kInnerProduct, the fully connected layer, and kLearnedVector, a trained vector that is equal for all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count
from dsinga.layers.interface.context import Context, RecordInfo
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
from dsinga.ops import Ops


@register("layer", kInnerProduct=205)
class InnerProduct(Layer):
    """Fully connected layer, x·Wᵀ + b from (B, ...) to (B, num_output). Rows are flattened in the order of their axes.

    Params: weight (num_output, inputs), or (inputs, num_output) with ``transpose``, and bias (num_output,) unless
    ``bias_term`` is false.

    With ``fullc_gather`` of the cluster, a worker gathers the other workers' rows of the batch and computes the
    gradients of the params itself, which sends fewer bytes for small batches.
    """

    source_kind = SourceKind.kVectors

    class Conf(Settings):
        """Settings of kInnerProduct."""

        num_output: Count = required("the number of outputs for each row")
        bias_term: bool = setting(True, "whether a bias is added")
        transpose: bool = setting(
            False, "whether the weight has the shape (inputs, num_output), not (num_output, inputs)"
        )

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToAll, width="num_output")
    bf16 = Bfloat16.kFeatures
    keeps = Keeps(sources=0, feature=False)
    rounds_source = rounds_gradient = True
    gathers: bool = False

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        outputs, inputs = settings.num_output, math.prod(self.source_shapes[0][1:])
        self.transpose, self.bias = settings.transpose, settings.bias_term
        weight = (inputs, outputs) if self.transpose else (outputs, inputs)
        self.params = (ParamSpec("weight", weight, cut_axis=1 if self.transpose else 0),)
        if self.bias:
            self.params += (ParamSpec("bias", (outputs,)),)
        self.shape = (self.source_shapes[0][0], outputs)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = ctx.ops.as_source(to_matrix(sources[0], ctx.ops))
        weight = ctx.ops.as_factor(params[0])
        y = self.multiply(x, weight, params[1] if self.bias else None, ctx.ops)
        # x is saved, since flattening a channels-last image makes a copy
        return Output(y, saved=(x, weight) if ctx.training else None)

    def multiply(self, x: Array, weight: Array, bias: Array | None, ops: Ops) -> Array:
        """Compute x·Wᵀ + b; a fused layer also rectifies."""
        product = ops.rounded_inner_product if self.rounds_feature else ops.inner_product
        return product(x, weight, bias, self.transpose)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        (x, weight), ops, dx = output.saved, ctx.ops, None
        if apart := needs[0] and (self.gathers or x.dtype != sources[0].dtype):  # the gradient for x has x's dtype
            dx = ops.inner_product(grad, weight, None, not self.transpose)
        if self.gathers:
            arrays = {"x": ops.to_numpy_bf16(x), "dy": ops.to_numpy_bf16(grad)}
            gathered = (ctx.all_gather(f"{self.name}.{name}", array) for name, array in arrays.items())
            all_x, all_dy = (ops.upload(array).result() for array in gathered)
            _, dw, db = ops.inner_product_grad(all_x, weight, all_dy, self.transpose, False, self.bias)
        else:
            needs_x = needs[0] and not apart
            later = ctx.adds_later and ctx.observer is None and not self.runs_user_code
            of_x, dw, db = ops.inner_product_grad(x, weight, grad, self.transpose, needs_x, self.bias, later)
            dx = dx if apart else of_x
        if dx is not None:
            dx = from_matrix(dx, sources[0], ops)
        return (dx,), (dw, db) if self.bias else (dw,)

    def saved_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, self.source_shapes[0])]  # the source, flattened


class RectifiedInnerProduct(InnerProduct):
    """A fully connected layer fused with a rectifier, to save passes over memory (:mod:`dsinga.net.fusion`)."""

    bf16 = Bfloat16.kFeatures
    keeps = Keeps(sources=0)

    def multiply(self, x: Array, weight: Array, bias: Array | None, ops: Ops) -> Array:
        return ops.rectified_inner_product(x, weight, bias, self.transpose)

    def backward_sizes(self, rows: int) -> list[int]:
        return [*super().backward_sizes(rows), float_bytes(rows, self.shape)]  # the gradient where the feature is not 0

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return super().compute_gradient(params, sources, output, ctx.ops.relu_grad(output.feature, grad), needs, ctx)


@register("layer", kLearnedVector=738)
class LearnedVector(Layer):
    """A trained vector, the same for each row: the param (n,), ``num_output`` numbers, as (B, n).

    With ``leading`` axes the param is (*leading, n), for instance learnt positions, and the feature (B, *leading, n).
    """

    class Conf(Settings):
        """Settings of kLearnedVector."""

        num_output: Count = required("how many numbers the vector has")
        leading: list[Count] = setting([], "the sizes of axes before them, where each row is an array of vectors")

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="takes nothing from its source but the number of rows")
    keeps = Keeps(sources=0, feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = (self.source_shapes[0][0], *self.settings.leading, self.settings.num_output)
        self.params = (ParamSpec("vector", self.shape[1:]),)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        rows = ctx.ops.xp.zeros((len(sources[0]), *self.shape[1:]), params[0].dtype)
        return Output(rows + params[0])

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        dx = ctx.ops.xp.zeros(sources[0].shape, sources[0].dtype) if needs[0] else None
        return [dx], [grad.sum(axis=0)]
