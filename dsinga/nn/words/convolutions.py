"""Convolutions of images (B, C, H, W) and volumes (B, C, D, H, W): plain, transposed, depthwise and recurrent.

A size is a number, or one for each axis: (rows, columns), for volumes (depth, rows, columns).
"""

from __future__ import annotations

import math
from typing import Any, Unpack

from dsinga.base.arguments import check_whole
from dsinga.nn.words.activations import activate, check_activation
from dsinga.nn.words.regularisers import weights
from dsinga.nn.words.windows import (
    Padding,
    Size,
    check_kernel,
    per_axis,
    require,
    sides,
    transposed_window,
    window,
)
from dsinga.nn.writing.feature import Feature, batch_shape
from dsinga.nn.writing.symbol import LayerArguments, layer
from dsinga.nn.writing.writer import LayerWriter, PartWriter, Write, layer_settings


@layer
def Conv2D(
    filters: int,
    kernel_size: Size,
    strides: Size = 1,
    padding: Padding = "valid",
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    dilation_rate: Size = 1,
    groups: int = 1,
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes the convolution of images (B, C, H, W) to (B, filters, H', W'), and its activation (kConvolution).

    ``padding`` is "valid", "same", as in Keras, or how many zeros are on each side. With ``groups``, filters read the
    channels of their group.

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input((3, 32, 32))
        >>> nn.Conv2D(16, 3, padding="same", activation="relu")(x).shape
        (None, 16, 32, 32)
    """
    params = weights(weight=(kernel_initializer, kernel_regularizer), bias=(bias_initializer, bias_regularizer))
    settings = {"num_filters": filters, "bias_term": use_bias, "group": groups}
    return convolution("Conv2D", 2, kernel_size, strides, padding, dilation_rate, activation, settings, params)


@layer
def Conv3D(
    filters: int,
    kernel_size: Size,
    strides: Size = 1,
    padding: Padding = "valid",
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    dilation_rate: Size = 1,
    groups: int = 1,
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes the convolution of volumes (B, C, D, H, W) and its activation (kConvolution)."""
    params = weights(weight=(kernel_initializer, kernel_regularizer), bias=(bias_initializer, bias_regularizer))
    settings = {"num_filters": filters, "bias_term": use_bias, "group": groups}
    return convolution("Conv3D", 3, kernel_size, strides, padding, dilation_rate, activation, settings, params)


def convolution(
    name: str,
    axes: int,
    kernel_size: Size,
    strides: Size,
    padding: Any,
    dilation_rate: Size,
    activation: Any,
    settings: dict[str, Any],
    params: dict[str, Any],
) -> Write:
    """Return a function that writes a convolution of ``axes`` 2 (images) or 3 into a job."""
    check_activation(name, activation)
    layer_settings(name, "kConvolution", settings)

    def write(writer: LayerWriter) -> Feature:
        channels, *_ = require(writer, axes)
        fields, kernel = convolved(writer, axes, kernel_size, strides, padding, dilation_rate)
        fans = channels // settings["group"] * math.prod(kernel), settings["num_filters"] * math.prod(kernel)
        conf = layer_settings(name, "kConvolution", settings | fields)
        return activate(writer, writer.add("kConvolution", **conf, fans={"weight": fans}, **params), activation)

    return write


def convolved(
    writer: LayerWriter, axes: int, kernel_size: Size, strides: Size, padding: Any, dilation_rate: Size
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the job fields of a convolution's window, and its kernel size."""
    kernel, dilation = per_axis(writer, kernel_size, axes), per_axis(writer, dilation_rate, axes)
    if padding == "valid":
        check_kernel(writer, kernel, dilation)
    if set(dilation) == {1}:
        return window(writer, kernel, strides, padding, 1, axes), kernel
    same = {"same": True} if padding == "same" else {}
    fields = window(writer, kernel, strides, "valid" if same else padding, 1, axes)
    return {**fields, **same, **sides("dilation", dilation)}, kernel


@layer
def DepthwiseConv2D(
    kernel_size: Size,
    strides: Size = 1,
    padding: Padding = "valid",
    depth_multiplier: int = 1,
    dilation_rate: Size = 1,
    activation: Any = None,
    use_bias: bool = True,
    depthwise_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    depthwise_regularizer: Any = None,
    bias_regularizer: Any = None,
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes a separate convolution of each image channel, and its activation (kConvolution).

    Each channel has ``depth_multiplier`` filters: (B, C, H, W) to (B, depth_multiplier·C, H', W').
    """
    check_activation("DepthwiseConv2D", activation)
    params = weights(weight=(depthwise_initializer, depthwise_regularizer), bias=(bias_initializer, bias_regularizer))

    def write(writer: LayerWriter) -> Feature:
        channels, *_ = require(writer)
        check_whole(f"depth_multiplier of {writer.name}", depth_multiplier, 1)
        fields, kernel = convolved(writer, 2, kernel_size, strides, padding, dilation_rate)
        settings = {"num_filters": channels * depth_multiplier, "group": channels, "bias_term": use_bias}
        conf = layer_settings("DepthwiseConv2D", "kConvolution", settings | fields)
        size = math.prod(kernel)
        fans = channels * size, depth_multiplier * size  # Keras counts the kernel as (kh, kw, C, depth_multiplier)
        return activate(writer, writer.add("kConvolution", **conf, fans={"weight": fans}, **params), activation)

    return write


@layer
def SeparableConv2D(
    filters: int,
    kernel_size: Size,
    strides: Size = 1,
    padding: Padding = "valid",
    dilation_rate: Size = 1,
    depth_multiplier: int = 1,
    activation: Any = None,
    use_bias: bool = True,
    depthwise_initializer: Any = "glorot_uniform",
    pointwise_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    depthwise_regularizer: Any = None,
    pointwise_regularizer: Any = None,
    bias_regularizer: Any = None,
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes a depthwise convolution of images without a bias, then one of single pixels, and its activation.

    (B, C, H, W) to (B, filters, H', W'): two kConvolution layers, the first with ``_depthwise`` after its name.
    Chollet, Xception (2017).
    """
    depthwise = DepthwiseConv2D(
        kernel_size,
        strides,
        padding,
        depth_multiplier,
        dilation_rate,
        use_bias=False,
        depthwise_initializer=depthwise_initializer,
        depthwise_regularizer=depthwise_regularizer,
    )
    pointwise = Conv2D(
        filters,
        1,
        activation=activation,
        use_bias=use_bias,
        kernel_initializer=pointwise_initializer,
        bias_initializer=bias_initializer,
        kernel_regularizer=pointwise_regularizer,
        bias_regularizer=bias_regularizer,
    )

    def write(writer: LayerWriter) -> Feature:
        feature = depthwise.write(PartWriter(writer, depthwise, f"{writer.name}_depthwise", writer.source))
        return pointwise.write(PartWriter(writer, pointwise, writer.name, feature))

    return write


@layer
def Conv2DTranspose(
    filters: int,
    kernel_size: Size,
    strides: Size = 1,
    padding: Padding = "valid",
    output_padding: Size | None = None,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes a transposed convolution of images, ``strides`` times as large (kTransposedConvolution).

    A number as ``padding`` removes that many pixels of the result on each side. ``output_padding`` adds pixels to the
    result, by default as in Keras.
    """
    params = weights(weight=(kernel_initializer, kernel_regularizer), bias=(bias_initializer, bias_regularizer))
    settings = {"num_filters": filters, "bias_term": use_bias}
    sizes = kernel_size, strides, padding, output_padding
    return transposed_convolution("Conv2DTranspose", 2, *sizes, activation, settings, params)


@layer
def Conv3DTranspose(
    filters: int,
    kernel_size: Size,
    strides: Size = 1,
    padding: Padding = "valid",
    output_padding: Size | None = None,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes a transposed convolution of volumes, ``strides`` times as large (kTransposedConvolution)."""
    params = weights(weight=(kernel_initializer, kernel_regularizer), bias=(bias_initializer, bias_regularizer))
    settings = {"num_filters": filters, "bias_term": use_bias}
    sizes = kernel_size, strides, padding, output_padding
    return transposed_convolution("Conv3DTranspose", 3, *sizes, activation, settings, params)


def transposed_convolution(
    name: str,
    axes: int,
    kernel_size: Size,
    strides: Size,
    padding: Any,
    output_padding: Size | None,
    activation: Any,
    settings: dict[str, Any],
    params: dict[str, Any],
) -> Write:
    """Return a function that writes a transposed convolution and its activation into a job."""
    check_activation(name, activation)
    layer_settings(name, "kTransposedConvolution", settings)

    def write(writer: LayerWriter) -> Feature:
        channels, *_ = require(writer, axes)
        kernel, steps = per_axis(writer, kernel_size, axes), per_axis(writer, strides, axes)
        fields = transposed_window(writer, kernel, steps, padding, output_padding)
        conf = layer_settings(name, "kTransposedConvolution", settings | fields)
        # Keras counts the channels of a weight (kh, kw, filters, channels) in this order.
        fans = {"weight": (settings["num_filters"] * math.prod(kernel), channels * math.prod(kernel))}
        return activate(writer, writer.add("kTransposedConvolution", **conf, fans=fans, **params), activation)

    return write


@layer
def ConvLSTM2D(
    filters: int,
    kernel_size: Size,
    strides: Size = 1,
    padding: Padding = "valid",
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    recurrent_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    return_sequences: bool = False,
    kernel_regularizer: Any = None,
    recurrent_regularizer: Any = None,
    bias_regularizer: Any = None,
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes a convolutional LSTM over images (B, T, C, H, W), with tanh and sigmoid (kConvLSTM).

    The bias of the forget gate begins at 0 (Keras: 1).
    """
    hidden, bias = (recurrent_initializer, recurrent_regularizer), (bias_initializer, bias_regularizer)
    params = weights(hx=(kernel_initializer, kernel_regularizer), hh=hidden, b=bias)
    settings = {"num_filters": filters, "bias_term": use_bias}
    layer_settings("ConvLSTM2D", "kConvLSTM", settings)

    def write(writer: LayerWriter) -> Feature:
        rows = writer.rows(writer.source)
        if len(rows) != 4:
            raise writer.fail(
                f"takes images over steps (batch, steps, channels, height, width), but gets {batch_shape(rows)}; put "
                "nn.Reshape between, if the steps are channels"
            )
        size = math.prod(per_axis(writer, kernel_size, 2))
        fans = {"hx": (rows[1] * size, 4 * filters * size), "hh": (filters * size, 4 * filters * size)}
        fields = {**window(writer, kernel_size, strides, padding, 1), "last": not return_sequences}
        conf = layer_settings("ConvLSTM2D", "kConvLSTM", settings | fields)
        return writer.add("kConvLSTM", **conf, fans=fans, **params)

    return write
