"""Activation functions of ``dsinga.nn``, as layers and as names for ``activation=`` of other layers."""

from __future__ import annotations

from collections.abc import Collection
from types import FunctionType
from typing import Any, Unpack

from dsinga.base.arguments import unknown_name
from dsinga.base.errors import UserError
from dsinga.job.functions import name_of
from dsinga.nn.words.keras_arguments import missing_names
from dsinga.nn.writing.feature import Feature
from dsinga.nn.writing.symbol import LayerArguments, layer
from dsinga.nn.writing.writer import LayerWriter, Write, simple

# Keras's names of functions that are layers without settings, and SINGA's scaled tanh.
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("kReLU", {}),
    "sigmoid": ("kSigmoid", {}),
    "tanh": ("kActivation", {"activation_conf": {"type": "TANH"}}),
    "stanh": ("kSTanh", {}),
    "gelu": ("kActivation", {"activation_conf": {"type": "GELU"}}),
    "silu": ("kActivation", {"activation_conf": {"type": "SILU"}}),
    "swish": ("kActivation", {"activation_conf": {"type": "SILU"}}),
    **{
        name: ("kActivation", {"activation_conf": {"type": name.replace("_", "").upper()}})
        for name in ("elu", "selu", "celu", "softplus", "softsign", "mish", "hard_sigmoid", "hard_swish")
    },
    "exponential": ("kActivation", {"activation_conf": {"type": "EXP"}}),
    "hard_silu": ("kActivation", {"activation_conf": {"type": "HARDSWISH"}}),
    "leaky_relu": ("kReLU", {"relu_conf": {"negative_slope": 0.2}}),
    "softmax": ("kSoftmax", {}),
}


NAMES = ("linear", *ACTIVATIONS)


class ActivationName(str):
    """The name of an activation function, also callable on a layer's feature, as in Keras."""

    def __call__(self, x: Any) -> Any:
        """Apply the activation to a layer's output. Raises UserError for an array."""
        return Activation(str(self))(x)


def check_activation(owner: str, activation: Any, known: Collection[str] = NAMES) -> None:
    """Raise UserError for an activation of ``owner`` other than None and the ``known`` names."""
    if isinstance(activation, FunctionType) and activation.__module__ == __name__:
        name = activation.__name__
        raise UserError(f"{owner}: nn.{name} makes a layer; write activation={name.lower()!r}, or nn.{name}() after it")
    is_function = known is NAMES and callable(activation)
    if activation is not None and not is_function and activation not in known:
        if isinstance(activation, int):  # nn.Dense(4, 2), as PyTorch's Linear(4, 2)
            remedy = f": write nn.Dense({activation})" if owner == "Dense" and not isinstance(activation, bool) else ""
            raise UserError(
                f"{owner}: activation is a name, not {activation!r}; a layer takes the size of its source{remedy}"
            )
        raise UserError(f"{owner}: {unknown_name('activation', activation, known)}")


def activate(writer: LayerWriter, feature: Feature, activation: Any) -> Feature:
    """Append an activation to the job and return its output; None and "linear" append nothing."""
    if activation is None or activation == "linear":
        return feature
    kind, fields = activation_layer(writer, feature, activation)
    after = writer.extra("activation" if kind == "kFunction" else activation, kind, feature, **fields)
    return after._replace(before=feature if activation in ("softmax", "sigmoid") else None)


def activation_layer(writer: LayerWriter, feature: Feature, activation: Any) -> tuple[str, dict[str, Any]]:
    """Return the layer type and settings of an activation, including a user's function."""
    if not isinstance(activation, str):
        return "kFunction", {"function_conf": {"function": name_of(activation)}}
    if activation != "softmax":
        return ACTIVATIONS[activation]
    axes = 1 if feature.flat or feature.shape is None else len(feature.shape)
    if axes > 2:
        raise writer.fail(
            f"the softmax of images ({axes} axes) is not there: where pixels have classes leave it out, since the loss "
            "takes scores; else put nn.Flatten before"
        )
    return "kSoftmax", {"per_step": True if axes == 2 else None}


@layer
def Activation(activation: Any, **common: Unpack[LayerArguments]) -> Write:
    """Computes an activation by its name: linear, relu, elu, selu, softplus, sigmoid, tanh, gelu, silu, softmax, ...

    Others are celu, softsign, mish, hard_sigmoid, hard_swish (or hard_silu), exponential, leaky_relu, swish (the same
    as silu), and stanh, SINGA's 1.7159·tanh(2x/3). A function of your own is called like a Lambda's (kFunction).
    """
    check_activation("Activation", activation)
    return lambda writer: own_activation(writer, activation)


def own_activation(writer: LayerWriter, activation: Any) -> Feature:
    """Write a user's activation function into the job as a layer with the call's name."""
    if activation == "linear":
        return writer.source
    kind, fields = activation_layer(writer, writer.source, activation)
    feature = writer.add(kind, **fields)
    return feature._replace(before=writer.source if activation in ("softmax", "sigmoid") else None)


@layer
def ELU(alpha: float = 1.0, **common: Unpack[LayerArguments]) -> Write:
    """Computes the exponential linear unit: x for x > 0, else alpha·(e^x - 1) (kActivation)."""
    return simple("ELU", "kActivation", type="ELU", alpha=None if alpha == 1 else alpha)


@layer
def GELU(**common: Unpack[LayerArguments]) -> Write:
    """Computes the Gaussian error linear unit x·Φ(x), with the exact normal distribution Φ (kActivation)."""
    return lambda writer: own_activation(writer, "gelu")


@layer
def ReLU(negative_slope: float = 0.0, **common: Unpack[LayerArguments]) -> Write:
    """Computes the rectifier max(x, 0) + negative_slope·min(x, 0) (kReLU)."""
    return simple("ReLU", "kReLU", negative_slope=negative_slope)


@layer
def LeakyReLU(negative_slope: float = 0.3, **common: Unpack[LayerArguments]) -> Write:
    """Computes a rectifier with a slope for negative numbers: max(x, 0) + negative_slope·min(x, 0) (kReLU)."""
    return simple("LeakyReLU", "kReLU", negative_slope=negative_slope)


@layer
def PReLU(initial_slope: float = 0.25, shared: bool = False, **common: Unpack[LayerArguments]) -> Write:
    """Computes a rectifier with a learnt slope for negative numbers, per channel or ``shared`` (kPReLU)."""
    return simple("PReLU", "kPReLU", initial_slope=initial_slope, shared=shared)


@layer
def Softmax(**common: Unpack[LayerArguments]) -> Write:
    """Computes the softmax of each row, or of each step of sequences (kSoftmax)."""
    return lambda writer: own_activation(writer, "softmax")


# Keras's functions, as in activation=nn.activations.relu, are names here.
__getattr__ = missing_names(
    __name__,
    public="dsinga.nn.activations",
    derived=lambda: {name: ActivationName(name) for name in NAMES if name != "stanh"},
)
