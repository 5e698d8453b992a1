"""Activation functions: kReLU, kSigmoid, kSTanh, and kActivation (kCudnnActivation), which names one of them.

Each maps (B, ...) to the same shape.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from dsinga.job import ActivationConf, ActivationType, LayerConf, ReLUConf
from dsinga.layers.base import Array, Arrays, Connection, Gradients, Layer, Output, Shape
from dsinga.layers.context import Context, RecordInfo
from dsinga.ops import Ops
from dsinga.registry import register

# 1.7159·tanh(2x/3): LeCun et al., Efficient BackProp (1998), 4.4, with SINGA's digits.
OUTER, INNER = 1.7159047, 0.66666667


class ElementwiseFunction(Layer):
    """A function that is applied to each element; subclasses define it."""

    source_count: ClassVar[int | None] = 1
    connection = Connection.kOneToOne

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]

    @abstractmethod
    def forward(self, x: Array, ops: Ops) -> Array:
        """Return y = f(x)."""

    @abstractmethod
    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        """Return dy·f'(x), from y."""

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(self.forward(sources[0], ctx.ops))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (self.backward(output.feature, grad, ctx.ops) if needs[0] else None,), ()


@register("layer", "kReLU")
class ReLU(ElementwiseFunction):
    """Rectifier, max(x, 0) + negative_slope·min(x, 0). SINGA 0.3 ignores negative_slope, which is a fault."""

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        relu = conf.relu_conf or ReLUConf()
        self.slope = relu.negative_slope
        if self.slope < 0:
            raise self.fail(f"negative_slope is {self.slope}; give 0 or more", relu, "negative_slope")

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.relu(x, self.slope)

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return ops.relu_grad(y, dy, self.slope)


@register("layer", "kSigmoid")
class Sigmoid(ElementwiseFunction):
    """Logistic sigmoid, 1 / (1 + exp(-x))."""

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.sigmoid(x)

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return ops.sigmoid_grad(y, dy)


@register("layer", "kSTanh")
class STanh(ElementwiseFunction):
    """Scaled tanh, 1.7159047·tanh(0.66666667·x)."""

    outer: ClassVar[float] = OUTER
    inner: ClassVar[float] = INNER

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.tanh(x, self.outer, self.inner)

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return ops.tanh_grad(y, dy, self.outer, self.inner)


class Tanh(STanh):
    """Plain tanh(x), which in SINGA only kActivation offers."""

    outer: ClassVar[float] = 1.0
    inner: ClassVar[float] = 1.0


class GELU(ElementwiseFunction):
    """x·Φ(x) with the normal distribution Φ; Hendrycks and Gimpel, Gaussian Error Linear Units (2016)."""

    def forward(self, x: Array, ops: Ops) -> Array:
        return ops.gelu(x)

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        raise NotImplementedError("two numbers x may have the same y")

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (ctx.ops.gelu_grad(sources[0], grad) if needs[0] else None,), ()


FUNCTIONS: dict[ActivationType, type[ElementwiseFunction]] = {
    ActivationType.RELU: ReLU,
    ActivationType.SIGMOID: Sigmoid,
    ActivationType.TANH: Tanh,
    ActivationType.STANH: STanh,
    ActivationType.GELU: GELU,
}


@register("layer", "kActivation", "kCudnnActivation")
class Activation(ElementwiseFunction):
    """The activation function that ``activation_conf.type`` names, RELU by default."""

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        function = FUNCTIONS[(conf.activation_conf or ActivationConf()).type]
        self.function = function(conf, source_shapes, info)

    def forward(self, x: Array, ops: Ops) -> Array:
        return self.function.forward(x, ops)

    def backward(self, y: Array, dy: Array, ops: Ops) -> Array:
        return self.function.backward(y, dy, ops)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return self.function.compute_gradient(params, sources, output, grad, needs, ctx)
