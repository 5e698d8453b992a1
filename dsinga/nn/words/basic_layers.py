"""Dense layers, dropout, arithmetic on layers' outputs, and ``nn.Layer`` for layers of any type."""

from __future__ import annotations

import functools
import math
from typing import Any, Unpack

from dsinga.base.errors import UserError
from dsinga.base.registry import find, nearest, registered
from dsinga.job import LayerConf, LayerType
from dsinga.job.message import field_types
from dsinga.layers.bridge import Bridge
from dsinga.layers.interface import layer as layers
from dsinga.nn.words.activations import activate, check_activation
from dsinga.nn.words.derived import Derived, derived_function
from dsinga.nn.words.keras_arguments import check_names
from dsinga.nn.words.loss_sources import write_derived_loss
from dsinga.nn.words.regularisers import weights
from dsinga.nn.writing.feature import Feature
from dsinga.nn.writing.symbol import COMMON, LayerArguments, LayerBuilder, layer
from dsinga.nn.writing.writer import LayerWriter, Write, layer_settings, simple


@layer
def Dense(
    units: int,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    transpose: bool = False,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    **common: Unpack[LayerArguments],
) -> Write:
    """A fully connected layer: ``units`` weighted sums of all numbers of a row, and their activation (kInnerProduct).

    Sequences (B, T, n) are computed step by step, as in Keras. Images (B, C, H, W) are flattened. The weight is (units,
    inputs), the transpose of Keras's kernel.

    Args:
        units: the number of outputs for each row.
        activation: function after the layer: its name, or a function of your own; None for a linear layer.
        use_bias: whether a bias is added.
        kernel_initializer: weight's initialiser, or its name.
        bias_initializer: bias's initialiser, or its name.
        transpose: True for a weight (inputs, units), as to share the weight of an encoder with its decoder.
        kernel_regularizer: weight's penalty, such as nn.L2(0.01).
        bias_regularizer: bias's penalty.

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input(784)
        >>> nn.Dense(128, activation="relu")(x).shape
        (None, 128)
    """
    check_activation("Dense", activation)
    settings = {"num_output": units, "bias_term": use_bias, "transpose": transpose}
    conf = layer_settings("Dense", "kInnerProduct", settings)
    params = weights(weight=(kernel_initializer, kernel_regularizer), bias=(bias_initializer, bias_regularizer))

    def write(writer: LayerWriter) -> Feature:
        rows = writer.rows(writer.source)
        per_step = True if len(rows) == 2 else None
        fans = {"weight": (rows[-1] if per_step else math.prod(rows), units)}
        feature = writer.add("kInnerProduct", **conf, per_step=per_step, fans=fans, **params)
        return activate(writer, feature, activation)

    return write


@layer
def Dropout(rate: float, unit: str = "kNumber", **common: Unpack[LayerArguments]) -> Write:
    """Sets a share ``rate`` of the numbers to 0 in training (kDropout).

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input(784)
        >>> nn.Dropout(0.2)(x).shape
        (None, 784)
    """
    return dropout("Dropout", rate, unit)


def dropout(function: str, rate: float, unit: str) -> Write:
    """Return a function that writes a dropout layer into a job."""
    conf = layer_settings(function, "kDropout", {"dropout_ratio": rate, "unit": unit})
    return lambda writer: writer.add("kDropout", **{"dropout_conf": {}, **conf})


@layer
def SpatialDropout1D(rate: float, **common: Unpack[LayerArguments]) -> Write:
    """Sets a share ``rate`` of a sequence's (B, T, n) features to 0 in training, at all steps (kDropout)."""
    return dropout("SpatialDropout1D", rate, "kFeature")


@layer
def SpatialDropout2D(rate: float, **common: Unpack[LayerArguments]) -> Write:
    """Sets a share ``rate`` of the channels of images to 0 in training (kDropout)."""
    return dropout("SpatialDropout2D", rate, "kChannel")


@layer
def SpatialDropout3D(rate: float, **common: Unpack[LayerArguments]) -> Write:
    """Sets a share ``rate`` of the channels of volumes to 0 in training (kDropout)."""
    return dropout("SpatialDropout3D", rate, "kChannel")


@layer
def Identity(**common: Unpack[LayerArguments]) -> Write:
    """Returns its source unchanged, without a layer in the job."""
    return lambda writer: writer.source


@layer
def Add(**common: Unpack[LayerArguments]) -> Write:
    """Adds sources number by number, such as x + f(x) of a residual net (kAdd).

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input(16)
        >>> nn.Add()([x, nn.Dense(16)(x)]).shape
        (None, 16)
    """
    return simple("Add", "kAdd")


@layer
def Multiply(**common: Unpack[LayerArguments]) -> Write:
    """Multiplies sources number by number, such as x·gate(x) (kMultiply)."""
    return simple("Multiply", "kMultiply")


@layer
def Subtract(**common: Unpack[LayerArguments]) -> Write:
    """Subtracts the second of two sources number by number (kArithmetic); axes of length 1 repeat."""
    return simple("Subtract", "kArithmetic", operator="SUBTRACT")


@layer
def Maximum(**common: Unpack[LayerArguments]) -> Write:
    """Computes the larger of two sources at each place (kArithmetic); axes of length 1 repeat."""
    return simple("Maximum", "kArithmetic", operator="MAXIMUM")


@layer
def Minimum(**common: Unpack[LayerArguments]) -> Write:
    """Computes the smaller of two sources at each place (kArithmetic); axes of length 1 repeat."""
    return simple("Minimum", "kArithmetic", operator="MINIMUM")


@layer
def Average(**common: Unpack[LayerArguments]) -> Write:
    """Computes the mean of two sources, number by number (kArithmetic); axes of length 1 repeat."""
    return simple("Average", "kArithmetic", operator="AVERAGE")


@layer
def CosineSimilarity(scale: float = 1.0, **common: Unpack[LayerArguments]) -> Write:
    """Computes the cosine between rows of two sources, times ``scale`` (kCosineSimilarity): (B, n) to (B, 1)."""
    return simple("CosineSimilarity", "kCosineSimilarity", scale=scale)


def layer_of_type(type: str, **fields: Any) -> LayerBuilder:
    """Return a layer of any type, including a user's: ``nn.Layer("kLRN", local_size=3)``.

    ``fields`` are settings of the type, fields of a layer in a job file, and the arguments of every layer. Raises
    UserError for an unknown type or field.
    """
    if not isinstance(type, str):
        raise UserError(f'nn.Layer takes the name of a layer type, as in nn.Layer("kLRN"), not {type!r}')
    component = find("layer", type)
    if component is None and type not in LayerType.__members__:
        hint = nearest(type, [*LayerType.__members__, *registered("layer")])
        raise UserError(f"there is no layer type {type!r}{hint}")
    layer_fields = [name for name in field_types(LayerConf) if name not in ("name", "type", "srclayers", "user_type")]
    conf: Any = getattr(component, "Conf", None)
    names = [name for name in (() if conf is None else field_types(conf)) if name not in layer_fields]
    check_names(f"Layer({type!r})", [*dict.fromkeys([*names, *COMMON, *layer_fields])], fields)
    settings = {name: value for name, value in fields.items() if name not in COMMON}
    own = {name: settings.pop(name) for name in names if name in settings}
    if own:
        settings[conf.field] = own

    def write(writer: LayerWriter) -> Feature:
        return writer.add(type, **settings)

    return LayerBuilder(
        type.removeprefix("k"), write, {**fields, "type": type}, functools.partial(layer_of_type, type, **fields)
    )


# Layers whose names mean something else in Keras, or nothing: nn has Conv1D, ConvLSTM2D, RepeatVector, SimpleRNN, Dice,
# Lambda and the indexing of features.
OTHERWISE = ("kConvolution1D", "kConvLSTM", "kRepeat", "kRNN", "kDiceLoss", "kFunction", "kIndex")


def layer_function(name: str, type: str, cls: Any) -> Any:
    """Make the function ``nn.NAME`` for a layer class without a hand-written function, such as a user's."""

    def function(**settings: Any) -> Write:
        return write_derived_loss(name, type, cls, settings) or simple(name, type, **settings)

    return layer(derived_function(name, cls, function))


def has_function(type: str, cls: Any) -> bool:
    """Whether ``nn`` has a function for a layer type; not for inputs and partitioning layers."""
    of_nets = issubclass(cls, layers.Layer) and not issubclass(cls, Bridge) and not (cls.is_input or cls.is_output)
    return of_nets and type not in OTHERWISE


layer_functions = Derived("layer", layer_function, has_function)
