"""kActivation: an elementwise activation function, chosen by name in its settings."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from dsinga.base.registry import register
from dsinga.job import ActivationType, LayerConf
from dsinga.job.component import Fault, Settings, setting
from dsinga.job.limits import NonNegative
from dsinga.layers.dense.activation import ElementwiseFunction, ReLU, Sigmoid, STanh, Tanh
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Keeps
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Output, Shape, float_bytes
from dsinga.ops import Ops

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


class FunctionOfSource(ElementwiseFunction):
    """Base of activations with a derivative computed from x, because y does not determine x."""

    keeps = Keeps(sources=0, feature=False)
    takes_bf16: ClassVar[bool] = False  # whether its kernels do

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        raise NotImplementedError("two numbers x may have the same y")

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, ops = sources[0], ctx.ops
        y = ops.cast_like(self.forward(x if self.takes_bf16 else ops.to_float32(x), ops), x)
        if ops.has_bf16_features and self.bf16 is Bfloat16.kFeatures and ctx.training:
            x = ops.as_source(ops.flatten(x) if x.flags.c_contiguous else x)  # no image, which would be copied
        return Output(y, saved=x if ctx.training else None)

    @abstractmethod
    def derive(self, x: Array, dy: Array, ops: Ops) -> Array:
        """Compute the activation's gradient dy·f'(x) from x."""

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        ops, saved = ctx.ops, output.saved
        x = sources[0] if saved is None else saved  # None from a user's own compute_feature
        x = ops.cast_like(x, sources[0]) if self.takes_bf16 else ops.to_float32(x)
        x = x if x.shape == sources[0].shape else x.reshape(sources[0].shape)
        return (ops.cast_like(self.derive(x, ops.cast_like(grad, x), ops), sources[0]),), ()

    def saved_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, self.source_shapes[0])]  # the source


class GELU(FunctionOfSource):
    """GELU, x·Φ(x) with the normal distribution Φ; Hendrycks and Gimpel, Gaussian Error Linear Units (2016)."""

    bf16 = Bfloat16.kFeatures
    takes_bf16 = True

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.gelu(x)

    def derive(self, x: Array, dy: Array, ops: Ops) -> Array:
        return ops.gelu_grad(x, dy)


class SiLU(FunctionOfSource):
    """SiLU, x·σ(x) with the logistic function σ (Swish); Ramachandran et al., Searching for Activations (2017)."""

    bf16 = Bfloat16.kFeatures

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.silu(x)

    def derive(self, x: Array, dy: Array, ops: Ops) -> Array:
        return ops.silu_grad(x, dy)


class ELU(ElementwiseFunction):
    """ELU, x for x > 0, else α·(e^x - 1); Clevert et al., Fast and Accurate Deep Network Learning by ELUs (2016)."""

    alpha: float

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.xp.where(x > 0, x, self.alpha * ops.xp.expm1(ops.xp.minimum(x, 0)))

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return ops.xp.where(y > 0, dy, dy * (y + self.alpha))


class CELU(ElementwiseFunction):
    """CELU, x for x > 0, else α·(e^(x/α) - 1); Barron, Continuously Differentiable Exponential Linear Units (2017)."""

    alpha: float

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.xp.where(x > 0, x, self.alpha * ops.xp.expm1(ops.xp.minimum(x, 0) / self.alpha))

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return dy * (ops.xp.minimum(y, 0) / self.alpha + 1)


class SELU(ElementwiseFunction):
    """SELU, s·x for x > 0, else s·a·(e^x - 1); Klambauer et al., Self-Normalizing Neural Networks (2017)."""

    def forward(self, x: Array, ops: Ops) -> Array:
        return SELU_SCALE * ops.xp.where(x > 0, x, SELU_ALPHA * ops.xp.expm1(ops.xp.minimum(x, 0)))

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return dy * ops.xp.where(y > 0, SELU_SCALE, y + SELU_SCALE * SELU_ALPHA).astype(y.dtype, copy=False)


def softplus(x: Array, ops: Ops) -> Array:
    """Compute log(1 + e^x), even if e^x overflows."""
    return ops.xp.maximum(x, 0) + ops.xp.log1p(ops.xp.exp(-ops.xp.abs(x)))


class Softplus(ElementwiseFunction):
    """Softplus, log(1 + e^x)."""

    def forward(self, x: Array, ops: Ops) -> Array:
        return softplus(x, ops)

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return dy * -ops.xp.expm1(-y)


class Softsign(ElementwiseFunction):
    """Softsign, x / (1 + |x|)."""

    def forward(self, x: Array, ops: Ops) -> Array:
        return x / (1 + ops.xp.abs(x))

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return dy * (1 - ops.xp.abs(y)) ** 2


class Mish(FunctionOfSource):
    """Mish, x·tanh(log(1 + e^x)); Misra, Mish: A Self Regularized Non-Monotonic Activation Function (2019)."""

    def forward(self, x: Array, ops: Ops) -> Array:
        return x * ops.xp.tanh(softplus(x, ops))

    def derive(self, x: Array, dy: Array, ops: Ops) -> Array:
        share = ops.xp.tanh(softplus(x, ops))
        return dy * (share + x * (1 - share * share) * ops.sigmoid(x))


class HardSigmoid(ElementwiseFunction):
    """Piecewise-linear sigmoid, α·x + β clipped to [0, 1]; the gradient is 0 at both ends."""

    alpha: float
    beta: float

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.xp.minimum(ops.xp.maximum(self.alpha * x + self.beta, 0), 1)

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return self.alpha * dy * ((y > 0) & (y < 1))


class HardSwish(FunctionOfSource):
    """Hard swish, x·clip(x + 3, 0, 6) / 6; Howard et al., Searching for MobileNetV3 (2019)."""

    bf16 = Bfloat16.kFeatures

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.hard_swish(x)

    def derive(self, x: Array, dy: Array, ops: Ops) -> Array:
        return ops.hard_swish_grad(x, dy)


def erf(x: Array, ops: Ops) -> Array:
    """Return the error function: a series near 0, else 2·Φ(√2·x) - 1 with the normal distribution Φ."""
    square, series = ops.xp.minimum(x * x, 0.25), 0.0
    for n in reversed(range(10)):
        series = series * square + (-1) ** n / (math.factorial(n) * (2 * n + 1))
    wide = math.sqrt(2) * x
    density = ops.xp.exp(-x * x) / math.sqrt(2 * math.pi)
    share = ops.gelu_grad(wide, ops.xp.ones_like(x)) - wide * density
    return ops.xp.where(ops.xp.abs(x) < 0.5, 2 / math.sqrt(math.pi) * x * series, 2 * share - 1)


FORMULAS: Mapping[ActivationType, tuple[Callable[[Array, Ops], Array], Callable[[Array, Ops], Array]]] = {
    ActivationType.EXP: (lambda x, ops: ops.xp.exp(x), lambda x, ops: ops.xp.exp(x)),
    ActivationType.LOG: (lambda x, ops: ops.xp.log(x), lambda x, ops: 1 / x),
    ActivationType.ERF: (erf, lambda x, ops: 2 / math.sqrt(math.pi) * ops.xp.exp(-x * x)),
    ActivationType.SIN: (lambda x, ops: ops.xp.sin(x), lambda x, ops: ops.xp.cos(x)),
    ActivationType.COS: (lambda x, ops: ops.xp.cos(x), lambda x, ops: -ops.xp.sin(x)),
}
"""Mathematical functions and their derivatives."""


class MathFunction(FunctionOfSource):
    """An elementary function, such as exp or log, by its name in ``FORMULAS``."""

    kind: ActivationType

    def forward(self, x: Array, ops: Ops) -> Array:
        return FORMULAS[self.kind][0](x, ops)

    def derive(self, x: Array, dy: Array, ops: Ops) -> Array:
        return dy * FORMULAS[self.kind][1](x, ops)


FUNCTIONS: dict[ActivationType, type[ElementwiseFunction]] = {
    ActivationType.RELU: ReLU,
    ActivationType.SIGMOID: Sigmoid,
    ActivationType.TANH: Tanh,
    ActivationType.STANH: STanh,
    ActivationType.GELU: GELU,
    ActivationType.SILU: SiLU,
    ActivationType.ELU: ELU,
    ActivationType.SELU: SELU,
    ActivationType.SOFTPLUS: Softplus,
    ActivationType.CELU: CELU,
    ActivationType.SOFTSIGN: Softsign,
    ActivationType.MISH: Mish,
    ActivationType.HARDSIGMOID: HardSigmoid,
    ActivationType.HARDSWISH: HardSwish,
    **dict.fromkeys(FORMULAS, MathFunction),
}
NUMBERS: Mapping[ActivationType, dict[str, float]] = {
    ActivationType.ELU: {"alpha": 1.0},
    ActivationType.CELU: {"alpha": 1.0},
    ActivationType.HARDSIGMOID: {"alpha": 1 / 6, "beta": 0.5},
}
"""The parameters of functions, with defaults."""


@register("layer", kActivation=217, kCudnnActivation=254)
class Activation(ElementwiseFunction):
    """The activation function named by ``activation_conf.type``, RELU by default.

    STANH is 1.7159047·tanh(0.66666667·x), GELU is x·Φ(x), SILU is x·σ(x), SOFTPLUS is log(1 + e^x), SOFTSIGN is x / (1
    + |x|), MISH is x·tanh(log(1 + e^x)). HARDSIGMOID is ``alpha``·x + ``beta`` between 0 and 1. HARDSWISH is x·(x/6 +
    1/2), with the second factor between 0 and 1. EXP is e^x, LOG the natural logarithm, ERF the error function. Φ is
    the normal distribution function and σ the sigmoid.
    """

    class Conf(Settings):
        """Settings of kActivation."""

        type: ActivationType = setting(
            ActivationType.RELU,
            "the activation function",
        )
        alpha: NonNegative | None = setting(
            None, "the number of ELU and of CELU, 1 by default, or the slope of HARDSIGMOID, 1/6 by default"
        )
        beta: float | None = setting(None, "what HARDSIGMOID adds, 1/2 by default")

        def faults(self) -> Iterator[Fault]:
            for name in ("alpha", "beta"):
                if getattr(self, name) is not None and name not in NUMBERS.get(self.type, {}):
                    yield Fault(f"{self.type.name} takes no {name}; leave it out", name)
            if self.type is ActivationType.CELU and self.alpha == 0:
                yield Fault("CELU divides by alpha; give it more than 0", "alpha")

    settings: Conf

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        function = FUNCTIONS[self.settings.type]
        self.function = function(conf, source_shapes, info)
        numbers = NUMBERS.get(self.settings.type, {})
        given = {name: value for name in numbers if (value := getattr(self.settings, name)) is not None}
        vars(self.function).update(numbers | given, kind=self.settings.type)
        self.bf16 = self.function.bf16
        if not self.runs_user_code:
            self.keeps = self.function.keeps

    def forward(self, x: Array, ops: Ops) -> Array:
        return self.function.forward(x, ops)

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return self.function.backward(y, dy, ops)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return self.function.compute_feature(params, sources, ctx)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return self.function.compute_gradient(params, sources, output, grad, needs, ctx)

    def saved_sizes(self, rows: int) -> list[int]:
        return self.function.saved_sizes(rows)
