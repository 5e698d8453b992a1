"""Layers of rows and channels: dense, dropout, sums, parts and shapes of features; layers of any type."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Unpack

from dsinga.base.errors import UserError
from dsinga.base.registry import find, lookup, nearest, registered
from dsinga.job import LayerConf, LayerType
from dsinga.job.message import field_types
from dsinga.layers.connect.bridge import Bridge
from dsinga.layers.interface import layer as layers
from dsinga.nn.words.activations import activate, check_activation
from dsinga.nn.words.derived import Derived, derived_function
from dsinga.nn.words.keras_arguments import check_names
from dsinga.nn.words.loss_sources import write_derived_loss
from dsinga.nn.words.regularisers import weights
from dsinga.nn.writing.feature import Feature, axis_of, row_shape
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
    """Computes ``units`` weighted sums of all numbers of a row, and their activation (kInnerProduct).

    Of sequences (B, T, n) it computes each step, as in Keras. Images (B, C, H, W) are flattened.

    Args:
        units: the number of outputs for each row.
        activation: the function after the layer: its name, or a function of your own.
        use_bias: whether a bias is added.
        kernel_initializer: the initialiser of the weight, or its name.
        bias_initializer: the initialiser of the bias, or its name.
        transpose: whether the weight is (inputs, units); so it can share that of another layer, (units, inputs).
        kernel_regularizer: the penalty of the weight, as nn.L2(0.01), or its name, l1, l2 or l1_l2.
        bias_regularizer: the penalty of the bias.
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
def Flatten(**common: Unpack[LayerArguments]) -> Write:
    """Makes each row a vector, (B, n), by a kReshape where the next layer does not flatten its source itself.

    The numbers keep their order, that of channels, rows and columns of images; in Keras channels are last.
    """

    def write(writer: LayerWriter) -> Feature:
        source = writer.source
        return source._replace(flat=source.shape is not None and len(source.shape) > 1, is_input=False)

    return write


@layer
def Dropout(rate: float, unit: str = "kNumber", **common: Unpack[LayerArguments]) -> Write:
    """Sets a share ``rate`` of the numbers to 0 in training (kDropout); ``unit`` may be kFeature or kChannel."""
    return dropout("Dropout", rate, unit)


def dropout(function: str, rate: float, unit: str) -> Write:
    """Return what writes a layer that leaves out this share of units."""
    conf = layer_settings(function, "kDropout", {"dropout_ratio": rate, "unit": unit})
    return lambda writer: writer.add("kDropout", **{"dropout_conf": {}, **conf})


@layer
def SpatialDropout1D(rate: float, **common: Unpack[LayerArguments]) -> Write:
    """Sets a share ``rate`` of the features of sequences (B, T, n) to 0 in training, each at all steps (kDropout)."""
    return dropout("SpatialDropout1D", rate, "kFeature")


@layer
def SpatialDropout2D(rate: float, **common: Unpack[LayerArguments]) -> Write:
    """Sets a share ``rate`` of the channels of images to 0 in training, each at all pixels (kDropout)."""
    return dropout("SpatialDropout2D", rate, "kChannel")


@layer
def SpatialDropout3D(rate: float, **common: Unpack[LayerArguments]) -> Write:
    """Sets a share ``rate`` of the channels of volumes to 0 in training, each at all points (kDropout)."""
    return dropout("SpatialDropout3D", rate, "kChannel")


@layer
def Identity(**common: Unpack[LayerArguments]) -> Write:
    """Passes on its source, without a layer of the job."""
    return lambda writer: writer.source


@layer
def Add(**common: Unpack[LayerArguments]) -> Write:
    """Computes the sum of the sources, number by number (kAdd), such as x + f(x) of a residual net."""
    return simple("Add", "kAdd")


@layer
def Multiply(**common: Unpack[LayerArguments]) -> Write:
    """Computes the product of the sources, number by number (kMultiply), such as x·gate(x)."""
    return simple("Multiply", "kMultiply")


@layer
def Subtract(**common: Unpack[LayerArguments]) -> Write:
    """Computes the difference of two sources, number by number (kArithmetic); axes of length 1 are repeated."""
    return simple("Subtract", "kArithmetic", operator="SUBTRACT")


@layer
def Maximum(**common: Unpack[LayerArguments]) -> Write:
    """Computes the larger number of two sources at each place (kArithmetic); axes of length 1 are repeated."""
    return simple("Maximum", "kArithmetic", operator="MAXIMUM")


@layer
def Minimum(**common: Unpack[LayerArguments]) -> Write:
    """Computes the smaller number of two sources at each place (kArithmetic); axes of length 1 are repeated."""
    return simple("Minimum", "kArithmetic", operator="MINIMUM")


@layer
def Average(**common: Unpack[LayerArguments]) -> Write:
    """Computes the mean of two sources, number by number (kArithmetic); axes of length 1 are repeated."""
    return simple("Average", "kArithmetic", operator="AVERAGE")


@layer
def CosineSimilarity(scale: float = 1.0, **common: Unpack[LayerArguments]) -> Write:
    """Computes the cosine between rows of two sources, times ``scale`` (kCosineSimilarity): (B, n) to (B, 1)."""
    return simple("CosineSimilarity", "kCosineSimilarity", scale=scale)


@layer
def Concatenate(axis: int = -1, **common: Unpack[LayerArguments]) -> Write:
    """Joins its sources along ``axis`` (kConcate); -1 is the last one, the channels of images are axis 1.

    Where records have their channels last, axes count as there: -1 are the channels.
    """

    def write(writer: LayerWriter) -> Feature:
        if not writer.sources:
            raise writer.fail("takes several sources, as in nn.Concatenate()([x, y])")
        first = writer.sources[0]
        return writer.add("kConcate", concate_conf={"concate_dim": axis_of(first, axis, writer.rows(first))})

    return write


@layer
def Slice(parts: int, axis: int = 1, **common: Unpack[LayerArguments]) -> Write:
    """Cuts its source in ``parts`` along ``axis`` (kSlice), so that calling it gives a list of as many features."""

    def write(writer: LayerWriter) -> Feature:
        slice_dim = axis_of(writer.source, axis, writer.rows(writer.source))
        settings = {"slice_dim": slice_dim, "num_slices": parts}
        return hand_out(writer, writer.add("kSlice", slice_conf=settings))

    return write


@layer
def Split(parts: int, **common: Unpack[LayerArguments]) -> Write:
    """Gives its source ``parts`` times (kSplit); nets add one themselves where a feature is used twice."""
    return lambda writer: hand_out(writer, writer.add("kSplit", split_conf={"num_splits": parts}))


def hand_out(writer: LayerWriter, whole: Feature) -> Feature:
    """Write a kDummy layer for each part, because nets hand out parts in the order of the layers of the net."""
    parts = (writer.extra(f"{number}", "kDummy", part) for number, part in enumerate(whole.parts))
    return whole._replace(parts=tuple(parts))


@layer
def Reshape(target_shape: Sequence[int], **common: Unpack[LayerArguments]) -> Write:
    """Gives rows another shape (kReshape), of which one axis may be -1, the size that is left.

    The numbers keep their order, that of the records where these have their channels last.
    """
    conf = layer_settings("Reshape", "kReshape", {"shape": target_shape})

    def write(writer: LayerWriter) -> Feature:
        feature = writer.add("kReshape", sources=pixels_first(writer), **conf)
        axes = len(target_shape) if isinstance(target_shape, (list, tuple)) else 1
        return channels_back(writer, feature) if writer.source.channels_last and axes in (3, 4) else feature

    return write


@layer
def Permute(dims: Sequence[int], **common: Unpack[LayerArguments]) -> Write:
    """Puts the axes of rows in the order ``dims``, counted from 1 (kPermute): (2, 1) swaps those of matrices.

    Where records have their channels last, axes count as there.
    """
    conf = layer_settings("Permute", "kPermute", {"dims": dims})

    def write(writer: LayerWriter) -> Feature:
        axes = len(row_shape(writer.source) or ())
        if not writer.source.channels_last or axes != len(dims) or axes not in (3, 4):
            return writer.add("kPermute", **conf)
        inside = [axis % axes + 1 for axis in dims]
        return writer.add("kPermute", **layer_settings("Permute", "kPermute", {"dims": [*inside[-1:], *inside[:-1]]}))

    return write


def pixels_first(writer: LayerWriter) -> list[Feature]:
    """Return the source with its channels last inside, too, after a layer that moves them: images of such records."""
    source = writer.source._replace(flat=False)
    axes = len(source.shape or ())
    if not source.channels_last or axes not in (3, 4):
        return [writer.source]
    return [writer.extra("pixels", "kPermute", source, permute_conf={"dims": [*range(2, axes + 1), 1]})]


def channels_back(writer: LayerWriter, feature: Feature) -> Feature:
    """Write the layer that puts the channels of images, which are last in the feature, first."""
    axes = len(row_shape(feature) or ())
    return writer.extra("channels", "kPermute", feature, permute_conf={"dims": [axes, *range(1, axes)]})


@layer
def RepeatVector(n: int, **common: Unpack[LayerArguments]) -> Write:
    """Repeats its source at each of ``n`` steps (kRepeat): (B, ...) to (B, n, ...), also of images."""
    return simple("RepeatVector", "kRepeat", times=n)


def Layer(type: str, **fields: Any) -> LayerBuilder:
    """Return a layer of any type, also of a user's: ``nn.Layer("kLRN", local_size=3)``; the base of users' classes.

    A class that inherits it defines ``call``; see :class:`dsinga.addons.functions.own_layers.OwnLayer`.

    ``fields`` are settings of its type, fields of a layer in a job file, and the arguments of every layer. Raises
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
        type.removeprefix("k"), write, {**fields, "type": type}, functools.partial(Layer, type, **fields)
    )


# class Scale(nn.Layer) inherits the base of users' layers.
Layer.__mro_entries__ = lambda bases: (lookup("hook", "users_layer"),)  # type: ignore[attr-defined]


# Layers whose names mean something else in Keras, or nothing: nn has Conv1D, ConvLSTM2D, RepeatVector, SimpleRNN, Dice,
# Lambda and the indexing of features.
OTHERWISE = ("kConvolution1D", "kConvLSTM", "kRepeat", "kRNN", "kDiceLoss", "kFunction", "kIndex")


def layer_function(name: str, type: str, cls: Any) -> Any:
    """Return the function called ``name`` that makes layers of a class without a written one: nn.PReLU, or a user's."""

    def function(**settings: Any) -> Write:
        return write_derived_loss(name, type, cls, settings) or simple(name, type, **settings)

    return layer(derived_function(name, cls, function))


def has_function(type: str, cls: Any) -> bool:
    """Whether a layer computes a feature from those of others; nn.Input and partitioning make the other layers."""
    of_nets = issubclass(cls, layers.Layer) and not issubclass(cls, Bridge) and not (cls.is_input or cls.is_output)
    return of_nets and type not in OTHERWISE


layer_functions = Derived("layer", layer_function, has_function)
