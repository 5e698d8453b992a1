"""Layers of k nets trained as one, the members of an ensemble, and their mean prediction.

Features are (B, k, n): the k members' outputs for each row. Wen, Tran and Ba, BatchEnsemble (2020); Gorishniy,
Kotelnikov and Babenko, TabM (2024). Cutting a layer by features cuts it by members.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from dsinga.addons.tables.layers.own_products import own_product_gradients, own_products
from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut, ParamSpec
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, float_bytes
from dsinga.ops import Ops
from dsinga.ops.layout import einsum
from dsinga.ops.numpy.elementwise import FLT_MIN

OF_MEMBERS = "what each member computes of each row, (batch, members, numbers)"


@register("layer", kBatchEnsemble=900)
class BatchEnsemble(Layer):
    """Dense layers of ``members`` nets that share one weight, y_m = s_m·(W (r_m·x_m)) + b_m: to (B, k, num_output).

    The source is (B, n), given to all members, or (B, k, n) (Wen et al., 2020; Gorishniy et al., TabM, 2024). Params:
    weight (num_output, n), and for each member factors r (k, n) of its source, factors s (k, num_output) of its
    products, and a bias (k, num_output). Members differ by the initial values of r (the initialiser kMemberScales). s
    starts with 1.
    """

    class Conf(Settings):
        """Settings of kBatchEnsemble."""

        num_output: Count = required("the number of outputs of each member for each row")
        members: Count = setting(32, "the number of members")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, width="members")
    bf16 = Bfloat16.kProducts

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        outputs, members = self.settings.num_output, self.settings.members
        takes = "rows (batch, numbers), which are given to all members, or (batch, members, numbers)"
        rows, *own, inputs = self.expect_axes((2, 3), takes)
        if own not in ([], [members]):
            text = f"has {members} members, but {self.source_name(0)} gives those of {own[0]}; give both as many"
            raise self.fail(text, field="members")
        if not own:
            self.cut = Cut(Connection.kOneToAll, width="members")
        self.shape = (rows, members, outputs)
        self.params = (
            ParamSpec("weight", (outputs, inputs), None),
            ParamSpec("r", (members, inputs), initial=1.0),
            ParamSpec("s", (members, outputs), initial=1.0),
            ParamSpec("bias", (members, outputs)),
        )

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        _, r, s, bias = params
        weight = ctx.ops.as_factor(params[0])
        scaled = _scaled(self._of_members(sources[0]), r, ctx.ops)
        products = ctx.ops.inner_product(scaled, weight, None).reshape(-1, *s.shape)
        y = _scaled(products, s, ctx.ops).reshape(products.shape)
        y += bias
        return Output(y, saved=(scaled, products, weight) if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        (_, r, s, _), (scaled, products, weight) = params, output.saved
        xp, x = ctx.ops.xp, self._of_members(sources[0])
        for_products = _scaled(grad, s, ctx.ops)
        for_scaled, for_weight, _ = ctx.ops.inner_product_grad(scaled, weight, for_products, False, True, False)
        assert for_scaled is not None
        for_scaled = for_scaled.reshape(-1, *r.shape)
        is_own = sources[0].ndim == 3
        for_r = einsum("bmn,bmn->mn" if is_own else "bmn,bln->mn", for_scaled, x, xp)
        for_s = einsum("bmn,bmn->mn", grad, products, xp)
        for_source = None
        if needs[0]:
            own = _scaled(for_scaled, r, ctx.ops).reshape(for_scaled.shape) if is_own else None
            for_source = xp.einsum("bmn,mn->bn", for_scaled, r) if own is None else own
        return (for_source,), (for_weight, for_r, for_s, grad.sum(axis=0))

    def _of_members(self, x: Array) -> Array:
        return x if x.ndim == 3 else x[:, None]

    def saved_sizes(self, rows: int) -> list[int]:
        return [self._scaled_bytes(rows), float_bytes(rows, self.shape)]

    def backward_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, self.shape)] * 2 + [self._scaled_bytes(rows)] * 2

    def _scaled_bytes(self, rows: int) -> int:
        return float_bytes(rows, (rows, self.shape[1], self.source_shapes[0][-1]))


def _scaled(x: Array, factors: Array, ops: Ops) -> Array:
    """Multiply x (B, k, n), or (B, 1, n), by the factors (k, n); return a matrix (B·k, n)."""
    y = ops.xp.multiply(x, factors, out=ops.empty((len(x), *factors.shape), factors.dtype))
    return y.reshape(-1, factors.shape[1])


@register("layer", kMemberDense=901)
class MemberDense(Layer):
    """A dense layer for each member, with its own params: (B, k, n) to (B, k, num_output).

    Params: weight (k, n, num_output) and bias (k, num_output).
    """

    class Conf(Settings):
        """Settings of kMemberDense."""

        num_output: Count = required("the number of outputs of each member for each row")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne)
    bf16 = Bfloat16.kProducts

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        rows, members, inputs = self.expect_axes((3,), OF_MEMBERS)
        outputs = self.settings.num_output
        self.shape = (rows, members, outputs)
        self.params = (ParamSpec("weight", (members, inputs, outputs)), ParamSpec("bias", (members, outputs)))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        y = own_products(sources[0], params[0], ctx.ops)
        y += params[1]
        return Output(y)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        for_source, for_weight = own_product_gradients(sources[0], params[0], grad, needs[0], ctx.ops)
        return (for_source,), (for_weight, grad.sum(axis=0))


class Predicted(Enum):
    """The meaning of the members' outputs: numbers, scores of classes, or answers."""

    NUMBERS = 0
    CLASSES = 1
    ANSWERS = 2


@register("layer", kMemberMean=902)
class MemberMean(Layer):
    """The mean prediction of the members: (B, k, n) to (B, n), for the layers after the ensemble.

    - ``of`` NUMBERS: the mean.
    - of scores of CLASSES: the logarithm of the mean probability. The softmax of the result is this mean.
    - of scores of yes-or-no ANSWERS: the score with the mean probability as its sigmoid.
    """

    class Conf(Settings):
        """Settings of kMemberMean."""

        of: Predicted = setting(
            Predicted.NUMBERS, "what the members give: NUMBERS, the scores of CLASSES, or the scores of ANSWERS"
        )

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="takes the mean over members of all outputs of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        rows, self.members, outputs = self.expect_axes((3,), OF_MEMBERS)
        self.shape = (rows, outputs)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, xp = sources[0], ctx.ops.xp
        if self.settings.of is Predicted.NUMBERS:
            return Output(x.sum(axis=1) / x.dtype.type(self.members))
        parts = [self._probabilities(x, ctx.ops)]
        if self.settings.of is Predicted.ANSWERS:
            parts.append(self._probabilities(-x, ctx.ops))
        means = [xp.maximum(part.sum(axis=1) / x.dtype.type(self.members), FLT_MIN) for part in parts]
        y = xp.log(means[0])
        if len(means) > 1:
            y -= xp.log(means[1])
        return Output(y, saved=(parts, means) if ctx.training else None)

    def _probabilities(self, x: Array, ops: Ops) -> Array:
        if self.settings.of is Predicted.ANSWERS:
            return ops.sigmoid(x)
        return ops.softmax(x.reshape(-1, x.shape[2])).reshape(x.shape)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        share = grad[:, None] / sources[0].dtype.type(self.members)
        if self.settings.of is Predicted.NUMBERS:
            return (share.repeat(self.members, axis=1),), ()
        parts, means = output.saved
        slopes = share * sum(1 / mean for mean in means)[:, None]
        if self.settings.of is Predicted.ANSWERS:
            return (slopes * parts[0] * parts[1],), ()
        weighted = parts[0] * slopes
        return (weighted - parts[0] * weighted.sum(axis=2, keepdims=True),), ()

    def saved_sizes(self, rows: int) -> list[int]:
        of_answers = self.settings.of is Predicted.ANSWERS
        return [float_bytes(rows, self.source_shapes[0])] * (1 + of_answers)
