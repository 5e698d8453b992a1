"""Fully connected layers, activation functions, dropout and flattening."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dsinga.nn.arguments import layer
from dsinga.nn.feature import Feature
from dsinga.nn.writer import LayerWriter
from dsinga.registry import nearest

Write = Callable[[LayerWriter], Feature]

# The names of Keras for functions that are layers without settings, and SINGA's scaled tanh.
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("kReLU", {}),
    "sigmoid": ("kSigmoid", {}),
    "tanh": ("kActivation", {"activation_conf": {"type": "TANH"}}),
    "stanh": ("kSTanh", {}),
    "leaky_relu": ("kReLU", {"relu_conf": {"negative_slope": 0.2}}),
    "softmax": ("kSoftmax", {}),
}


def activate(writer: LayerWriter, feature: Feature, activation: str | None) -> Feature:
    """Write the layer of an activation function after ``feature`` and return its feature; None and "linear" are none.

    Raises UserError for an unknown name.
    """
    if activation is None or activation == "linear":
        return feature
    kind, fields = activation_layer(writer, feature, activation)
    after = writer.extra(activation, kind, feature, **fields)
    return after._replace(before=feature if activation in ("softmax", "sigmoid") else None)


def activation_layer(writer: LayerWriter, feature: Feature, activation: str) -> tuple[str, dict[str, Any]]:
    """Return the layer type and the fields of an activation function; raise UserError for an unknown name."""
    if activation not in ACTIVATIONS:
        hint = nearest(str(activation), ACTIVATIONS) or f"; these are {', '.join(ACTIVATIONS)}"
        raise writer.fail(f"there is no activation {activation!r}{hint}")
    if activation == "softmax":
        return "kSoftmax", {"per_step": softmax_by_step(writer, feature)}
    return ACTIVATIONS[activation]


def softmax_by_step(writer: LayerWriter, feature: Feature) -> bool | None:
    """Return True for the softmax of each step of sequences, None for that of a row; raise UserError for images."""
    axes = 1 if feature.flat or feature.shape is None else len(feature.shape)
    if axes > 2:
        raise writer.fail(f"the softmax over the last axis of images ({axes} axes) is not there; put nn.Flatten before")
    return True if axes == 2 else None


@layer
def Dense(
    units: int,
    activation: str | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    transpose: bool = False,
) -> Write:
    """Fully connected layer with ``units`` outputs (kInnerProduct), and its activation.

    Of sequences (B, T, n) it computes each step, as in Keras. Images (B, C, H, W) are flattened. ``transpose`` keeps
    the weight as (inputs, units), which can share another layer's (units, inputs).
    """

    def write(writer: LayerWriter) -> Feature:
        source = writer.source
        rows = writer.rows(source)
        settings = {"num_output": units, "bias_term": use_bias, "transpose": transpose}
        inputs = rows[-1] if len(rows) == 2 else math.prod(rows)
        feature = writer.add(
            "kInnerProduct",
            innerproduct_conf=settings,
            per_step=True if len(rows) == 2 else None,
            inits={"weight": kernel_initializer, "bias": bias_initializer},
            fans={"weight": (inputs, units)},
        )
        return activate(writer, feature, activation)

    return write


@layer
def Activation(activation: str) -> Write:
    """Activation function by name: relu, sigmoid, tanh, stanh (1.7159·tanh(2x/3)), leaky_relu, softmax, linear."""
    return lambda writer: own_activation(writer, activation)


def own_activation(writer: LayerWriter, activation: str) -> Feature:
    """Write an activation function as the layer of the call itself."""
    if activation == "linear":
        return writer.source
    kind, fields = activation_layer(writer, writer.source, activation)
    feature = writer.add(kind, **fields)
    return feature._replace(before=writer.source if activation in ("softmax", "sigmoid") else None)


@layer
def ReLU(negative_slope: float = 0.0) -> Write:
    """Rectifier max(x, 0) + negative_slope·min(x, 0) (kReLU)."""
    return lambda writer: writer.add("kReLU", relu_conf={"negative_slope": negative_slope} if negative_slope else None)


@layer
def LeakyReLU(negative_slope: float = 0.3) -> Write:
    """Rectifier with Keras's slope for negative inputs (kReLU)."""
    return lambda writer: writer.add("kReLU", relu_conf={"negative_slope": negative_slope})


@layer
def Softmax() -> Write:
    """Softmax of each row, or of each step of sequences (kSoftmax)."""
    return lambda writer: own_activation(writer, "softmax")


@layer
def Dropout(rate: float, unit: str | None = None) -> Write:
    """In training sets a share ``rate`` of the units to 0 and scales the others (kDropout).

    ``unit`` is "kNumber" (the default), "kChannel" or "kRow".
    """
    return lambda writer: writer.add(
        "kDropout", dropout_conf={"dropout_ratio": rate, **({} if unit is None else {"unit": unit})}
    )


@layer
def SpatialDropout2D(rate: float) -> Write:
    """Dropout of whole channels of images (kDropout with unit kChannel)."""
    return lambda writer: writer.add("kDropout", dropout_conf={"dropout_ratio": rate, "unit": "kChannel"})


@layer
def Flatten() -> Write:
    """Makes each row a vector: no layer of the job, because layers that take vectors flatten their source."""

    def write(writer: LayerWriter) -> Feature:
        source = writer.source
        return source._replace(flat=source.shape is not None and len(source.shape) > 1, is_input=False)

    return write


@layer
def Identity() -> Write:
    """Passes on its source; no layer of the job."""
    return lambda writer: writer.source
